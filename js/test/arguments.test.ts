// SPDX-License-Identifier: Apache-2.0
// Arguments of wrong types are refused by a TypeError that begins with the argument's name.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { device, dtype, rpc, Tensor } from "../src/index.js";

let server: rpc.Server;
let session: rpc.Session;
before(async () => {
  server = await rpc.listen({ functions: {}, address: "127.0.0.1:0" });
  session = await rpc.connect(server.address);
});
after(async () => {
  session.close();
  await server.close();
});

const array = new Float32Array(2);
const connect = (options: object) => rpc.connect(server.address, options);
const listen = (options: object) => rpc.listen({ functions: {}, address: "127.0.0.1:0", ...options });
// Each takes what nothing takes: a plain object where text, a function or a number is meant, and numbers elsewhere.
const CALLS: [string, (wrong: never) => unknown, unknown[]][] = [
  ["the address", (wrong) => rpc.connect(wrong), [5, null, undefined, {}, Symbol("s")]],
  ["options", (wrong) => rpc.connect(server.address, wrong), [5, null, "text"]],
  ["key", (key) => connect({ key }), [5, {}]],
  ["token", (token) => connect({ token }), [5, {}]],
  ["timeout", (timeout) => connect({ timeout }), ["5", {}, Symbol("s")]],
  ["constructorArgs", (constructorArgs) => connect({ constructorArgs }), [5, "text", {}]],
  ["signal", (signal) => connect({ signal }), [5, {}]],
  ["onWait", (onWait) => connect({ onWait }), [5, {}]],
  ["onOutput", (onOutput) => connect({ onOutput }), [5, {}]],
  ["options", (wrong) => rpc.listen(wrong), [5, null, undefined, "text"]],
  ["functions", (functions) => listen({ functions }), [5, null, undefined, "text"]],
  ["'f'", (f) => listen({ functions: { f } }), [5, null, undefined, "text", {}]],
  ["the address", (address) => listen({ address }), [5, {}]],
  ["token", (token) => listen({ token }), [5, {}]],
  ["the address", (wrong) => rpc.join(wrong, { functions: {} }), [5, null, undefined, {}]],
  ["options", (wrong) => rpc.join(server.address, wrong), [5, null, undefined]],
  ["a shape", (shape) => session.empty(shape), [5, null, undefined, {}, "text"]],
  ["a data type", (type) => session.empty([1], type), [5, null, {}, Symbol("s")]],
  ["a device", (where) => session.empty([1], "int8", where), [5, null, {}, Symbol("s")]],
  ["the data of a tensor", (data) => session.tensor(data), [5, null, undefined, [1, 2], "text"]],
  ["the data of a tensor", (data) => session.tensor(data, [2], "int8"), [5, null, undefined, [1, 2]]],
  ["path", (path) => session.upload(path, new Uint8Array(1)), [5, null, undefined, {}]],
  ["bytes", (bytes) => session.upload("x", bytes), [5, null, undefined, "text", [1]]],
  ["onProgress", (progress) => session.upload("x", new Uint8Array(1), progress), [5, {}]],
  ["options", (options) => session.timeEvaluator("testing.nop", options), [5, null]],
  ["into", async (into) => (await session.empty([2])).data(into), [5, null, [1, 2], "", Number.NaN]],
  ["source", async (source) => (await session.empty([2])).copyFrom(source), [5, null, undefined, [1, 2]]],
  ["a shape", async (shape) => (await session.empty([2])).view(shape), [5, null, undefined]],
  ["the data of a tensor", (data) => new Tensor(data), [5, null, undefined, [1, 2], "text"]],
  ["a shape", (shape) => new Tensor(array, shape), [5, "text"]],
  ["a device", (wrong) => device(wrong), [5, null, undefined, {}]],
  ["a data type", (wrong) => dtype(wrong), [5, null, undefined, {}]],
];

for (const [name, call, wrong] of CALLS) {
  test(`${name} of a wrong type is named: ${call}`, async () => {
    for (const value of wrong) {
      await assert.rejects(
        async () => call(value as never),
        (error: Error) => error instanceof TypeError && error.message.startsWith(`${name} must be `),
      );
    }
  });
}
