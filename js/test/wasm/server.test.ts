// SPDX-License-Identifier: Apache-2.0
// Servers in JavaScript: whom they let in, directly and through apache-tvm's proxy. Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { PortcallError, RemoteError, type RPCError, rpc } from "../../src/index.js";
import { HandshakeStream } from "../../src/rpc/transport/handshake_stream.js";
import { openTransport } from "../../src/rpc/transport/open.js";
import { parseAddress } from "../../src/rpc/transport/transport.js";
import { EXTENSION_VERSION, greeting, parseGreeting } from "../../src/rpc/wire/handshake.js";
import { ROOT } from "../captures.js";
import { SERVED } from "../served.js";
import { ended, PYTHON, start } from "../servers.js";

const TOKEN = "correct horse battery";
const CLIENT = fileURLToPath(new URL("js/test/python_client.py", ROOT));
const PROXY = fileURLToPath(new URL("js/test/tvm_proxy.py", ROOT));

function listen(options: Partial<rpc.ListenOptions> = {}): Promise<rpc.Server> {
  return rpc.listen({ functions: SERVED, address: "127.0.0.1:0", ...options });
}

async function runPythonClient(
  who: string,
  address: string,
  key: string,
  env: Record<string, string> = {},
): Promise<void> {
  const [host, port] = address.split(":");
  const { process, line } = await start(PYTHON, [CLIENT, who, host!, port!, key], env);
  assert.equal(line, "done");
  await ended(process);
}

test("a server for other machines has a token, or is insecure on purpose", async () => {
  for (const address of ["0.0.0.0:0", "[::]:0"]) {
    await assert.rejects(
      listen({ address }),
      (error) => error instanceof PortcallError && /insecure/.test(error.message),
    );
  }
  for (const more of [{ token: TOKEN }, { insecure: true }])
    await (await listen({ address: "0.0.0.0:0", ...more })).close();
});

test("a server that joins a server instead of a proxy is told so, and pauses longer each time", async () => {
  const server = await listen();
  const stop = new AbortController();
  const pauses: rpc.JoinState[] = [];
  let connects = 0;
  const onState = (state: rpc.JoinState) => {
    if (state.state === "connecting" && ++connects > 20) stop.abort();
    if (state.state === "pausing" && pauses.push(state) === 2) stop.abort();
  };
  await rpc.join(server.address, { functions: {}, onState, signal: stop.signal });
  await server.close();
  const [first, second] = pauses as Extract<rpc.JoinState, { state: "pausing" }>[];
  assert.equal((first!.error as RPCError).reason, "not-a-proxy");
  assert.equal(second!.seconds, 2 * first!.seconds);
});

describe("a client in JavaScript", () => {
  let server: rpc.Server;
  let session: rpc.Session;
  before(async () => {
    server = await listen({ key: "k" });
    session = await rpc.connect(server.address, { key: "k" });
  });
  after(async () => {
    session.close();
    await server.close();
  });

  test("is refused with another key or token", async () => {
    await assert.rejects(rpc.connect(server.address, { key: "other" }), { name: "KeyMismatchError" });
    const guarded = await listen({ token: TOKEN });
    await using open = await rpc.connect(guarded.address, { token: TOKEN });
    assert.equal(await (await open.getFunction("demo.add"))(1, 2), 3);
    await assert.rejects(rpc.connect(guarded.address, { token: "wrong" }), { reason: "wrong-token" });
    await assert.rejects(rpc.connect(guarded.address), { reason: "no-token" });
    await assert.rejects(rpc.connect(server.address, { key: "k", token: TOKEN }), { reason: "not-asked" });
    await guarded.close();
  });

  test("learns that the server is gone", async () => {
    const brief = await listen();
    const other = await rpc.connect(brief.address);
    const waiting = assert.rejects((await other.getFunction("demo.never"))(), { name: "SessionBrokenError" });
    await brief.close();
    await waiting;
    await assert.rejects(rpc.connect(brief.address), { reason: "refused" });
  });

  test("asks why its session ended with a secret that no other client has", async () => {
    let note = (_: unknown) => {};
    const over = new Promise((resolve) => {
      note = resolve;
    });
    const one = await listen({ onSession: (_, ended) => ended && note(ended) });
    const say = async (words: Record<string, string> = {}) => {
      const transport = await openTransport(parseAddress(one.address), new AbortController().signal);
      transport.send(greeting("client", "", Object.entries({ portcall: EXTENSION_VERSION, ...words })));
      const message = await new HandshakeStream(transport).next();
      return { transport, words: parseGreeting(message!.text, "server").options };
    };
    const [first, second] = [await say(), await say()];
    const ask = async (secret: string) =>
      (await say({ reason: `${first.words.get("session")}.${secret}` })).words.get("ended");
    first.transport.abort();
    await over;
    assert.equal(await ask(second.words.get("secret")!), "unknown");
    assert.equal(await ask(first.words.get("secret")!), "closed");
    second.transport.abort();
    await one.close();
  });

  test("has a session of its own beside others", async () => {
    const sessions = await Promise.all(Array.from({ length: 5 }, () => rpc.connect(server.address, { key: "k" })));
    await Promise.all(sessions.map((one, i) => one.upload("mine", new Uint8Array(i + 1))));
    const sizes = await Promise.all(sessions.map(async (one) => (await one.download("mine")).length));
    assert.deepEqual(sizes, [1, 2, 3, 4, 5]);
    for (const one of sessions) one.close();
  });
});

