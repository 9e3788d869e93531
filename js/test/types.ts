// SPDX-License-Identifier: Apache-2.0
// What the types allow and refuse. The compiler is the judge: this is compiled, and never run.

import { type Device, dtype, rpc } from "../src/index.js";

export async function allowed(): Promise<void> {
  await using session: rpc.Session = await rpc.connect("host:9090", { key: "k", token: "t", timeout: 5 });
  using add = await session.getFunction<number>("demo.add");
  const sum: number = await add(1, 2n);
  const tensor: rpc.RemoteTensor = await session.tensor(new Float32Array([sum]), [1], dtype("float32"));
  const elements: Float32Array = await tensor.data(new Float32Array(1));
  const any: rpc.RemoteFunction = await (await session.loadModule("k.so")).get("f");
  await any(null, true, "text", new Uint8Array(elements.byteLength), tensor, tensor.dtype, tensor.device, add);
  const timing: rpc.Timing = await (await session.timeEvaluator("demo.add", { number: 3, repeat: 2 }))(1, 2);
  const where: Device = tensor.device;
  await session.upload(
    "name",
    new Uint8Array(1),
    (done: number, total: number) => done / total + timing.min + where.index,
  );
}

export async function refused(session: rpc.Session): Promise<void> {
  const f = await session.getFunction("f");
  // @ts-expect-error A function of this process cannot be sent.
  await f(() => 1);
  // @ts-expect-error An array is not a value; a tensor has to be made of it.
  await f(new Float32Array(1));
  // @ts-expect-error Nor is a date.
  await f(new Date());
  // @ts-expect-error The key is text.
  await rpc.connect("host", { key: 1 });
  // @ts-expect-error There is no such option.
  await rpc.connect("host", { keys: "k" });
  // @ts-expect-error A tensor is made of typed arrays.
  await session.tensor([1, 2, 3]);
  // @ts-expect-error What was made for the session cannot be replaced.
  session.peer = "other";
}
