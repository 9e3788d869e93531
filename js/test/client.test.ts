// SPDX-License-Identifier: Apache-2.0
// The client with servers as users start them: of portcall and of apache-tvm.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { FunctionNotFoundError, RemoteError, RPCError, rpc, SessionClosedError } from "../src/index.js";
import { NOT_OPENED, NOTICE } from "../src/rpc/wire/facts.js";
import { ROOT } from "./captures.js";
import { ended, PYTHON, portcallServer, portcallServerWith, type Running, start, tvmServer } from "./servers.js";

async function makeCertificates(): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "portcall-tls-"));
  await ended((await start(PYTHON, [fileURLToPath(new URL("js/test/certificates.py", ROOT)), folder])).process);
  return folder;
}

const KINDS = { portcall: () => portcallServer("--key", "k"), TVM: () => tvmServer("k") };

for (const [kind, startServer] of Object.entries(KINDS)) {
  describe(`with a server of ${kind}`, () => {
    let server: Running;
    let session: rpc.Session;
    before(async () => {
      server = await startServer();
      session = await rpc.connect(server.address, { key: "k" });
    });
    after(async () => {
      session.close();
      await server.stop();
    });

    test("the session knows whose server it is", () => {
      assert.equal(session.peerKind, kind);
      assert.equal(session.peer, server.address);
    });

    test("values of every kind come back from a function", async () => {
      const echo = await session.getFunction("testing.echo");
      const sent = [
        null,
        true,
        -5,
        2n ** 62n,
        1.5,
        "",
        "text ✓",
        "\ufeffmark",
        new Uint8Array(3),
        new Uint8Array(5000),
      ];
      for (const value of sent) assert.deepEqual(await echo(value), value);
    });

    test("many calls on their way are answered in order", async () => {
      const add = await session.getFunction("demo.add");
      const sums = await Promise.all(Array.from({ length: 3000 }, (_, i) => add(i, 1)));
      assert.deepEqual(
        sums,
        Array.from({ length: 3000 }, (_, i) => i + 1),
      );
    });

    test("a function returns a function", async () => {
      using add3 = (await (await session.getFunction("demo.adder"))(3)) as rpc.RemoteFunction<number>;
      assert.equal(await add3(4), 7);
    });

    test("an error of a function arrives, and the session goes on", async () => {
      const fail = await session.getFunction("demo.fail");
      await assert.rejects(fail("boom"), (error: RemoteError) => {
        assert(error instanceof RemoteError);
        assert.deepEqual([error.remoteMessage, error.peer], ["boom", server.address]);
        assert.equal(error.kind, kind === "portcall" ? "ValueError" : "");
        return true;
      });
      assert.equal(await (await session.getFunction("demo.add"))(1, 2), 3);
    });

    test("a missing function is FunctionNotFoundError", async () => {
      await assert.rejects(session.getFunction("no.such.function"), FunctionNotFoundError);
    });

    test("tensors are sent, changed there, and fetched", async () => {
      using tensor = await session.tensor(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]);
      assert.equal(await (await session.getFunction("demo.sum"))(tensor), 21);
      await (await session.getFunction("demo.fill"))(tensor, 7);
      assert.deepEqual(await tensor.data(), new Float32Array(6).fill(7));
      const into = new Float32Array(6);
      assert.equal(await tensor.data(into), into);
      assert.deepEqual(into, new Float32Array(6).fill(7));
    });

    test("a view shows and changes a part", async () => {
      const tensor = await session.tensor(new Int32Array([1, 2, 3, 4]));
      const part = tensor.view([2], "int32", 8);
      assert.deepEqual(await part.data(), new Int32Array([3, 4]));
      await part.copyFrom(new Int32Array([8, 9]));
      assert.deepEqual(await tensor.data(), new Int32Array([1, 2, 8, 9]));
      assert.throws(() => tensor.view([2], "int32", 12), RangeError);
    });

    test("tensors of every element type keep their bytes", async () => {
      for (const [type, array] of [
        ["int8", new Int8Array([-1, 2])],
        ["uint64", new BigUint64Array([2n ** 64n - 1n, 0n])],
        ["float64", new Float64Array([1.5, -0])],
        ["bool", new Uint8Array([1, 0])],
        ["float16", new Uint16Array([0x3c00, 0x4000])],
        ["bfloat16", new Uint16Array([0x3f80, 0x4000])],
      ] as const) {
        const tensor = await session.tensor(array, [2], type);
        assert.deepEqual(await tensor.data(), array, type);
      }
    });

    test("tensors of no elements and of no dimensions work", async () => {
      const none = await session.tensor(new Float32Array(0), [0, 3]);
      assert.deepEqual(await none.data(), new Float32Array(0));
      const scalar = await session.tensor(new Float32Array([5]), []);
      assert.deepEqual([scalar.shape, await scalar.data()], [[], new Float32Array([5])]);
    });

    test("a large tensor travels both ways, in order with the calls around it", async () => {
      const data = new Float32Array(1 << 20).map((_, i) => i % 1000);
      const tensor = await session.empty([data.length]);
      const sum = await session.getFunction("demo.sum");
      const [, total, back] = await Promise.all([tensor.copyFrom(data), sum(tensor), tensor.data()]);
      assert.equal(
        total,
        data.reduce((a, b) => a + b, 0),
      );
      assert.deepEqual(back, data);
    });

    test("tensors are copied within the session", async () => {
      const [from, to] = await Promise.all([session.tensor(new Int32Array([1, 2])), session.empty([2], "int32")]);
      await to.copyFrom(from);
      assert.deepEqual(await to.data(), new Int32Array([1, 2]));
    });

    test("a function returns a tensor", async () => {
      const tensor: rpc.RemoteTensor = await (await session.getFunction("demo.iota"))(4);
      assert.deepEqual(await tensor.data(), new Float32Array([0, 1, 2, 3]));
    });

    test("an array comes by value, or as an object that is passed back", async () => {
      const array = await (await session.getFunction("demo.array"))();
      if (kind === "portcall") assert.deepEqual(array, [3, 4, 5]);
      else assert(array instanceof rpc.RemoteObject);
      assert.equal(await (await session.getFunction("demo.length"))(array), 3);
    });

    test("files are sent, fetched and removed", async () => {
      const bytes = new Uint8Array(3_000_001).map((_, i) => i % 251);
      const seen: number[] = [];
      await session.upload("data.bin", bytes, (done) => seen.push(done));
      assert.equal(seen.at(-1), bytes.length);
      assert.deepEqual(await session.download("data.bin"), bytes);
      await session.upload("empty", new Uint8Array(0));
      assert.deepEqual(await session.download("empty"), new Uint8Array(0));
      await session.remove("data.bin");
      await assert.rejects(session.download("data.bin"), RemoteError);
    });

    test("a function is timed at the server", async () => {
      const evaluate = await session.timeEvaluator("testing.nop", { number: 5, repeat: 3 });
      const timing = await evaluate();
      assert.equal(timing.results.length, 3);
      assert(timing.min > 0 && timing.min <= timing.median && timing.mean < 1);
      await assert.rejects(session.timeEvaluator("no.such.function"), FunctionNotFoundError);
    });

    test("what cannot be sent is refused here, and the session goes on", async () => {
      const echo = await session.getFunction("testing.echo");
      for (const value of [() => 1, new Float32Array(2), new Date(), [() => 1], Symbol("s")]) {
        await assert.rejects(echo(value as never), TypeError);
      }
      await assert.rejects(echo(2n ** 63n), RangeError);
      await assert.rejects(session.tensor(new Float32Array(3), [4]), RangeError);
      await assert.rejects((await session.empty([2])).copyFrom(new Float64Array(1)), TypeError);
      assert.equal(await echo(1), 1);
    });

    test("what was disposed of cannot be used", async () => {
      const echo = await session.getFunction("testing.echo");
      const tensor = await session.empty([2]);
      tensor.dispose();
      tensor.dispose();
      await assert.rejects(echo(tensor), SessionClosedError);
      await assert.rejects(tensor.data(), SessionClosedError);
      echo.dispose();
      await assert.rejects(echo(1), SessionClosedError);
    });
  });
}

