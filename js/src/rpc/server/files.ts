// SPDX-License-Identifier: Apache-2.0
// The files of a session, in memory: functions that its client calls by name (docs/wire.md, section 7).

import { CoreTensor } from "../../core/objects.js";
import { bytesOf } from "../../dtype.js";
import { encodeText } from "../../text.js";
import { toHex } from "../wire/handshake.js";
import { ServedError } from "./error_text.js";
import type { ServedFunction } from "./functions.js";

const MOST_FILES = 10_000;

/** Bytes that a session may use, for memory and files. */
export class MemoryBudget {
  #files = 0;
  readonly #limit: number;
  readonly #memory: () => number;

  /** `memory` says how many bytes the session has beside its files. */
  constructor(limit: number, memory: () => number) {
    this.#limit = limit;
    this.#memory = memory;
  }

  /** Count bytes of files.
   * @throws ServedError They are over the limit. */
  take(nbytes: number): void {
    const used = this.#files + this.#memory();
    if (used + nbytes > this.#limit) {
      const text = `the session has ${used} bytes; ${nbytes} more are over the limit of ${this.#limit} bytes`;
      throw new ServedError("MemoryError", text);
    }
    this.#files += nbytes;
  }

  give(nbytes: number): void {
    this.#files -= nbytes;
  }
}

export class Files {
  readonly #budget: MemoryBudget;
  readonly #files = new Map<string, Uint8Array>();

  constructor(budget: MemoryBudget) {
    this.#budget = budget;
  }

  /** The functions by their names. */
  functions(): [string, ServedFunction][] {
    return [
      ["tvm.rpc.server.upload", (path, data) => void this.write(path, 0, data)],
      ["tvm.rpc.server.download", (path) => this.get(path)],
      ["tvm.rpc.server.remove", (path) => this.remove(path)],
      ["tvm.rpc.server.listdir", (path = "") => this.list(path)],
      ["tvm.rpc.server.workpath", (path = "") => `/${normalized(path)}`],
      ["portcall.rpc.file_write", (path, offset, data) => this.write(path, offset, data)],
      ["portcall.rpc.file_read", (path, offset, most) => this.read(path, offset, most)],
      ["portcall.rpc.file_fill", (path, offset, tensor) => this.fill(path, offset, tensor)],
      ["portcall.rpc.file_size", (path) => this.get(path).length],
      ["portcall.rpc.file_digest", async (path) => this.digest(path)],
    ];
  }

  /** Return the bytes of a file.
   * @throws ServedError There is no such file. */
  get(path: unknown): Uint8Array {
    const found = this.#files.get(normalized(path));
    if (!found) throw new ServedError("FileNotFoundError", `cannot find file '${path}' in the session's memory`);
    return found;
  }

  /** Append a piece, which begins where the file ends; a piece at 0 begins a new file. */
  write(path: unknown, offset: unknown, data: unknown): number {
    const name = normalized(path);
    const piece = contentOf(data);
    if (!name) throw new ServedError("IsADirectoryError", "this is the session's directory, not a file in it");
    const old = this.#files.get(name);
    const size = old?.length ?? 0;
    if (offset !== 0 && offset !== size) {
      throw new ServedError("ValueError", `'${name}' has ${size} bytes; the next piece begins there, not at ${offset}`);
    }
    if (!old && this.#files.size >= MOST_FILES) throw new ServedError("OSError", `there are ${MOST_FILES} files`);
    this.#budget.take(piece.length);
    if (offset === 0) {
      this.#budget.give(size);
      this.#files.set(name, piece.slice());
      return piece.length;
    }
    this.#files.set(name, appended(old!, piece));
    return size + piece.length;
  }

  read(path: unknown, offset: unknown, most: unknown): Uint8Array {
    const file = this.get(path);
    return file.subarray(index(offset), index(offset) + index(most));
  }

  fill(path: unknown, offset: unknown, target: unknown): number {
    if (!(target instanceof CoreTensor)) throw new TypeError("what to fill is a tensor");
    const bytes = bytesOf(target.data);
    const part = this.read(path, offset, bytes.length);
    bytes.set(part);
    return part.length;
  }

  remove(path: unknown): void {
    const name = normalized(path);
    this.#budget.give(this.#files.get(name)?.length ?? 0);
    this.#files.delete(name);
  }

  list(path: unknown): string {
    const folder = normalized(path);
    const start = folder ? `${folder}/` : "";
    const names = [...this.#files.keys()].filter((name) => name.startsWith(start));
    return [...new Set(names.map((name) => name.slice(start.length).split("/")[0]))].sort().join(",");
  }

  async digest(path: unknown): Promise<string> {
    const bytes = this.get(path) as Uint8Array<ArrayBuffer>;
    return toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
  }
}

function index(value: unknown): number {
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
    throw new RangeError(`invalid offset or number of bytes ${value}`);
  }
  return value;
}

/** Return a path without what means nothing.
 * @throws ServedError It may lead outside. */
function normalized(path: unknown): string {
  if (typeof path !== "string") throw new TypeError("a path is text");
  const steps = path.split("/").filter((step) => step && step !== ".");
  if (steps.includes("..")) {
    throw new ServedError("PermissionError", `'${path}' may lead outside of the session's directory: leave out '..'`);
  }
  return steps.join("/");
}

function contentOf(data: unknown): Uint8Array {
  if (data instanceof Uint8Array) return data;
  if (data instanceof CoreTensor) return bytesOf(data.data);
  if (typeof data === "string") return encodeText(data); // some clients make text of bytes
  throw new TypeError("the contents of a file are bytes or a tensor");
}

/** Return a file with a piece after it, in memory that has room for more pieces. */
function appended(file: Uint8Array, piece: Uint8Array): Uint8Array {
  const size = file.length + piece.length;
  let { buffer } = file;
  if (file.byteOffset || size > buffer.byteLength) {
    buffer = new ArrayBuffer(Math.max(size, 2 * file.length));
    new Uint8Array(buffer).set(file);
  }
  const whole = new Uint8Array(buffer, 0, size);
  whole.set(piece, file.length);
  return whole;
}
