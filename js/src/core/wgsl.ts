// SPDX-License-Identifier: Apache-2.0
// Modules of kind "webgpu", which TVM's compiler embeds in libraries: kernels in WGSL, and what launches them.
//
//   payload  map of INFO, map of text: one source a kernel
//   INFO     text name, list of argument types (code u8, bits u8, lanes u16), list of launch parameters (text), and since
//            TVM 0.21 a list of u32, one an argument or empty
//
// A text is a u64 length and its bytes, a list or a map a u64 count and its items or pairs; numbers are little-endian.

import { ModuleLoadError } from "../errors.js";

/** How a kernel takes an argument: as a buffer, or as a number of 32 bits. */
export type Argument = "buffer" | "int32" | "uint32" | "float32";

/** A kernel of a module. */
export interface Kernel {
  readonly name: string;
  /** Its source in WGSL. */
  readonly code: string;
  readonly args: readonly Argument[];
  /** What each value after the arguments sets: 0 to 2 the grid's x, y and z; 3 to 5, those of a group, are in the source. */
  readonly extents: readonly number[];
  /** Whether the kernel writes a buffer, in the order of the buffers. */
  readonly writes: readonly boolean[];
}

const NUMBERS: Record<number, Argument> = { 0: "int32", 1: "uint32", 2: "float32" }; // by DLPack's code
const POINTER = 3; // DLPack's code
const WRITES = "paramWriteAccess:";

class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get done(): boolean {
    return this.#at === this.#bytes.length;
  }
  skip(nbytes: number): number {
    const start = this.#at;
    if (nbytes > this.#bytes.length - start) throw new RangeError("a length goes past the end");
    this.#at += nbytes;
    return start;
  }
  count(): number {
    return Number(this.#view.getBigUint64(this.skip(8), true));
  }
  text(): string {
    const size = this.count();
    const start = this.skip(size);
    return new TextDecoder().decode(this.#bytes.subarray(start, start + size));
  }
  list<T>(item: () => T): T[] {
    const items: T[] = [];
    for (let n = this.count(); n > 0; --n) items.push(item()); // a wrong count ends with the bytes
    return items;
  }
  /** A data type of DLPack: code, bits, lanes. */
  type(): [number, number, number] {
    const start = this.skip(4);
    return [this.#view.getUint8(start), this.#view.getUint8(start + 1), this.#view.getUint16(start + 2, true)];
  }
}

/** Read the kernels of a module.
 * @throws ModuleLoadError The bytes are damaged, or a kernel cannot be launched. */
export function readKernels(bytes: Uint8Array): Kernel[] {
  // The bytes do not say whether there are tags; one of the two readings ends with them.
  const { infos, sources } = readParts(bytes, true) ?? readParts(bytes, false) ?? fail("is damaged");
  return infos.map((info) => kernelOf(info, sources.get(info.name)));
}

function fail(text: string): never {
  throw new ModuleLoadError(`the module of WebGPU's kernels ${text}`);
}

interface Info {
  readonly name: string;
  readonly types: [number, number, number][];
  readonly parameters: string[];
}

function readParts(bytes: Uint8Array, tagged: boolean): { infos: Info[]; sources: Map<string, string> } | undefined {
  const reader = new Reader(bytes);
  try {
    const infos = reader.list(() => readInfo(reader, tagged));
    const sources = new Map(reader.list(() => [reader.text(), reader.text()] as const));
    return reader.done ? { infos, sources } : undefined;
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

function readInfo(reader: Reader, tagged: boolean): Info {
  const name = reader.text();
  reader.text(); // the name again
  const info = { name, types: reader.list(() => reader.type()), parameters: reader.list(() => reader.text()) };
  const tags = tagged ? reader.list(() => reader.skip(4)).length : 0;
  if (tags && tags !== info.types.length) throw new RangeError("other tags");
  return info;
}

function kernelOf({ name, types, parameters }: Info, code: string | undefined): Kernel {
  if (code === undefined) fail(`has no source of '${name}'`);
  const args = types.map(([kind, bits, lanes]) => {
    const argument = kind === POINTER ? "buffer" : bits === 32 ? NUMBERS[kind] : undefined;
    if (argument && lanes === 1) return argument;
    return fail(`cannot be launched: '${name}' takes an argument of type (${kind}, ${bits}, ${lanes})`);
  });
  const extents: number[] = [];
  let writes: boolean[] = [];
  for (const parameter of parameters) {
    const [, index, axis] = /^(blockIdx|threadIdx)\.([xyz])$/.exec(parameter) ?? [];
    if (axis) extents.push("xyz".indexOf(axis) + (index === "threadIdx" ? 3 : 0));
    else if (parameter.startsWith(WRITES)) writes = readWrites(parameter.slice(WRITES.length));
    else fail(`cannot be launched: '${name}' has the unknown launch parameter '${parameter}'`);
  }
  return { name, code, args, extents, writes };
}

function readWrites(text: string): boolean[] {
  if (!/^\[([01],?)*\]$/.test(text)) fail(`has an invalid ${WRITES}${text}`);
  return [...text.matchAll(/[01]/g)].map(([digit]) => digit === "1");
}
