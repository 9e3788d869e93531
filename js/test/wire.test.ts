// SPDX-License-Identifier: Apache-2.0
// Bytes and values: all values come back, and no bytes break a reader.

import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { DataType, Device, dtype, RemoteProtocolError } from "../src/index.js";
import { Reader, Writer } from "../src/rpc/wire/bytes.js";
import { REMOTE_OBJECT } from "../src/rpc/wire/facts.js";
import { FrameReader, writeFrame } from "../src/rpc/wire/frames.js";
import {
  checkKey,
  type Greeting,
  greeting,
  HandshakeReader,
  parseGreeting,
  proof,
  sameBytes,
  timeoutOf,
  toHex,
} from "../src/rpc/wire/handshake.js";
import {
  type Form,
  Handle,
  Pointer,
  readSequence,
  WireTensor,
  type WireValue,
  writeSequence,
} from "../src/rpc/wire/values.js";
import { Float, TypeIndex } from "../src/values.js";

const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const i32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const types = fc.record({
  code: fc.integer({ min: 0, max: 255 }),
  bits: fc.integer({ min: 0, max: 255 }),
  lanes: fc.integer({ min: 0, max: 65535 }),
});
const dataTypes = types.map(({ code, bits, lanes }) => new DataType(code, bits, lanes));
const devices = fc.tuple(i32, i32).map(([type, index]) => new Device(type, index));
const tensors = fc
  .tuple(u64, devices, dataTypes, fc.array(fc.maxSafeNat(), { maxLength: 64 }), fc.maxSafeNat())
  .map((parts) => new WireTensor(...parts));
const text = fc.string({ unit: "binary" });
const values: fc.Arbitrary<WireValue> = fc.oneof(
  fc.constant(null),
  fc.boolean(),
  fc.maxSafeInteger(),
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  fc.double(),
  text,
  fc.uint8Array({ maxLength: 40 }),
  dataTypes,
  devices,
  u64.map((value) => new Pointer(value)),
  fc
    .tuple(fc.constantFrom(TypeIndex.Function, TypeIndex.Module, REMOTE_OBJECT), u64)
    .map(([type, value]) => new Handle(type, value)),
  tensors,
);

function encode(sequence: readonly WireValue[], form: Form = "request"): Uint8Array {
  const writer = new Writer();
  writeSequence(writer, sequence, form);
  return writer.bytes();
}

/** What a value is after the journey: whole numbers are BigInts only where a double is not exact. */
function arrived(value: WireValue): WireValue {
  return typeof value === "bigint" && Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

test("every value comes back as it was sent, in each form", () => {
  fc.assert(
    fc.property(fc.array(values), fc.constantFrom<Form>("request", "init"), (sequence, form) => {
      const reader = new Reader(encode(sequence, form));
      assert.deepEqual(readSequence(reader), sequence.map(arrived));
      reader.expectEnd();
    }),
  );
});

test("a Float that is a whole number travels as a float", () => {
  const writer = new Writer();
  for (const part of [1, TypeIndex.Float]) writer.i32(part);
  writer.f64(2);
  assert.deepEqual(encode([new Float(2)]), writer.bytes());
  assert.deepEqual(readSequence(new Reader(encode([new Float(2)]))), [2]);
});

test("a sequence that is cut off anywhere is an error", () => {
  fc.assert(
    fc.property(
      fc.array(values, { minLength: 1 }),
      fc.double({ min: 0, max: 1, maxExcluded: true }),
      (sequence, part) => {
        const bytes = encode(sequence);
        const cut = bytes.subarray(0, Math.floor(part * bytes.length));
        assert.throws(() => readSequence(new Reader(cut)), RemoteProtocolError);
      },
    ),
  );
});

test("any bytes give values or RemoteProtocolError", () => {
  const hostile = fc.oneof(
    fc.uint8Array({ maxLength: 200 }),
    // Bytes that begin well, and differ from a good message in some places.
    fc
      .tuple(
        fc.array(values, { minLength: 1 }),
        fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { maxLength: 4 }),
      )
      .map(([sequence, changes]) => {
        const bytes = encode(sequence).slice();
        for (const [at, value] of changes) bytes[at % bytes.length] = value;
        return bytes;
      }),
  );
  fc.assert(
    fc.property(hostile, (bytes) => {
      try {
        readSequence(new Reader(bytes));
      } catch (error) {
        assert(error instanceof RemoteProtocolError, String(error));
      }
    }),
    { numRuns: 2000 },
  );
});

test("values that do not travel are refused, and leave nothing behind", () => {
  for (const [value, Class] of [
    [2n ** 63n, RangeError],
    ["half of a pair: \ud800", TypeError],
    [Symbol("s"), TypeError],
    [{ plain: "object" }, TypeError],
    [new Date(), TypeError],
  ] as const) {
    const writer = new Writer();
    writer.i32(7);
    assert.throws(() => writeFrame(writer, 3, (frame) => writeSequence(frame, [1, value as never], "request")), Class);
    assert.equal(writer.length, 4);
  }
});

