// SPDX-License-Identifier: Apache-2.0
// Sessions that the core's endpoint serves in this process. Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { CoreObject, CoreTensor, load, type Runtime, rpc } from "../../src/index.js";
import { ROOT } from "../captures.js";
import { SERVED } from "../served.js";
import { ended, PYTHON, start } from "../servers.js";

const here = (name: string) => fileURLToPath(new URL(`js/test/${name}`, ROOT));

let core: Runtime;
let folder: string;
before(async () => {
  core = await load({ backend: "wasm" });
  folder = mkdtempSync(join(tmpdir(), "portcall-wasm-"));
  await ended((await start(PYTHON, [here("wasm/kernels.py"), here("wasm/kernels.c"), folder])).process);
});
after(() => rmSync(folder, { recursive: true }));

function listen(options: Partial<rpc.ListenOptions> = {}): Promise<rpc.Server> {
  return rpc.listen({ functions: SERVED, core, address: "127.0.0.1:0", ...options });
}

describe("clients in Python", () => {
  for (const who of ["portcall", "tvm"]) {
    test(`that of ${who} calls functions of JavaScript, and sends kernels and graphs`, async () => {
      const server = await listen({ key: "k" });
      const [host, port] = server.address.split(":");
      const place = [who, host!, port!, "k"];
      for (const words of [["python_client.py"], ["wasm/kernel_client.py", folder]]) {
        const [script, ...rest] = words;
        const { process, line } = await start(PYTHON, [here(script!), ...place, ...rest]);
        assert.equal(line, "done");
        await ended(process);
      }
      await server.close();
    });
  }
});

describe("through apache-tvm's proxy", () => {
  let proxy: Awaited<ReturnType<typeof start>>;
  before(async () => {
    proxy = await start(PYTHON, [here("tvm_proxy.py")]);
  });
  after(async () => {
    proxy.process.stdin!.end();
    await ended(proxy.process);
  });

  for (const token of ["", "a token that is long"]) {
    test(`containers travel by value, ${token ? "with" : "without"} a token`, async () => {
      const [port, webPort] = proxy.line.split(" ");
      const leave = new AbortController();
      const key = `by value ${token.length}`.replaceAll(" ", "-");
      const functions = { ...SERVED, "demo.same": (value: unknown) => value };
      const joined = rpc.join(`ws://127.0.0.1:${webPort}/ws`, { functions, core, key, token, signal: leave.signal });
      const session = await rpc.connect(`127.0.0.1:${port}`, { key, token });
      const same = await session.getFunction("demo.same");
      const value = [1, "two", new Map([["three", [null, true]]])];
      assert.deepEqual(await same(value), value);
      session.close();
      for (const who of token ? ["portcall"] : ["portcall", "tvm"]) {
        const words = [here("python_client.py"), who, "127.0.0.1", port!, key];
        const client = await start(PYTHON, words, { PORTCALL_TOKEN: token });
        assert.equal(client.line, "done");
        await ended(client.process);
      }
      leave.abort();
      await joined;
    });
  }
});

