// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, by the names of the Python package: `float32`, `bfloat16`, `float8_e4m3fn`, `int8x4`.

import { checkArray, checkText, got } from "./check.js";

const CODES: Record<string, number> = { int: 0, uint: 1, float: 2, handle: 3, bfloat: 4, complex: 5, bool: 6 };
// Names that hold their bits: code and bits.
const NAMED = new Map<string, readonly [number, number]>(
  Object.entries({
    bool: [6, 8],
    float8_e3m4: [7, 8],
    float8_e4m3: [8, 8],
    float8_e4m3b11fnuz: [9, 8],
    float8_e4m3fn: [10, 8],
    float8_e4m3fnuz: [11, 8],
    float8_e5m2: [12, 8],
    float8_e5m2fnuz: [13, 8],
    float8_e8m0fnu: [14, 8],
    float6_e2m3fn: [15, 6],
    float6_e3m2fn: [16, 6],
    float4_e2m1fn: [17, 4],
  }),
);
const NAMES = new Map([...NAMED].map(([name, [code, bits]]) => [`${code}:${bits}`, name]));
const LONGEST = 65535; // lanes, and bits have 8 bits on the wire

export type TypedArray =
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | Float32Array
  | Float64Array
  | BigInt64Array
  | BigUint64Array;
export type TypedArrayClass = {
  new (buffer: ArrayBufferLike, byteOffset?: number, length?: number): TypedArray;
  readonly BYTES_PER_ELEMENT: number;
};

const ARRAYS: Record<string, TypedArrayClass> = {
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  bool: Uint8Array,
};

/** An element type: `code` as DLPack numbers it, `bits` and `lanes`. */
export class DataType {
  constructor(
    readonly code: number,
    readonly bits: number,
    readonly lanes = 1,
  ) {}

  /** Bytes of one element, rounded up for types below a byte. */
  get itemSize(): number {
    return Math.ceil((this.bits * this.lanes) / 8);
  }

  /** The typed array that shows such elements: raw 16-bit numbers for float16 and bfloat16, raw bytes for others that
   * JavaScript does not have. */
  get arrayClass(): TypedArrayClass {
    return ARRAYS[this.toString()] ?? Uint8Array;
  }

  /** Bytes of that many elements. */
  bytesOf(count: number): number {
    return Math.ceil((count * this.bits * this.lanes) / 8);
  }

  equals(other: DataType): boolean {
    return this.code === other.code && this.bits === other.bits && this.lanes === other.lanes;
  }

  toString(): string {
    const named = NAMES.get(`${this.code}:${this.bits}`);
    const base = Object.keys(CODES).find((name) => CODES[name] === this.code) ?? `type${this.code}_`;
    return `${named ?? `${base}${this.bits}`}${this.lanes === 1 ? "" : `x${this.lanes}`}`;
  }
}

/** Return the element type of a name, such as `float32` or `int8x4`.
 * @throws TypeError The text names no type. */
export function dtype(name: string | DataType): DataType {
  if (name instanceof DataType) return name;
  const [, base = "", lanesText = ""] = /^(.*?)(?:x([1-9]\d*))?$/.exec(checkText(name, "a data type")) ?? [];
  const lanes = lanesText ? Number(lanesText) : 1;
  const named = NAMED.get(base);
  if (named && lanes <= LONGEST) return new DataType(named[0], named[1], lanes);
  const plain = /^(int|uint|float|handle|bfloat|complex)([1-9]\d*)$/.exec(base);
  if (plain && Number(plain[2]) < 256 && lanes <= LONGEST) {
    return new DataType(CODES[plain[1]!]!, Number(plain[2]), lanes);
  }
  throw new TypeError(`invalid data type '${name}' (such as float32, int8, bool, bfloat16)`);
}

/** Return the element type of a typed array.
 * @throws TypeError Tensors have no such arrays. */
export function dtypeOf(array: TypedArray): DataType {
  for (const [name, cls] of Object.entries(ARRAYS)) if (array instanceof (cls as never)) return dtype(name);
  throw new TypeError(`the data of a tensor must be a typed array, got ${got(array)}`);
}

/** Whether tensors have such elements as a view shows. */
export function isElements(view: ArrayBufferView): view is TypedArray {
  return Object.values(ARRAYS).some((cls) => view instanceof (cls as never));
}

/** Return how many elements a shape has.
 * @throws RangeError An extent is negative or not a whole number, or the number is too large. */
export function countOf(shape: readonly number[]): number {
  let count = 1;
  for (const extent of checkArray(shape, "a shape")) {
    if (!Number.isSafeInteger(extent) || extent < 0) throw new RangeError(`invalid extent in a shape: ${got(extent)}`);
    count *= extent;
  }
  if (!Number.isSafeInteger(count)) throw new RangeError(`a tensor of shape [${shape}] is too large`);
  return count;
}

/** Return the bytes of a view on memory, without a copy. */
export function bytesOf(view: ArrayBufferView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}
