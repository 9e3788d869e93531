// SPDX-License-Identifier: Apache-2.0
// Arguments of wrong types are refused by a TypeError that begins with the argument's name.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { device, dtype, rpc, Tensor } from "../src/index.js";
import { portcallServer, type Running } from "./servers.js";

let server: Running;
let session: rpc.Session;
before(async () => {
  server = await portcallServer();
  session = await rpc.connect(server.address);
});
after(async () => {
  session.close();
  await server.stop();
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
  ["the name", (name) => session.getFunction(name), [5, null, undefined, {}]],
  ["the name", (name) => session.timeEvaluator(name), [5, null, undefined, {}]],
  ["path", (path) => session.loadModule(path), [5, null, undefined, {}]],
  ["number", (number) => session.timeEvaluator("testing.nop", { number }), ["x", null, {}]],
  ["functions", (functions) => listen({ functions }), [[() => 1]]],
  ["insecure", (insecure) => listen({ insecure }), [1, "yes"]],
];

test("an option that there is not is refused, with those that there are", async () => {
  const refused = (call: () => Promise<unknown>, near = "") =>
    assert.rejects(
      call,
      (error: Error) => error instanceof TypeError && /timout|_/.test(error.message) && error.message.includes(near),
    );
  await refused(() => connect({ timout: 1 }), "'timeout'");
  for (const each of [connect, listen]) await refused(() => each({ session_timeout: 1 }), "'sessionTimeout'");
  await refused(() => listen({ memory_limit: 1 }), "'memoryLimit'");
  await refused(() => listen({ timout: 1 }));
  await refused(() => rpc.join(server.address, { functions: {}, timout: 1 } as never));
  await refused(() => session.timeEvaluator("testing.nop", { timout: 1 } as never));
});

test("values that no server takes are refused, each with what to do", async () => {
  const echo = await session.getFunction("testing.echo");
  const refused = (value: unknown, remedy: RegExp) =>
    assert.rejects(
      echo(value as never),
      (error: Error) => error instanceof TypeError && remedy.test(error.message),
      String(remedy),
    );
  await refused(new Float32Array(1), /session\.tensor\(/);
  await refused(new DataView(new ArrayBuffer(1)), /new Uint8Array\(/);
  await refused(new Uint8ClampedArray(1), /new Uint8Array\(/);
  await refused(new ArrayBuffer(1), /new Uint8Array\(/);
  await refused(new Tensor(array), /session\.tensor\(/);
  await refused(Promise.resolve(1), /await/);
  await refused(() => 1, /function/);
});

test("an array whose buffer was transferred is refused, by every name", async () => {
  const gone = () => {
    const data = new Float32Array(2);
    structuredClone(data.buffer, { transfer: [data.buffer] });
    return data;
  };
  const tensor = await session.empty([2]);
  const calls = [
    () => session.tensor(gone()),
    () => tensor.copyFrom(gone()),
    () => tensor.data(gone()),
    () => new Tensor(gone()),
  ];
  for (const call of calls) {
    await assert.rejects(
      async () => call(),
      (error: Error) => error instanceof TypeError && /transferred/.test(error.message),
      String(call),
    );
  }
});

test("elements are read into an array of their type, or into bytes", async () => {
  const tensor = await session.tensor(new Float32Array([1, 2]));
  await assert.rejects(tensor.data(new Int32Array(2)), TypeError);
  assert.deepEqual(await tensor.data(new Uint8Array(8)), new Uint8Array(new Float32Array([1, 2]).buffer));
  tensor.dispose();
  await assert.rejects(tensor.data(), (error: Error) => /the tensor was disposed of/.test(error.message));
});

test("the stack of an error of the server has the line of the call", async () => {
  const caller = async () => void (await session.download("none"));
  await assert.rejects(caller, (error: Error) => /arguments\.test\.js/.test(error.stack ?? ""));
  const open = await session.getFunction("tvm.rpc.server.download");
  const direct = async () => void (await open("none"));
  await assert.rejects(direct, (error: Error) => /at async direct/.test(error.stack ?? ""));
});

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
