// SPDX-License-Identifier: Apache-2.0
// What cells of the core and values on the wire have in common (docs/abi.md): type indices, and which numbers are integers.

/** A whole number that must arrive as a float: `new Float(2)`. */
export class Float {
  constructor(readonly value: number) {}
}

/** The type indices of values. */
export const TypeIndex = {
  None: 0,
  Int: 1,
  Bool: 2,
  Float: 3,
  Pointer: 4,
  DataType: 5,
  Device: 6,
  TensorView: 7,
  RawText: 8,
  RawBytes: 9,
  SmallText: 11,
  SmallBytes: 12,
  Object: 64,
  Text: 65,
  Bytes: 66,
  Function: 68,
  Shape: 69,
  Tensor: 70,
  Array: 71,
  Map: 72,
  Module: 73,
  List: 75,
  Dict: 76,
  FirstDynamic: 128,
} as const;

export const SMALL = 7; // bytes of text that lie in the cell of a value itself

/** Whether a number is passed as an integer: a whole one of up to 53 bits, but not -0. */
export function isInteger(value: number): boolean {
  return Number.isSafeInteger(value) && !Object.is(value, -0);
}

/** @throws RangeError The integer has more than 64 bits. */
export function checkInt64(value: bigint): void {
  if (BigInt.asIntN(64, value) === value) return;
  const short = BigInt.asIntN(256, value) === value; // digits of a long one take long
  throw new RangeError(`${short ? value : "a whole number of more than 256 bits"} does not fit 64 bits`);
}
