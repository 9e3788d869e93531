// SPDX-License-Identifier: Apache-2.0
// The memory of core.wasm: numbers, text and bytes in it.

import { encodeText } from "../text.js";

/** What core.wasm exports: the C ABI (core/include/portcall/c_api.h, core/web/web.h), and what libraries need. */
export interface CoreExports {
  readonly memory: WebAssembly.Memory;
  readonly __indirect_function_table: WebAssembly.Table;
  readonly __stack_pointer: WebAssembly.Global;
  malloc(nbytes: number): number;
  free(address: number): void;
  _initialize?(): void;
  readonly [name: string]: any;
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

export class CoreMemory {
  readonly exports: CoreExports;
  // Views of the memory, made again after it has grown, which leaves views of length 0 behind.
  #view!: DataView;
  #bytes!: Uint8Array;
  #words!: Int32Array;
  #doubles!: Float64Array;

  constructor(exports: CoreExports) {
    this.exports = exports;
    this.#refresh();
  }

  #refresh(): void {
    const { buffer } = this.exports.memory;
    this.#view = new DataView(buffer);
    this.#bytes = new Uint8Array(buffer);
    this.#words = new Int32Array(buffer);
    this.#doubles = new Float64Array(buffer);
  }

  get view(): DataView {
    if (this.#words.length === 0) this.#refresh();
    return this.#view;
  }
  get bytes(): Uint8Array {
    if (this.#words.length === 0) this.#refresh();
    return this.#bytes;
  }
  get words(): Int32Array {
    if (this.#words.length === 0) this.#refresh();
    return this.#words;
  }
  get doubles(): Float64Array {
    if (this.#words.length === 0) this.#refresh();
    return this.#doubles;
  }

  /** Return the address of new memory.
   * @throws RangeError There is none left. */
  allocate(nbytes: number): number {
    const address = this.exports.malloc(Math.max(nbytes, 1)) >>> 0;
    if (!address) throw new RangeError(`the core has no memory left for ${nbytes} bytes`);
    return address;
  }

  free(address: number): void {
    this.exports.free(address);
  }

  /** Return the address of a new TVMFFIByteArray (address, size) over a copy of text or bytes; to be freed. */
  byteArray(content: string | Uint8Array): number {
    const bytes = typeof content === "string" ? encodeText(content) : content;
    const address = this.allocate(8 + bytes.length);
    const { words } = this;
    words[address >> 2] = address + 8;
    words[(address >> 2) + 1] = bytes.length;
    this.bytes.set(bytes, address + 8);
    return address;
  }

  /** Return a copy of what a TVMFFIByteArray shows. */
  contentOf(byteArray: number): Uint8Array {
    const { words } = this;
    const start = words[byteArray >> 2]! >>> 0;
    return this.bytes.slice(start, start + (words[(byteArray >> 2) + 1]! >>> 0));
  }

  /** Return a copy of the text that a TVMFFIByteArray shows. */
  textOf(byteArray: number): string {
    return decoder.decode(this.contentOf(byteArray));
  }

  /** Return text of that many bytes at an address. */
  textAt(address: number, size: number): string {
    return decoder.decode(this.bytes.slice(address, address + size));
  }
}
