// SPDX-License-Identifier: Apache-2.0
// The client against recordings of apache-tvm: it sends what TVM's client sent, and understands TVM's answers.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Device, dtype, FunctionNotFoundError, RemoteError, rpc } from "../src/index.js";
import { openSession } from "../src/rpc/client/connect.js";
import { Pipeline } from "../src/rpc/client/pipeline.js";
import type { Receiver, Transport } from "../src/rpc/transport/transport.js";
import { Writer } from "../src/rpc/wire/bytes.js";
import { Code, MISMATCH } from "../src/rpc/wire/facts.js";
import { FrameReader, writeFrame } from "../src/rpc/wire/frames.js";
import {
  checkAccepted,
  greeting,
  HandshakeReader,
  parseGreeting,
  refusal,
  timeoutOf,
} from "../src/rpc/wire/handshake.js";
import { Pointer, type WireValue, writeSequence } from "../src/rpc/wire/values.js";
import { type Capture, isFrame, section } from "./captures.js";

const LIMIT_QUESTION = "GetCRTMaxPacketSize";
const FREES: number[] = [Code.FreeHandle, Code.DevFreeData];

function reply(...values: WireValue[]): Uint8Array {
  const writer = new Writer();
  writeFrame(writer, Code.Return, (body) => writeSequence(body, values, "request"));
  return writer.bytes();
}

function codeOf(frame: Uint8Array): number {
  return frame[8]!;
}

/** A transport whose other end is a recording: a request gets TVM's answer if it is what TVM's client asked. */
class Recorded implements Transport {
  readonly peer = "recording";
  readonly waiting = 0;
  readonly requests: Capture[];
  readonly answers: Capture[];
  readonly frees: Uint8Array[] = [];
  shutdown: Uint8Array | undefined;
  failure: Error | undefined;
  #receiver: Receiver | undefined;
  #frames = new FrameReader({ frame: (code, body) => this.#answer(code, body) });

  constructor(captures: Capture[]) {
    const frames = captures.filter(({ data }) => isFrame(data));
    this.requests = frames.filter(({ fromClient }) => fromClient);
    this.answers = frames.filter(({ fromClient }) => !fromClient);
  }

  receive(receiver: Receiver): void {
    this.#receiver = receiver;
  }
  async drained(): Promise<void> {}
  close(): void {}
  abort(): void {}
  send(bytes: Uint8Array): void {
    try {
      this.#frames.feed(bytes);
    } catch (error) {
      this.failure = error as Error;
      this.#receiver?.closed(this.failure);
    }
  }

  #answer(code: number, body: Uint8Array): void {
    const writer = new Writer();
    writeFrame(writer, code, (out) => out.raw(body));
    const frame = writer.bytes();
    if (code === Code.Shutdown) this.shutdown = frame;
    else if (code === Code.InitServer) {
      assert.deepEqual(frame, section("connect: handshake").filter((c) => c.fromClient)[1]?.data);
      this.#receiver?.data(reply(null));
    } else if (FREES.includes(code)) {
      this.frees.push(frame);
      this.#receiver?.data(reply(null));
    } else if (Buffer.from(frame).includes(LIMIT_QUESTION)) this.#receiver?.data(reply(new Pointer(0n)));
    else this.#recordedAnswer(frame);
  }

  #recordedAnswer(frame: Uint8Array): void {
    while (this.requests[0] && !sameBytes(this.requests[0].data, frame) && mayBeLeftOut(this.requests[0].data)) {
      this.requests.shift();
      this.answers.shift();
    }
    const expected = this.requests.shift();
    assert(expected, "one request too many");
    assert.equal(Buffer.from(frame).toString("hex"), Buffer.from(expected.data).toString("hex"), expected.section);
    const answer = this.answers.shift()!.data;
    this.#receiver?.data(answer.subarray(0, 9)); // any split will do
    this.#receiver?.data(answer.subarray(9));
  }
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

/** What TVM's client asks and ours does not, or at another time: synchronizing after copies, the limit again, frees. */
function mayBeLeftOut(frame: Uint8Array): boolean {
  return [...FREES, Code.DevStreamSync].includes(codeOf(frame)) || Buffer.from(frame).includes(LIMIT_QUESTION);
}

/** Use a session over the recordings of some sections, all of which must be asked for. */
async function replay(starts: string[], use: (session: rpc.Session) => Promise<void>): Promise<Recorded> {
  const transport = new Recorded(starts.flatMap(section));
  const session = await openSession(new Pipeline(transport, { callTimeout: 0 }), new Uint8Array(0), "TVM");
  try {
    await use(session);
  } catch (error) {
    throw transport.failure ?? error;
  }
  session.close();
  assert.ifError(transport.failure);
  assert.deepEqual(
    transport.requests.filter(({ data }) => !mayBeLeftOut(data)).map((c) => c.section),
    [],
  );
  return transport;
}

const FOUND = "GetGlobalFunc 'testing.echo' (found)";