test("frames are found in any split, and empty ones are skipped", () => {
  const frames = fc.array(fc.record({ code: i32, body: fc.uint8Array({ maxLength: 60 }), empty: fc.boolean() }));
  fc.assert(
    fc.property(frames, fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1 }), (sent, splits) => {
      const writer = new Writer();
      for (const { code, body, empty } of sent) {
        if (empty) writer.i64(0);
        writeFrame(writer, code, (frame) => frame.raw(body));
      }
      const got: { code: number; body: Uint8Array }[] = [];
      const reader = new FrameReader({ frame: (code, body) => got.push({ code, body: body.slice() }) });
      const bytes = writer.bytes();
      for (let at = 0, turn = 0; at < bytes.length; ++turn) {
        const next = at + splits[turn % splits.length]!;
        reader.feed(bytes.subarray(at, next));
        at = next;
      }
      assert.deepEqual(
        got,
        sent.map(({ code, body }) => ({ code, body })),
      );
    }),
  );
});

test("a frame that is too short or too long is an error before anything is allocated", () => {
  for (const length of [1n, 3n, 2n ** 31n, 2n ** 62n, 2n ** 64n - 1n]) {
    const head = new Uint8Array(12);
    new DataView(head.buffer).setBigUint64(0, length, true);
    const reader = new FrameReader({ frame: assert.fail });
    assert.throws(() => reader.feed(head), RemoteProtocolError, String(length));
  }
});

test("more values or dimensions than allowed are an error", () => {
  const writer = new Writer();
  writer.i32(2 ** 20 + 1);
  assert.throws(() => readSequence(new Reader(writer.bytes())), RemoteProtocolError);
  const tensor = new WireTensor(
    1n,
    new Device(1),
    dtype("int8"),
    Array.from({ length: 65 }, () => 1),
  );
  assert.throws(() => readSequence(new Reader(encode([tensor]))), RemoteProtocolError);
});

// ---- The handshake -------------------------------------------------------------------------------------------------

test("greetings are found in any split, and what follows stays", () => {
  const words = fc.stringMatching(/^[a-z0-9]{1,10}$/);
  fc.assert(
    fc.property(
      words,
      fc.array(fc.tuple(words, words)),
      fc.uint8Array(),
      fc.integer({ min: 1, max: 9 }),
      (key, options, more, step) => {
        const hello = greeting("client", key, options);
        const reader = new HandshakeReader();
        let found: Greeting | undefined;
        const bytes = new Uint8Array([...hello, ...more]);
        for (let at = 0; at < bytes.length; at += step) {
          reader.feed(bytes.subarray(at, at + step));
          const message = found ? undefined : reader.next();
          if (message) {
            assert.deepEqual(message.bytes, hello);
            found = parseGreeting(message.text, "client");
          }
        }
        assert.deepEqual(found, { key, options: new Map(options) });
        assert.deepEqual(reader.rest, more);
      },
    ),
  );
});

test("peers that do not speak the protocol are refused", () => {
  const cases = ["HTTP/1.1 400 Bad Request", "\x71\xf2\x0f\x00\x00\x00\x00\x00", "\x71\xf2\x0f\x00\xff\xff\xff\x7f"];
  for (const text of cases) {
    const reader = new HandshakeReader();
    reader.feed(Uint8Array.from(text, (character) => character.charCodeAt(0)));
    assert.throws(() => reader.next(), RemoteProtocolError);
  }
  assert.throws(() => parseGreeting(new TextEncoder().encode("server:k"), "client"), RemoteProtocolError);
  assert.throws(() => parseGreeting(new Uint8Array([0xff, 0xfe]), "client"), RemoteProtocolError);
});

test("keys and times that cannot travel are refused", () => {
  for (const key of ["two words", "tab\t", "k".repeat(5000)]) assert.throws(() => checkKey(key), TypeError);
  for (const timeout of ["abc", "-1", "1e12", "inf", "nan"]) {
    assert.throws(() => timeoutOf({ key: "", options: new Map([["timeout", timeout]]) }), RemoteProtocolError);
  }
  assert.equal(timeoutOf({ key: "", options: new Map([["timeout", "2.5"]]) }), 2.5);
});

test("a proof is the HMAC-SHA256 that Python computes", async () => {
  // python: hmac.new("secret ✓".encode(), b"client\0" + b"hello" + b"reply", "sha256").hexdigest()
  const transcript = [new TextEncoder().encode("hello"), new TextEncoder().encode("reply")];
  const expected = "f0d6ebc819b5b40627f2085b309ec78cdc5c42bd9c0732e297f5f093db248548";
  const made = await proof("secret ✓", "client", transcript);
  assert.equal(toHex(made), expected);
  assert(sameBytes(made, made.slice()));
  assert(!sameBytes(made, (await proof("secret ✓", "server", transcript)).slice()));
  assert(!sameBytes(made, new Uint8Array(0)));
});
