// SPDX-License-Identifier: Apache-2.0
// Tensors in the memory of core.wasm: how they are made and read.

import { Device } from "../device.js";
import { countOf, DataType } from "../dtype.js";
import { BODY, DLTENSOR } from "./layout.js";
import type { CoreMemory } from "./memory.js";

/** Make a tensor object, uninitialised, and return its handle. `check` throws for a status that is an error. */
export function allocTensor(
  memory: CoreMemory,
  check: (status: number) => void,
  shape: readonly number[],
  type: DataType,
  on: Device,
): number {
  countOf(shape);
  const place = memory.allocate(DLTENSOR.SIZE + 8 * shape.length + 8);
  const { view } = memory;
  memory.bytes.fill(0, place, place + DLTENSOR.SIZE);
  view.setInt32(place + DLTENSOR.DEVICE_TYPE, on.type, true);
  view.setInt32(place + DLTENSOR.DEVICE_INDEX, on.index, true);
  view.setInt32(place + DLTENSOR.DIMENSIONS, shape.length, true);
  view.setUint8(place + DLTENSOR.CODE, type.code);
  view.setUint8(place + DLTENSOR.BITS, type.bits);
  view.setUint16(place + DLTENSOR.LANES, type.lanes, true);
  const extents = place + DLTENSOR.SIZE;
  view.setUint32(place + DLTENSOR.SHAPE, extents, true);
  for (const [i, extent] of shape.entries()) view.setBigInt64(extents + 8 * i, BigInt(extent), true);
  const out = extents + 8 * shape.length;
  const status = memory.exports.PortcallTensorAlloc(place, out);
  const handle = memory.words[out >> 2]! >>> 0;
  memory.free(place);
  check(status);
  return handle;
}

/** Return shape and type of a tensor object. */
export function describeTensor({ view }: CoreMemory, handle: number): { shape: number[]; dtype: DataType } {
  const tensor = handle + BODY;
  const extents = view.getUint32(tensor + DLTENSOR.SHAPE, true);
  const [code, bits] = [view.getUint8(tensor + DLTENSOR.CODE), view.getUint8(tensor + DLTENSOR.BITS)];
  const shape = Array.from({ length: view.getInt32(tensor + DLTENSOR.DIMENSIONS, true) }, (_, i) =>
    Number(view.getBigInt64(extents + 8 * i, true)),
  );
  return { shape, dtype: new DataType(code, bits, view.getUint16(tensor + DLTENSOR.LANES, true)) };
}

/** Where a tensor's elements are: its device, what that calls the memory, and bytes from there. */
export interface Place {
  readonly device: Device;
  readonly data: number;
  readonly offset: number;
}

/** Return where the elements of a tensor object are. */
export function placeOfTensor({ view }: CoreMemory, handle: number): Place {
  const tensor = handle + BODY;
  const type = view.getInt32(tensor + DLTENSOR.DEVICE_TYPE, true);
  return {
    device: new Device(type, view.getInt32(tensor + DLTENSOR.DEVICE_INDEX, true)),
    data: view.getUint32(tensor + DLTENSOR.DATA, true),
    offset: Number(view.getBigUint64(tensor + DLTENSOR.OFFSET, true)),
  };
}