// ---- Python ------------------------------------------------------------------------------------------------------------

describe("clients in Python", () => {
  test("that of portcall proves a token", async () => {
    const server = await listen({ key: "k", token: TOKEN });
    await runPythonClient("portcall", server.address, "k", { PORTCALL_TOKEN: TOKEN });
    await server.close();
  });

  describe("through apache-tvm's proxy", () => {
    let proxy: Awaited<ReturnType<typeof start>>;
    let address: string;
    let web: string;
    before(async () => {
      proxy = await start(PYTHON, [PROXY]);
      const [port, webPort] = proxy.line.split(" ");
      address = `127.0.0.1:${port}`;
      web = `ws://127.0.0.1:${webPort}/ws`;
    });
    after(async () => {
      proxy.process.stdin!.end();
      await ended(proxy.process);
    });

    test("they call a server that joined by WebSocket, one session after the other", async () => {
      const leave = new AbortController();
      const states: string[] = [];
      const joined = rpc.join(web, {
        functions: SERVED,
        key: "web",
        signal: leave.signal,
        onState: ({ state }) => state !== "progress" && states.push(state),
      });
      for (const who of ["portcall", "tvm", "portcall"]) await runPythonClient(who, address, "web");
      // Clients in JavaScript, over a socket and over a WebSocket of their own.
      for (const where of [address, web]) {
        await using session = await rpc.connect(where, { key: "web" });
        assert.equal(await (await session.getFunction("demo.add"))(1, 2), 3);
      }
      leave.abort();
      await joined;
      assert.deepEqual(states.slice(0, 5), ["connecting", "waiting", "serving", "ended", "connecting"]);
    });

    test("they call a server that joined by TCP, and proves a token through the proxy", async () => {
      const leave = new AbortController();
      const joined = rpc.join(address, { functions: SERVED, key: "tcp", token: TOKEN, signal: leave.signal });
      await runPythonClient("portcall", address, "tcp", { PORTCALL_TOKEN: TOKEN });
      await assert.rejects(rpc.connect(address, { key: "tcp", token: "wrong horse" }), { reason: "wrong-token" });
      await using session = await rpc.connect(address, { key: "tcp", token: TOKEN });
      await assert.rejects((await session.getFunction("demo.fail"))("boom"), RemoteError);
      leave.abort();
      await joined;
    });
  });

  test("a proxy that is not there is tried again, until the signal", async () => {
    const leave = new AbortController();
    const pauses: number[] = [];
    await rpc.join("127.0.0.1:1", {
      functions: {},
      key: "k",
      signal: leave.signal,
      onState: (state) => {
        if (state.state !== "pausing") return;
        pauses.push(state.seconds);
        if (pauses.length === 2) leave.abort();
      },
    });
    assert.deepEqual(pauses, [0.5, 1]);
  });
});
