// SPDX-License-Identifier: Apache-2.0
// Requests that are posted (docs/wire.md, section 8): which they are, and what becomes of their errors.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { rpc } from "../src/index.js";
import { Pipeline } from "../src/rpc/client/pipeline.js";
import { Session } from "../src/rpc/client/session.js";
import type { Receiver, Transport } from "../src/rpc/transport/transport.js";
import { Reader, Writer } from "../src/rpc/wire/bytes.js";
import { CLIENT_HANDLES, Code } from "../src/rpc/wire/facts.js";
import { FrameReader, writeFrame } from "../src/rpc/wire/frames.js";
import { readSequence, writeSequence } from "../src/rpc/wire/values.js";
import { portcallServer, type Running } from "./servers.js";

const POSTED = 0x100;

/** A peer that keeps the frames that come, and answers those that are not posted with None, or with bytes. */
class Peer implements Transport {
  readonly peer = "peer";
  readonly waiting = 0;
  readonly frames: { code: number; body: Uint8Array }[] = [];
  #receiver: Receiver | undefined;
  readonly #reader = new FrameReader({ frame: (code, body) => this.#take(code, body) });

  #take(code: number, body: Uint8Array): void {
    this.frames.push({ code, body: body.slice() });
    if (code >= POSTED) return;
    const writer = new Writer();
    writeFrame(writer, Code.Return, (out) => writeSequence(out, [null], "request"));
    queueMicrotask(() => this.#receiver!.data(writer.bytes()));
  }
  receive(receiver: Receiver): void {
    this.#receiver = receiver;
  }
  send(bytes: Uint8Array): void {
    this.#reader.feed(bytes);
  }
  async drained(): Promise<void> {}
  close(): void {}
  abort(): void {}
}

function sessionWith(peer: Peer, ...features: string[]): Session {
  const pipeline = new Pipeline(peer, { callTimeout: 0, features: new Set(features) });
  pipeline.start(new Uint8Array());
  return new Session(pipeline, "portcall", 1 << 30);
}

test("a small tensor takes one round trip, and its free no answer", async () => {
  const peer = new Peer();
  const session = sessionWith(peer, "post");
  const [one, two] = await Promise.all([session.tensor(new Uint8Array(8)), session.tensor(new Uint8Array(8))]);
  one.dispose();
  await two.copyFrom(new Uint8Array(8).fill(1));
  const alloc = POSTED + Code.DevAllocDataWithScope;
  const free = POSTED + Code.DevFreeData;
  const codes = [alloc, Code.CopyToRemote, alloc, Code.CopyToRemote, free, Code.CopyToRemote];
  assert.deepEqual(
    peer.frames.map(({ code }) => code),
    codes,
  );
  const targetOf = (at: number) => new Reader(peer.frames[at]!.body).u64();
  assert.deepEqual(
    [0, 1, 2, 3, 4].map(targetOf),
    [0n, 0n, 1n, 1n, -CLIENT_HANDLES].map((n) => CLIENT_HANDLES + n),
  );
  const freed = readSequence(new Reader(peer.frames[4]!.body.subarray(8)));
  assert.deepEqual((freed[1] as { value: bigint }).value, CLIENT_HANDLES);
});

test("a peer without posted requests, and a large tensor, get requests that are answered", async () => {
  const [plain, posting] = [new Peer(), new Peer()];
  await sessionWith(plain)
    .tensor(new Uint8Array(8))
    .catch(() => {}); // None is no handle
  await sessionWith(posting, "post")
    .tensor(new Uint8Array(2 << 20))
    .catch(() => {});
  for (const peer of [plain, posting]) assert.equal(peer.frames[0]!.code, Code.DevAllocDataWithScope);
});

describe("with a server of portcall", () => {
  let server: Running;
  let session: rpc.Session;
  before(async () => {
    server = await portcallServer("--memory-limit", "1GiB", "--allow-connect");
    session = await rpc.connect(server.address);
  });
  after(async () => {
    session.close();
    await server.stop();
  });

  test("an error of memory that was asked for without an answer is that of the tensor", async () => {
    const lost = session.tensor(new Float32Array(4), [4], "float32", "vulkan");
    await assert.rejects(lost, { kind: "DeviceError" });
    const sum = await session.getFunction("demo.sum");
    assert.equal(await sum(await session.tensor(new Float32Array([1, 2]))), 3);
  });

  test("memory is given back", async () => {
    for (let i = 0; i < 3000; ++i) {
      const tensor = await session.tensor(new Uint8Array(1 << 20)); // 3 GiB in all
      tensor.dispose();
    }
  });

  test("tensors go one hop further", async () => {
    const [host, port] = server.address.split(":");
    const constructorArgs = ["rpc.Connect", host!, Number(port), "", false];
    await using far = await rpc.connect(server.address, { constructorArgs });
    const tensor = await far.tensor(new Float32Array([1, 2, 3]));
    assert.equal(await (await far.getFunction("demo.sum"))(tensor), 6);
    assert.deepEqual(await tensor.data(), new Float32Array([1, 2, 3]));
  });
});
