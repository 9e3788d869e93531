// SPDX-License-Identifier: Apache-2.0
// The vectors of the extensions between portcall peers, which Python makes (portcall.testing.conformance).

import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import fc from "fast-check";
import { RemoteProtocolError } from "../src/errors.js";
import { Tensor } from "../src/index.js";
import { remoteError } from "../src/rpc/client/remote_error.js";
import { DescribedObject, decodeValue, encodeValue, Shape, wideInt } from "../src/rpc/wire/by_value.js";
import { Reader, Writer } from "../src/rpc/wire/bytes.js";
import { Code, type Feature } from "../src/rpc/wire/facts.js";
import { FrameReader } from "../src/rpc/wire/frames.js";
import {
  checkKey,
  commonFeatures,
  fromHex,
  greeting,
  HandshakeReader,
  parseGreeting,
  proof,
  timeoutOf,
  toHex,
} from "../src/rpc/wire/handshake.js";
import { ByValue, readSequence, readValue, writeValue } from "../src/rpc/wire/values.js";
import { ended, PYTHON, start } from "./servers.js";

interface Vector {
  readonly name: string;
  readonly feature: string;
  readonly hex: string;
  readonly meaning: any;
}

let vectors: readonly Vector[];
const named = (name: string) => vectors.filter((vector) => vector.name === name);

before(async () => {
  const program = "import json, sys, portcall.testing as t; print(json.dumps(t.conformance()), flush=True); input()";
  const { process, line } = await start(PYTHON, ["-c", program]);
  vectors = JSON.parse(line);
  process.stdin!.end("\n");
  await ended(process);
});

/** The one frame that the bytes are. */
function frameOf(hex: string): { code: number; body: Uint8Array } {
  const frames: { code: number; body: Uint8Array }[] = [];
  new FrameReader({ frame: (code, body) => void frames.push({ code, body }) }).feed(fromHex(hex));
  assert.equal(frames.length, 1);
  return frames[0]!;
}

/** What a value of JavaScript is in the vectors. */
function meaningOf(value: unknown): unknown {
  if (value instanceof Uint8Array) return { bytes: toHex(value) };
  if (value instanceof Shape) return { shape: value.extents };
  if (value instanceof Tensor) {
    return { dtype: String(value.dtype), shape: value.shape, elements: [...(value.data as Float32Array)] };
  }
  if (Array.isArray(value)) return value.map(meaningOf);
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, item]) => [key, meaningOf(item)]));
  return value;
}

describe("the vectors shared with Python", () => {
  test("of the handshake are what we write and read", async () => {
    const [hello, reply] = [named("hello")[0]!, named("reply")[0]!];
    const { key, features, nonce } = hello.meaning;
    const words: [string, string][] = [
      ["portcall", "1"],
      ["features", features.join(",")],
      ["nonce", nonce],
    ];
    assert.equal(toHex(greeting("client", key, words)), hello.hex);
    const reader = new HandshakeReader();
    reader.feed(fromHex(reply.hex));
    const { options } = parseGreeting(reader.next()!.text, "server");
    assert.deepEqual(options.get("features")?.split(","), reply.meaning.features);
    assert.deepEqual([options.get("session"), options.get("secret")], [reply.meaning.session, reply.meaning.secret]);
    for (const role of ["client", "server"] as const) {
      const { hex, meaning } = named(`proof of the ${role}`)[0]!;
      assert.equal(toHex(await proof(meaning.token, role, [fromHex(meaning.transcript)])), hex);
    }
  });

  test("of times of a session are read, or refused", () => {
    const times = named("time of a session");
    assert(times.length > 10);
    for (const { hex, meaning } of times) {
      const reader = new HandshakeReader();
      reader.feed(fromHex(hex));
      const read = () => timeoutOf(parseGreeting(reader.next()!.text, "client"));
      if (meaning.seconds === null) assert.throws(read, RemoteProtocolError, meaning.text);
      else assert.equal(read(), meaning.seconds);
    }
  });

  test("of keys are sent, or refused, and read", () => {
    const keys = named("key");
    assert(keys.length > 5);
    for (const { hex, meaning } of keys) {
      const reader = new HandshakeReader();
      reader.feed(fromHex(hex));
      const { key } = parseGreeting(reader.next()!.text, "client");
      assert.equal(key === meaning.key, meaning.whole, JSON.stringify(meaning.key));
      if (meaning.whole) assert.equal(checkKey(meaning.key), meaning.key);
      else assert.throws(() => checkKey(meaning.key), TypeError);
    }
  });

  test("of features are those of the same name", () => {
    for (const role of ["client", "server"] as const) {
      const said = named(`features of the ${role}`);
      assert(said.length > 3);
      for (const { hex, meaning } of said) {
        const reader = new HandshakeReader();
        reader.feed(fromHex(hex));
        const all: Feature[] = ["callback", "pipeline", "post", "traceback", "values"];
        assert.deepEqual(commonFeatures(parseGreeting(reader.next()!.text, role), all), meaning.features);
      }
    }
  });

  test("of output and errors are read", () => {
    for (const { hex, meaning } of named("output")) {
      const { code, body } = frameOf(hex);
      const reader = new Reader(body);
      const found = { stream: reader.i32(), dropped: Number(reader.u64()), text: reader.text() };
      assert.deepEqual([code, found], [Code.Output, meaning]);
    }
    const { hex, meaning } = named("exception")[0]!;
    const [text, traceback] = readSequence(new Reader(frameOf(hex).body)) as [string, string];
    const error = remoteError(text, "peer", traceback);
    assert.deepEqual(
      { kind: (error as any).kind, remoteMessage: (error as any).remoteMessage },
      { kind: meaning.class, remoteMessage: meaning.message },
    );
    assert((error as any).remoteTraceback.includes(meaning.frames[0][0]));
  });

  test("of values are read, and written as the same bytes", () => {
    const values = vectors.filter(({ feature }) => feature === "values");
    assert(values.length >= 4);
    for (const { hex, meaning } of values) {
      const wrapped = readValue(new Reader(fromHex(hex)));
      assert(wrapped instanceof ByValue);
      const value = decodeValue(wrapped.bytes);
      assert.deepEqual(meaningOf(value), meaning);
      const writer = new Writer();
      writeValue(writer, new ByValue(encodeValue(value as object)), "request");
      assert.equal(toHex(writer.bytes()), hex);
    }
  });
});