const ECHOED: [string, rpc.RemoteValue, unknown?][] = [
  ["None", null],
  ["True", true],
  ["False", false],
  ["int 1", 1],
  ["int -1", -1],
  ["int 2**40", 2 ** 40],
  ["int64 max", 2n ** 63n - 1n],
  ["float 1.5", 1.5],
  ["float -0.0", -0],
  ["float nan", Number.NaN],
  ["str empty", ""],
  ["str 'abc' (small string)", "abc"],
  ["str of 7 bytes", "abcdefg"],
  ["str of 8 bytes (heap string)", "abcdefgh"],
  ["bytes empty", new Uint8Array(0)],
  ["bytes of 3 (small bytes)", new Uint8Array([0, 1, 2])],
  ["bytes of 7", new Uint8Array([0, 1, 2, 3, 4, 5, 6])],
  ["bytes of 8 (heap bytes)", new Uint8Array([0, 1, 2, 3, 4, 5, 6, 7])],
  ["dtype int8x4", dtype("int8x4")],
  ["dtype bfloat16", dtype("bfloat16")],
  ["dtype bool", dtype("bool")],
  ["opaque pointer 0x1234", new rpc.Pointer(0x1234n)],
  ["device cuda:0 of this session", new Device(2, 0)],
];

for (const [name, value] of ECHOED) {
  test(`the client sends ${name} as TVM did, and understands the answer`, async () => {
    await replay([FOUND, `CallFunc echo(${name})`], async (session) => {
      const echo = await session.getFunction("testing.echo");
      assert.deepEqual(await echo(value), value);
    });
  });
}

test("a function that is missing is asked for as TVM did", async () => {
  await replay(["GetGlobalFunc 'no.such.function'"], async (session) => {
    await assert.rejects(session.getFunction("no.such.function"), (error: FunctionNotFoundError) => {
      assert(error instanceof FunctionNotFoundError);
      assert.equal(error.functionName, "no.such.function");
      return true;
    });
  });
});

test("functions are freed, and the session is closed, as TVM did", async () => {
  const transport = await replay([FOUND, FOUND], async (session) => {
    (await session.getFunction("testing.echo")).dispose();
    await session.getFunction("testing.echo"); // takes the free of the first with it
  });
  const [free] = section("FreeHandle of a function").filter(({ fromClient }) => fromClient);
  const code = (frame: Uint8Array) => Buffer.from(frame.subarray(0, 20)).toString("hex"); // without the handle
  assert.deepEqual(transport.frees.map(code), [code(free!.data)]);
  const [goodbye] = section("Shutdown").filter(({ fromClient }) => fromClient);
  assert.deepEqual(transport.shutdown, goodbye!.data);
});

test("memory is allocated and copied as TVM did", async () => {
  const sections = ["alloc (2,3) float32", "copy host -> remote (2,3)", "copy remote -> host (2,3)"];
  await replay(sections, async (session) => {
    const there = await session.empty([2, 3], "float32");
    await there.copyFrom(new Float32Array([0, 1, 2, 3, 4, 5]));
    assert.deepEqual(await there.data(), new Float32Array([0, 1, 2, 3, 4, 5]));
  });
});

test("a tensor is made of an array as TVM did", async () => {
  await replay(["tensor from numpy (3,4) float64"], async (session) => {
    const tensor = await session.tensor(new Float64Array(12).fill(1), [3, 4]);
    assert.deepEqual([tensor.shape, String(tensor.dtype), String(tensor.device)], [[3, 4], "float64", "cpu:0"]);
  });
});

test("devices are asked about as TVM did", async () => {
  await replay(["DevGetAttr exist of a missing device", "DevStreamSync cpu:0"], async (session) => {
    assert.equal(await session.hasDevice("cuda:0"), false);
    await session.sync("cpu:0");
  });
});

test("modules are loaded, asked for functions and timed as TVM did", async () => {
  const sections = [
    "load_module 'addone.so'",
    "module['addone']",
    "RPCTimeEvaluator creation, number=3",
    "module['nofn']",
  ];
  await replay(sections, async (session) => {
    const module = await session.loadModule("addone.so");
    await module.timeEvaluator("addone", { number: 3, repeat: 2 });
    await assert.rejects(module.get("nofn"), FunctionNotFoundError);
  });
});

test("an error of TVM's server has its text, and no kind", async () => {
  const sections = ["alloc on a device that the server lacks"];
  await replay(sections, async (session) => {
    await assert.rejects(session.empty([2], "int8", "cuda:0"), (error: RemoteError) => {
      assert(error instanceof RemoteError);
      assert.equal(error.kind, "");
      return true;
    });
  });
});

test("the first bytes are those of TVM", () => {
  const [hello, answer] = section("connect: handshake");
  assert.deepEqual(greeting("client", "gold"), hello!.data);
  assert.deepEqual(greeting("server", "gold"), answer!.data);
  const refused = section("handshake with a wrong key").find(({ fromClient }) => !fromClient);
  assert.deepEqual(refusal(MISMATCH), refused!.data);
  assert.throws(() => checkAccepted(MISMATCH, "gold"), { name: "KeyMismatchError" });
});

test("the first bytes of TVM are understood", () => {
  const reader = new HandshakeReader();
  reader.feed(section("connect with session_timeout=1")[0]!.data);
  const hello = parseGreeting(reader.next()!.text, "client");
  assert.deepEqual([hello.key, timeoutOf(hello), hello.options.has("portcall")], ["gold", 1, false]);
});