describe("a client in JavaScript", () => {
  let server: rpc.Server;
  let session: rpc.Session;
  const call = async (name: string, ...args: rpc.RemoteValue[]) => (await session.getFunction(`demo.${name}`))(...args);
  const lent: unknown[] = [];
  before(async () => {
    const keep = (value: unknown) => void lent.push(value);
    server = await listen({
      functions: { ...SERVED, "demo.keep": keep, "demo.same": (value) => value, "demo.date": () => new Date(0) },
    });
    session = await rpc.connect(server.address);
  });
  after(async () => {
    session.close();
    await server.close();
  });

  test("gets values of every kind back", async () => {
    const echo = await session.getFunction("testing.echo");
    for (const value of [null, true, -5, 2n ** 62n, 1.5, "text ✓", new Uint8Array(3), new Uint8Array(5000)]) {
      assert.deepEqual(await echo(value), value);
    }
  });

  test("gets answers in order, also where functions return promises", async () => {
    const [add, later] = await Promise.all([session.getFunction("demo.add"), session.getFunction("demo.later")]);
    const order: number[] = [];
    await Promise.all([0, 1, 2, 3, 4, 5].map((i) => (i % 2 ? later("x") : add(i, 1)).then(() => order.push(i))));
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
    assert.equal(await call("later", "text"), "text, later");
  });

  test("passes references to functions and objects back", async () => {
    const add3: rpc.RemoteFunction = await call("adder", 3);
    assert.deepEqual([await add3(4), await call("apply", add3, 1)], [7, 4]);
    assert.equal(await call("length", await call("list")), 3);
  });

  test("sends tensors, whose memory functions change", async () => {
    const tensor = await session.tensor(new Float32Array([1, 2, 3]));
    await call("double", tensor.view([2], "float32", 4));
    assert.deepEqual(await tensor.data(), new Float32Array([1, 4, 6]));
  });

  test("sees errors by the names of Python's classes", async () => {
    const kinds: [string, string][] = [
      ["fail", "ValueError"],
      ["failLater", "TimeoutError"],
      ["throwText", "RuntimeError"],
    ];
    for (const [name, kind] of kinds) await assert.rejects(call(name, "boom"), { kind, remoteMessage: "boom" });
    await assert.rejects(call("failOddly", "boom"), { kind: "RuntimeError", remoteMessage: "MyErr: boom" });
    await assert.rejects(call("symbol"), { kind: "TypeError" });
    await assert.rejects(call("huge"), { kind: "ValueError" });
    await assert.rejects(call("hugeLater"), { kind: "ValueError" });
    assert.equal(await call("add", 1, 2), 3);
  });

  test("times functions, also those that return promises", async () => {
    for (const [name, args] of [
      ["demo.add", [1, 2]],
      ["demo.later", ["x"]],
    ] as const) {
      const timing = await (await session.timeEvaluator(name, { number: 2, repeat: 3 }))(...args);
      assert.equal(timing.results.length, 3);
      assert(timing.results.every((seconds) => seconds >= 0));
    }
  });

  test("learns that its time is over", async () => {
    const brief = await listen({ sessionTimeout: 0.2 });
    const ending = await rpc.connect(brief.address);
    const never = await ending.getFunction("demo.never");
    await assert.rejects(never(), { name: "SessionTimeoutError", reason: "expired" });
    await brief.close();
  });

  test("sends and gets tensors", async () => {
    const tensor = await session.tensor(new Float32Array([1, 2, 3]));
    assert.equal(await call("sum", tensor), 6);
    const matrix: rpc.RemoteTensor = await call("matrix");
    assert.deepEqual([matrix.shape, await matrix.data()], [[2, 2], new Int32Array([1, 2, 3, 4])]);
    await assert.rejects(call("sum", tensor.view([1], "float32", 2)), { kind: "ValueError" });
  });

  test("sends and fetches files in pieces", async () => {
    const bytes = new Uint8Array(3_000_001).map((_, i) => i % 251);
    await session.upload("folder/data.bin", bytes);
    assert.deepEqual(await session.download("./folder//data.bin"), bytes);
    assert.deepEqual(await session.listDir(), ["folder"]);
    assert.deepEqual(await session.listDir("folder"), ["data.bin"]);
    await session.remove("folder/data.bin");
    assert.deepEqual(await session.listDir(), []);
  });

  test("sees errors of functions that it times, and of its own calls", async () => {
    await assert.rejects(call("length"), { kind: "TypeError" });
    await assert.rejects((await session.timeEvaluator("demo.fail"))("boom"), { kind: "ValueError" });
    await assert.rejects(session.timeEvaluator("demo.add", { repeat: -1 }), { kind: "ValueError" });
  });

  test("passes references to objects back", async () => {
    const echo = await session.getFunction("testing.echo");
    assert((await echo(await call("date"))) instanceof rpc.RemoteObject);
  });

  test("gets containers by value", async () => {
    const same = await session.getFunction("demo.same");
    const value = [1, "two", new Map<unknown, unknown>([["three", [null, 4.5]]])];
    assert.deepEqual(await same(value), value);
    assert.deepEqual(await call("list"), [3, 4, 5]);
    assert.equal(await call("length", [1, [2]]), 2);
    assert((await same([new Float32Array(2)])) instanceof rpc.RemoteObject); // a tensor stays where it is
  });

  test("sends objects of described types, which are those of the core where it knows the type", async () => {
    const seen: [boolean, string][] = [];
    const see = (value: CoreObject | rpc.DescribedObject) => {
      seen.push([value instanceof CoreObject, value.typeKey]);
      if (value instanceof CoreObject) (value as any).radius *= 2;
      return value;
    };
    const own = await listen({ functions: { "demo.see": see } });
    await using other = await rpc.connect(own.address);
    const call = await other.getFunction("demo.see");
    const circle = new rpc.DescribedObject("test.Circle", { name: "c", radius: 1.5, tags: [1], inner: null });
    const unknown: rpc.RemoteObject = await call(circle);
    assert.deepEqual([unknown.typeKey, unknown.fields], ["test.Circle", circle.fields]);
    assert.deepEqual(seen.pop(), [false, "test.Circle"]);
    await other.upload("k.wasm", readFileSync(join(folder, "kernels.wasm")));
    await (await (await other.loadModule("k.wasm")).get("counter"))();
    const made: rpc.RemoteObject = await call(circle);
    assert.deepEqual([made.typeKey, made.fields], ["test.Circle", { ...circle.fields, radius: 3 }]);
    await call(made);
    assert.deepEqual(seen, [
      [true, "test.Circle"],
      [true, "test.Circle"],
    ]);
    await own.close();
  });

  test("lends tensors for a call", async () => {
    await call("keep", await session.tensor(new Float32Array([1, 2, 3])));
    assert(lent[0] instanceof CoreTensor);
    assert.throws(() => (lent[0] as CoreTensor).data, TypeError);
    const large = new Uint8Array(5_000_000).map((_, i) => i % 251);
    assert.deepEqual(await (await session.tensor(large)).data(), large);
  });

  test("has a limit of memory, and libraries of its own", async () => {
    const small = await listen({ memoryLimit: 4 << 20 });
    await using limited = await rpc.connect(small.address);
    await assert.rejects(limited.empty([8 << 20], "int8"), { kind: "MemoryError" });
    (await limited.empty([2 << 20], "int8")).dispose();
    await assert.rejects(limited.upload("f", new Uint8Array(5 << 20)), { kind: "MemoryError" });
    for (const _ of [1, 2]) {
      await limited.upload("f", new Uint8Array(3 << 20));
      await limited.remove("f");
    }
    await assert.rejects(limited.upload("../f", new Uint8Array(1)), { kind: "PermissionError" });
    await assert.rejects(limited.download("none"), { kind: "FileNotFoundError" });
    await limited.upload("k.wasm", readFileSync(join(folder, "kernels.wasm")));
    await using other = await rpc.connect(small.address);
    await other.upload("k.wasm", readFileSync(join(folder, "kernels.wasm")));
    const counts = [];
    for (const each of [limited, limited, other]) {
      counts.push(await (await (await each.loadModule("k.wasm")).get("count"))());
    }
    assert.deepEqual(counts, [1, 1, 1]);
    await assert.rejects(limited.empty([1], "int8", "cuda:0"), { kind: "DeviceError" });
    await small.close();
  });

  test("leaves nothing of its core behind", async () => {
    setFlagsFromString("--expose-gc");
    const gc: () => void = runInNewContext("gc");
    const memories: WeakRef<object>[] = [];
    const functions = { "demo.see": (x: CoreTensor) => void memories.push(new WeakRef(x.data.buffer)) };
    const seen = await listen({ functions });
    for (let i = 0; i < 3; ++i) {
      await using one = await rpc.connect(seen.address);
      await (await one.getFunction("demo.see"))(await one.tensor(new Float32Array(4)));
    }
    await seen.close();
    const alive = () => memories.filter((memory) => memory.deref() !== undefined).length;
    for (let i = 0; i < 100 && alive(); ++i) {
      await new Promise((resolve) => setTimeout(resolve)); // what was looked at stays until then
      gc();
    }
    assert.deepEqual([memories.length, alive()], [3, 0]);
  });

  test("cannot use what the server does not offer", async () => {
    await assert.rejects(session.getFunction("portcall.OpenBundle"), { kind: "PermissionError" });
  });
});