describe("values by value", () => {
  const leaf = fc.oneof(
    fc.constant(null),
    fc.boolean(),
    fc.maxSafeInteger(),
    fc.bigInt({ min: 2n ** 53n, max: 2n ** 63n - 1n }),
    fc.double({ noInteger: true, noNaN: true }),
    fc.string({ unit: "grapheme" }),
    fc.uint8Array({ maxLength: 20 }),
  );
  const { tree } = fc.letrec((tie) => ({
    tree: fc.oneof({ maxDepth: 4 }, leaf, fc.array(tie("tree"), { maxLength: 4 }), pairs(tie("tree"))),
  }));

  function pairs(value: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
    return fc.array(fc.tuple(fc.string(), value), { maxLength: 4 }).map((items) => new Map(items));
  }

  test("come back as they were", () => {
    fc.assert(fc.property(fc.array(tree), (value) => assert.deepEqual(decodeValue(encodeValue(value)), value)));
    const shared = [1];
    const [a, b] = decodeValue(encodeValue([shared, shared])) as [unknown, unknown];
    assert.equal(a, b);
    const point = new DescribedObject("demo.Point", { x: 1, y: [2.5] });
    const line = new DescribedObject("demo.Line", {
      from: point,
      to: new DescribedObject("demo.Point", { x: 0, y: null }),
    });
    assert.deepEqual(decodeValue(encodeValue([line, point])), [line, point]);
    assert.deepEqual([encodeValue(point)[0], encodeValue(shared)[0]], [1, 0]);
    assert.throws(() => encodeValue([point, new DescribedObject("demo.Point", { z: 1 })]), TypeError);
  });

  test("of whole numbers have words of 64 bits, as many as a BigInt takes", () => {
    const words = (value: bigint, count: number) =>
      new Uint8Array(BigUint64Array.from({ length: count }, (_, i) => value >> BigInt(64 * i)).buffer);
    const values = [2n ** 64n, -(2n ** 64n), 2n ** 127n - 1n, -(2n ** 127n), 0x0123456789abcdef0123456789abcdefn];
    for (const value of values) for (const count of [2, 3]) assert.equal(wideInt(words(value, count)), value);
    for (const value of [0, -1, 2 ** 53 - 1]) assert.equal(wideInt(words(BigInt(value), 2)), value);
    assert.equal(wideInt(words(2n ** 63n - 1n, 1)), 2n ** 63n - 1n);
    const large = new Uint8Array(2 ** 20).fill(0xab);
    assert.equal(wideInt(large), BigInt.asIntN(8 * large.length, BigInt(`0x${"ab".repeat(large.length)}`)));
    for (const size of [0, 7, 12, 2 ** 27 + 8]) assert.throws(() => wideInt(new Uint8Array(size)), RemoteProtocolError);
    assert.throws(() => encodeValue([wideInt(large)]), { name: "RangeError", message: /256 bits/ });
  });

  test("that cannot be sent, or are damaged, are errors", () => {
    const circle: unknown[] = [];
    circle.push(circle);
    let deep: unknown[] = [];
    for (let i = 0; i < 600; ++i) deep = [deep];
    for (const value of [circle, deep, [new Date()], [() => 1]]) assert.throws(() => encodeValue(value), TypeError);
    const bytes = encodeValue([[1, "two"], new Map([["a", 1]])]);
    for (let i = 1; i < bytes.length; ++i) {
      const damaged = bytes.slice();
      damaged[i]! ^= 0x55;
      assert.throws(() => decodeValue(damaged), RemoteProtocolError);
      assert.throws(() => decodeValue(bytes.subarray(0, i)), RemoteProtocolError);
    }
  });
});
