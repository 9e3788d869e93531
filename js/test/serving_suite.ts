// SPDX-License-Identifier: Apache-2.0
// What a client in JavaScript finds at any server: those in JavaScript alone, and those by the core.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { rpc } from "../src/index.js";

/** Add the tests of a server of SERVED (served.ts). */
export function testServing(listen: (options?: Partial<rpc.ListenOptions>) => Promise<rpc.Server>): void {
  describe("a client of any server", () => {
    let server: rpc.Server;
    let session: rpc.Session;
    const call = async (name: string, ...args: rpc.RemoteValue[]) =>
      (await session.getFunction(`demo.${name}`))(...args);
    before(async () => {
      server = await listen();
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
  });
}
