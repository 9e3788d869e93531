// SPDX-License-Identifier: Apache-2.0
// Frames (docs/wire.md, section 2): length, code, body. No I/O here.

import { RemoteProtocolError } from "../../errors.js";
import type { Writer } from "./bytes.js";
import { MAX_FRAME, POSTED } from "./facts.js";

const LENGTH = 8;
const CODE = 4;

/** Append a frame; `body` writes what comes after its code. `more` bytes follow that are sent by themselves.
 * @throws Error Whatever `body` throws; nothing is appended then. */
export function writeFrame(writer: Writer, code: number, body: (writer: Writer) => void, more = 0): void {
  const start = writer.length;
  try {
    writer.i64(0);
    writer.i32(code);
    body(writer);
  } catch (error) {
    writer.truncate(start);
    throw error;
  }
  writer.setU64(start, writer.length - start - LENGTH + more);
}

/** Append the frame of a posted request, which is not answered. What it gives is named by `target`; 0 names nothing. */
export function writePosted(writer: Writer, code: number, target: bigint, body: (writer: Writer) => void): void {
  writeFrame(writer, code + POSTED, () => {
    writer.i64(target);
    body(writer);
  });
}

export interface FrameHandler {
  /** Return where the body of a frame that begins is to be put, and undefined to have it gathered. */
  place?(code: number, size: number): Uint8Array | undefined;
  /** Take a whole frame. A gathered body is valid during the call, and longer if the bytes that were fed are. */
  frame(code: number, body: Uint8Array): void;
}

/** Finds the frames in bytes that come in any split. A length alone allocates nothing. */
export class FrameReader {
  readonly #handler: FrameHandler;
  readonly #maxFrame: number;
  readonly #head = new Uint8Array(LENGTH + CODE);
  readonly #view = new DataView(this.#head.buffer);
  #headSize = 0;
  #code = 0;
  #size = -1; // of the body; -1 while the head is read
  #filled = 0;
  #target: Uint8Array | undefined;
  #parts: Uint8Array[] = [];

  constructor(handler: FrameHandler, maxFrame = MAX_FRAME) {
    this.#handler = handler;
    this.#maxFrame = maxFrame;
  }

  /** Take bytes.
   * @throws RemoteProtocolError They cannot be frames; the next frame cannot be found any more. */
  feed(chunk: Uint8Array): void {
    let at = 0;
    while (at < chunk.length) at = this.#size < 0 ? this.#feedHead(chunk, at) : this.#feedBody(chunk, at);
  }

  #feedHead(chunk: Uint8Array, at: number): number {
    const wanted = this.#headSize < LENGTH ? LENGTH : LENGTH + CODE;
    const count = Math.min(wanted - this.#headSize, chunk.length - at);
    for (let i = 0; i < count; ++i) this.#head[this.#headSize + i] = chunk[at + i]!;
    this.#headSize += count;
    if (this.#headSize === LENGTH) {
      const length = this.#length();
      if (length === 0) this.#headSize = 0; // a frame that means nothing
      if (length !== 0 && length < CODE) throw new RemoteProtocolError(`a frame has a length of ${length} bytes`);
    } else if (this.#headSize === LENGTH + CODE) {
      this.#begin();
    }
    return at + count;
  }

  #length(): number {
    return this.#view.getUint32(0, true) + this.#view.getUint32(4, true) * 2 ** 32;
  }

  #begin(): void {
    const size = this.#length() - CODE;
    this.#code = this.#view.getInt32(LENGTH, true);
    this.#headSize = 0;
    this.#filled = 0;
    this.#target = this.#handler.place?.(this.#code, size);
    if (!this.#target && size + CODE > this.#maxFrame) {
      throw new RemoteProtocolError(`a frame has ${size + CODE} bytes, more than the limit of ${this.#maxFrame}`);
    }
    this.#size = size;
    if (size === 0) this.#end(this.#target ?? new Uint8Array(0));
  }

  #feedBody(chunk: Uint8Array, at: number): number {
    const count = Math.min(this.#size - this.#filled, chunk.length - at);
    const part = chunk.subarray(at, at + count);
    if (this.#target) this.#target.set(part, this.#filled);
    else if (count === this.#size) {
      this.#end(part); // all of it in one piece: not copied
      return at + count;
    } else this.#parts.push(part);
    this.#filled += count;
    if (this.#filled === this.#size) this.#end(this.#target ?? this.#joined());
    return at + count;
  }

  #joined(): Uint8Array {
    const whole = new Uint8Array(this.#size);
    let at = 0;
    for (const part of this.#parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }

  #end(body: Uint8Array): void {
    this.#size = -1;
    this.#target = undefined;
    this.#parts = [];
    this.#handler.frame(this.#code, body);
  }
}