describe("with servers of portcall", () => {
  test("a library is loaded, called and timed", async () => {
    const server = await portcallServer();
    await using session = await rpc.connect(server.address);
    const source = `#include <portcall/portcall.h>
      PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })`;
    await session.upload("k.cc", new TextEncoder().encode(source));
    const module = await session.loadModule("k.cc");
    const add = await module.get("add");
    assert.deepEqual([await add(2, 3), add.name], [5, "add"]);
    await assert.rejects(module.get("nothing"), FunctionNotFoundError);
    const timing = await (await module.timeEvaluator("add", { repeat: 2 }))(1, 2);
    assert.equal(timing.results.length, 2);
    await server.stop();
  });

  test("containers and objects travel by value", async () => {
    const server = await portcallServer();
    await using session = await rpc.connect(server.address);
    const same = await session.getFunction("demo.same");
    const value = [1, "two", [new Float32Array([1, 2])], { three: null }, new rpc.Shape([4, 5])];
    const back = await same(value);
    assert.deepEqual(back[2][0].data, new Float32Array([1, 2]));
    assert.deepEqual([back[0], back[1], back[3], back[4]], [1, "two", new Map([["three", null]]), value[4]]);
    const held: rpc.RemoteObject = await (await session.getFunction("testing.echo"))(value); // of C++: a reference
    assert.equal(await held.length(), 5);
    assert.deepEqual([await held.item(1), await held.item(3)], ["two", new Map([["three", null]])]);
    const tensors = await held.item(2);
    assert.deepEqual(tensors[0].data, new Float32Array([1, 2]));
    await assert.rejects(held.item(5), RemoteError);
    const point: rpc.RemoteObject = await (await session.getFunction("demo.point"))();
    assert.deepEqual([point.typeKey, point.fields], ["demo.Point", { x: 1, y: 2.5 }]);
    assert.equal(await (await session.getFunction("demo.x_of"))(point), 1);
    await assert.rejects(same([point]), TypeError);
    const given = new rpc.DescribedObject("demo.Point", { x: 7, y: 1 });
    assert.equal(await (await session.getFunction("demo.x_of"))(given), 7);
    assert.deepEqual((await same([given]))[0].fields, { x: 7, y: 1 });
    await server.stop();
  });

  test("errors tell where they were raised, and what is printed arrives before the answer", async () => {
    const server = await portcallServer();
    const printed: string[] = [];
    const onOutput = (text: string, stream: string) => printed.push(`${stream}: ${text}`);
    await using session = await rpc.connect(server.address, { onOutput });
    await (await session.getFunction("demo.say"))("hello");
    assert.deepEqual(printed, ["stdout: hello\n"]);
    const fail = await session.getFunction("demo.fail");
    await assert.rejects(fail("boom"), (error: RemoteError) => error.remoteTraceback.includes("functions.py"));
    await server.stop();
  });

  test("a token is proven by both sides, and others are refused", async () => {
    const server = await portcallServerWith({ PORTCALL_TOKEN: "correct horse battery" });
    await using session = await rpc.connect(server.address, { token: "correct horse battery" });
    assert.equal(await (await session.getFunction("demo.add"))(1, 2), 3);
    const refused = async (options: rpc.ConnectOptions, reason: string) => {
      await assert.rejects(rpc.connect(server.address, options), { name: "AuthenticationError", reason });
    };
    await refused({ token: "wrong horse battery" }, "wrong-token");
    await refused({}, "no-token");
    await server.stop();
    const open = await portcallServer();
    await assert.rejects(rpc.connect(open.address, { token: "t".repeat(20) }), { reason: "not-asked" });
    await open.stop();
  });

  test("the queue of a full server is told, and left when the session ends", async () => {
    const server = await portcallServer("--max-sessions", "1");
    const first = await rpc.connect(server.address);
    let waits: (what: string) => void = () => {};
    const told = new Promise<string>((resolve) => {
      waits = (what) => what.includes("queue") && resolve(what);
    });
    const second = rpc.connect(server.address, { onWait: (what) => waits(what) });
    assert.match(await told, /number 1/);
    await assert.rejects(rpc.connect(server.address, { timeout: 0.3 }), { name: "SessionTimeoutError" });
    const abort = new AbortController();
    const third = rpc.connect(server.address, { signal: abort.signal });
    abort.abort(new Error("enough"));
    await assert.rejects(third, { message: "enough" });
    first.close();
    await second;
    const queued = new Promise<string>((resolve) => {
      waits = (what) => what.includes("queue") && resolve(what);
    });
    const last = assert.rejects(rpc.connect(server.address, { onWait: (what) => waits(what) }), {
      reason: "closed",
      message: /queue/,
    });
    await queued;
    await server.stop();
    await last;
  });

  test("a crash and an exit are told, to every request that waited and every later one", async () => {
    const server = await portcallServer();
    const session = await rpc.connect(server.address);
    const [crash, nap] = await Promise.all([session.getFunction("demo.crash"), session.getFunction("demo.nap")]);
    const lost = [crash(), nap(0)];
    for (const call of lost) await assert.rejects(call, { name: "RemoteCrashError", signal: "SIGABRT" });
    await assert.rejects(nap(0), { name: "RemoteCrashError", signal: "SIGABRT" });
    assert(session.closed);
    const again = await rpc.connect(server.address);
    await assert.rejects((await again.getFunction("demo.exit"))(3), { name: "RemoteCrashError", reason: "exit" });
    await server.stop();
  });

  test("the session's time and the time of a call have limits", async () => {
    const server = await portcallServer();
    const short = await rpc.connect(server.address, { sessionTimeout: 0.3 });
    const expired = { name: "SessionTimeoutError", reason: "expired" };
    await assert.rejects((await short.getFunction("demo.nap"))(1000), expired);
    const hasty = await rpc.connect(server.address, { callTimeout: 0.3 });
    const late = { name: "SessionTimeoutError", reason: "no-answer" };
    await assert.rejects((await hasty.getFunction("demo.nap"))(1000), late);
    await server.stop();
  });

  test("a session goes one hop further", async () => {
    const [near, far] = await Promise.all([portcallServer("--allow-connect"), portcallServer("--key", "far")]);
    const [host, port] = far.address.split(":");
    const args = ["rpc.Connect", host!, Number(port), "far", false];
    const session = await rpc.connect(near.address, { constructorArgs: args });
    await assert.rejects((await session.getFunction("demo.fail"))("boom"), {
      kind: "ValueError",
      remoteMessage: "boom",
    });
    const crash = await session.getFunction("demo.crash");
    await assert.rejects(crash(), { name: "RemoteCrashError", signal: "SIGABRT" });
    session.close();
    await Promise.all([near.stop(), far.stop()]);
  });

  test("objects of one session are refused by another, and after the end", async () => {
    const server = await portcallServer();
    const [one, two] = await Promise.all([rpc.connect(server.address), rpc.connect(server.address)]);
    const tensor = await one.empty([2]);
    const echo = await two.getFunction("testing.echo");
    await assert.rejects(echo(tensor), TypeError);
    one.close();
    one.close();
    await assert.rejects(tensor.data(), SessionClosedError);
    await assert.rejects(one.getFunction("testing.echo"), SessionClosedError);
    assert.equal(await echo(1), 1);
    two.close();
    await server.stop();
  });

  test("what is disposed of or collected is freed at the server", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc");
    const server = await portcallServer("--memory-limit", "1GiB");
    const session = await rpc.connect(server.address);
    // The memory of all of them together is more than the server gives.
    for (let i = 0; i < 15; ++i) (await session.empty([100 << 20], "uint8")).dispose();
    for (let i = 0; i < 15; ++i) {
      await session.empty([100 << 20], "uint8");
      collect();
      await new Promise(setImmediate); // finalizers run
    }
    session.close();
    await server.stop();
  });
});

