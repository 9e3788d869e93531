// SPDX-License-Identifier: Apache-2.0
// Numbers, text and bytes, little-endian, as they lie on the wire. No I/O here.

import { RemoteProtocolError } from "../../errors.js";

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const HIGH = 2 ** 32;
const MOST_HIGH = 2 ** 21; // a number with this in its upper half, or more, is not exact as a double

/** Return the text of UTF-8, with U+FFFD for invalid bytes: for messages to people. */
export function decodeLeniently(bytes: Uint8Array): string {
  return lenient.decode(bytes);
}

/** Appends numbers, text and bytes to a buffer that grows. */
export class Writer {
  #bytes: Uint8Array;
  #view: DataView;
  #length = 0;

  constructor(capacity = 256) {
    this.#bytes = new Uint8Array(capacity);
    this.#view = new DataView(this.#bytes.buffer);
  }

  get length(): number {
    return this.#length;
  }

  /** Return what was written; the memory is that of the writer. */
  bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Return where the next `count` bytes go; this may replace the buffer and its view. */
  #room(count: number): number {
    const at = this.#length;
    this.#length = at + count;
    if (this.#length > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(2 * this.#bytes.length, this.#length));
      grown.set(this.#bytes.subarray(0, at));
      this.#bytes = grown;
      this.#view = new DataView(grown.buffer);
    }
    return at;
  }

  u8(value: number): void {
    const at = this.#room(1);
    this.#view.setUint8(at, value);
  }
  u16(value: number): void {
    const at = this.#room(2);
    this.#view.setUint16(at, value, true);
  }
  i32(value: number): void {
    const at = this.#room(4);
    this.#view.setInt32(at, value, true);
  }
  f64(value: number): void {
    const at = this.#room(8);
    this.#view.setFloat64(at, value, true);
  }
  /** Write 64 bits, of a whole number that a double has exactly, or of a BigInt, signed or not. */
  i64(value: number | bigint): void {
    const at = this.#room(8);
    if (typeof value === "bigint") return this.#view.setBigInt64(at, BigInt.asIntN(64, value), true);
    this.#view.setUint32(at, value % HIGH, true); // the remainder keeps the sign, and so do the low bits of it
    this.#view.setInt32(at + 4, Math.floor(value / HIGH), true);
  }
  raw(bytes: Uint8Array): void {
    const at = this.#room(bytes.length);
    this.#bytes.set(bytes, at);
  }
  /** Write a length and that many bytes. */
  counted(bytes: Uint8Array): void {
    this.i64(bytes.length);
    this.raw(bytes);
  }
  /** Forget all but the first `length` bytes. */
  truncate(length: number): void {
    this.#length = length;
  }
  /** Overwrite 64 bits that were written before. */
  setU64(at: number, value: number): void {
    this.#view.setUint32(at, value % HIGH, true);
    this.#view.setUint32(at + 4, Math.floor(value / HIGH), true);
  }
}

/** Reads numbers, text and bytes. Whatever the bytes are, it gives values or throws RemoteProtocolError. */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get left(): number {
    return this.#bytes.length - this.#at;
  }

  #take(count: number): number {
    if (count > this.left) throw new RemoteProtocolError("a message ends in the middle of a value");
    const at = this.#at;
    this.#at = at + count;
    return at;
  }

  u8(): number {
    return this.#view.getUint8(this.#take(1));
  }
  u16(): number {
    return this.#view.getUint16(this.#take(2), true);
  }
  i32(): number {
    return this.#view.getInt32(this.#take(4), true);
  }
  f64(): number {
    return this.#view.getFloat64(this.#take(8), true);
  }
  u64(): bigint {
    return this.#view.getBigUint64(this.#take(8), true);
  }
  /** Read a signed number: a BigInt where a double is not exact. */
  i64(): number | bigint {
    const at = this.#take(8);
    const low = this.#view.getUint32(at, true);
    const high = this.#view.getInt32(at + 4, true);
    if (high >= -MOST_HIGH && high < MOST_HIGH) {
      const value = high * HIGH + low;
      if (Number.isSafeInteger(value)) return value;
    }
    return this.#view.getBigInt64(at, true);
  }
  /** Read a length, an extent or an offset.
   * @throws RemoteProtocolError It is larger than any that can be meant. */
  size(): number {
    const value = this.u64();
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new RemoteProtocolError(`a message has a size of ${value}`);
    return Number(value);
  }
  /** Return that many bytes, which stay where they are. */
  raw(count: number): Uint8Array {
    const at = this.#take(count);
    return this.#bytes.subarray(at, at + count);
  }
  /** Read a length and that many bytes. */
  counted(): Uint8Array {
    return this.raw(this.size());
  }
  text(): string {
    const bytes = this.counted();
    try {
      return strict.decode(bytes);
    } catch {
      throw new RemoteProtocolError("a message has text that is not UTF-8");
    }
  }
  expectEnd(): void {
    if (this.left) throw new RemoteProtocolError(`a message has ${this.left} bytes too many`);
  }
}