describe("with other peers", () => {
  const answering = async (answer: (socket: Socket) => void) => {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      answer(socket);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as { port: number };
    return { server, address: `127.0.0.1:${port}`, port };
  };

  test("nobody listens there, or the host is not known", async () => {
    const { server, address } = await answering(() => {});
    await new Promise((resolve) => server.close(resolve));
    await assert.rejects(rpc.connect(address), { name: "ConnectError", reason: "refused" });
    await assert.rejects(rpc.connect("unix:/no/such/socket"), { name: "ConnectError", reason: "refused" });
    await assert.rejects(rpc.connect("no-such-host.invalid"), { name: "ConnectError", reason: "unknown-host" });
  });

  test("addresses, keys and times that cannot be are refused", async () => {
    for (const address of ["", "a b", "host:0", "host:70000", "[::1", "http://host"]) {
      await assert.rejects(rpc.connect(address), TypeError, address);
    }
    await assert.rejects(rpc.connect("host", { key: "two words" }), TypeError);
    await assert.rejects(rpc.connect("host", { timeout: -1 }), RangeError);
  });

  const magic = [0x71, 0xf2, 0x0f, 0];
  const hello = [...magic, 8, 0, 0, 0, ...Buffer.from("server:k")];
  const opened = [...hello, 12, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
  for (const [what, bytes, name] of [
    ["speaks another protocol", [...Buffer.from("HTTP/1.1 400\r\n")], "RemoteProtocolError"],
    ["closes at once", [], "ConnectError"],
    ["refuses the key", [0x73, 0xf2, 0x0f, 0], "KeyMismatchError"],
    ["is a client", [...magic, 8, 0, 0, 0, ...Buffer.from("client:k")], "RemoteProtocolError"],
    ["says nonsense after the handshake", [...hello, 3, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9], "RemoteProtocolError"],
    ["answers with an unknown code", [...hello, 4, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0], "RemoteProtocolError"],
    ["answers with values that are cut off", [...opened, ...opened.slice(16, 35), 9], "RemoteProtocolError"],
    ["goes away before the session is open", hello, "SessionBrokenError"],
  ] as const) {
    test(`a peer that ${what} is ${name}`, async () => {
      const { server, address } = await answering((socket) => {
        socket.once("data", () => socket.end(Uint8Array.from(bytes)));
      });
      await assert.rejects(rpc.connect(address, { key: "k" }), (error: RPCError) => {
        assert(error instanceof RPCError);
        assert.deepEqual([error.name, error.peer], [name, address], error.message);
        return true;
      });
      await new Promise((resolve) => server.close(resolve));
    });
  }

  test("a server that opens no session says why", async () => {
    const text = Buffer.from(`${NOT_OPENED}no room`);
    const head = Buffer.alloc(8);
    head.writeInt32LE(NOTICE);
    head.writeInt32LE(text.length, 4);
    const { server, address } = await answering((socket) => {
      socket.once("data", () => socket.end(Buffer.concat([head, text])));
    });
    await assert.rejects(rpc.connect(address), { name: "ConnectError", reason: "not-opened", message: /no room/ });
    await new Promise((resolve) => server.close(resolve));
  });

  test("a peer that is silent is given up", async () => {
    const { server, address } = await answering((socket) => socket.resume());
    await assert.rejects(rpc.connect(address, { timeout: 0.1 }), { name: "SessionTimeoutError", reason: "no-session" });
    await new Promise((resolve) => server.close(resolve));
  });
});

describe("with TLS", () => {
  let folder: string;
  before(async () => {
    folder = await makeCertificates();
  });
  after(() => rmSync(folder, { recursive: true }));

  test("a session opens, is explained when it ends, and shows our certificate where the server asks", async () => {
    const ca = join(folder, "ca.pem");
    const certificate = join(folder, "127.0.0.1.pem");
    const server = await portcallServer("--tls-cert", certificate, "--tls-ca", ca);
    const session = await rpc.connect(server.address, { tls: { ca, certificate } });
    const large = new Uint8Array(3_000_000).fill(7);
    assert.deepEqual(await (await session.tensor(large)).data(), large);
    await assert.rejects((await session.getFunction("demo.crash"))(), { name: "RemoteCrashError" });
    await assert.rejects(rpc.connect(server.address, { tls: { ca } }), { name: "ConnectError" });
    await server.stop();
  });

  test("certificates of others and of other hosts are refused, and so is a server without TLS", async () => {
    const ca = join(folder, "ca.pem");
    const server = await portcallServer("--tls-cert", join(folder, "elsewhere.pem"));
    await assert.rejects(rpc.connect(server.address, { tls: true }), { reason: "certificate" });
    await assert.rejects(rpc.connect(server.address, { tls: { ca } }), { reason: "certificate-name" });
    (await rpc.connect(server.address, { tls: { ca, serverName: "elsewhere" } })).close();
    await assert.rejects(rpc.connect(server.address), { name: "ConnectError" });
    await server.stop();
    const plain = await portcallServer();
    await assert.rejects(rpc.connect(plain.address, { tls: { ca } }), { reason: "no-tls" });
    await plain.stop();
    await assert.rejects(rpc.connect("unix:/nowhere", { tls: true }), TypeError);
    await assert.rejects(rpc.connect("ws://127.0.0.1:1/ws", { tls: true }), TypeError);
  });
});
