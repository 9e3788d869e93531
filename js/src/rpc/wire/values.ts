// SPDX-License-Identifier: Apache-2.0
// Values as they lie on the wire: sequences of type index and payload (docs/wire.md, section 3). No I/O here.

import { Device } from "../../device.js";
import { DataType } from "../../dtype.js";
import { RemoteProtocolError } from "../../errors.js";
import { encodeText } from "../../text.js";
import { Float } from "../../values.js";
import type { Reader, Writer } from "./bytes.js";

export const MAX_DIMENSIONS = 64;
export const MAX_VALUES = 1 << 20;

/** The type indices of values. */
export const Index = {
  None: 0,
  Int: 1,
  Bool: 2,
  Float: 3,
  Pointer: 4,
  DataType: 5,
  Device: 6,
  TensorView: 7,
  Text: 8,
  Bytes: 9,
  SmallText: 11,
  SmallBytes: 12,
  Object: 64,
  LongText: 65,
  LongBytes: 66,
  Function: 68,
  Tensor: 70,
  Module: 73,
  RemoteObject: 115,
} as const;

const SMALL = 7; // bytes of text that lie in the cell of a value itself
const MIN_INT = -(2n ** 63n);
const MAX_INT = 2n ** 63n - 1n;

/** An address that is only passed on. Handles of memory travel so, too. */
export class Pointer {
  constructor(readonly value: bigint) {}
}

/** The handle of a function, a module or an object of the server. */
export class Handle {
  constructor(
    readonly type: typeof Index.Function | typeof Index.Module | typeof Index.RemoteObject,
    readonly value: bigint,
  ) {}
}

/** Memory of the server, as a tensor: compact, since strides do not travel. */
export class WireTensor {
  constructor(
    readonly data: bigint,
    readonly device: Device,
    readonly dtype: DataType,
    readonly shape: readonly number[],
    readonly byteOffset = 0,
  ) {}
}

/** What a sequence holds. Whole numbers beyond 53 bits are read as BigInt; a Float is only written. */
export type WireValue =
  | null
  | undefined
  | boolean
  | number
  | bigint
  | Float
  | string
  | Uint8Array
  | DataType
  | Device
  | Pointer
  | Handle
  | WireTensor;

/** Text and bytes have several forms on the wire; which one is written depends on where. */
export type Form = "request" | "init" | "reply";

export function writeTensor(writer: Writer, tensor: WireTensor): void {
  writer.i64(tensor.data);
  writer.i32(tensor.device.type);
  writer.i32(tensor.device.index);
  writer.i32(tensor.shape.length);
  writer.u8(tensor.dtype.code);
  writer.u8(tensor.dtype.bits);
  writer.u16(tensor.dtype.lanes);
  for (const extent of tensor.shape) writer.i64(extent);
  writer.i64(tensor.byteOffset);
}

export function readTensor(reader: Reader): WireTensor {
  const data = reader.u64();
  const device = new Device(reader.i32(), reader.i32());
  const dimensions = reader.i32();
  if (dimensions < 0 || dimensions > MAX_DIMENSIONS) {
    throw new RemoteProtocolError(`a tensor has ${dimensions} dimensions (at most ${MAX_DIMENSIONS} are allowed)`);
  }
  const type = new DataType(reader.u8(), reader.u8(), reader.u16());
  const shape = Array.from({ length: dimensions }, () => reader.size());
  return new WireTensor(data, device, type, shape, reader.size());
}

function writeWrapped(writer: Writer, small: number, long: number, bytes: Uint8Array): void {
  writer.i32(bytes.length <= SMALL ? small : long);
  writer.i32(long);
  writer.counted(bytes);
}

/** Append one value.
 * @throws RangeError A BigInt outside of 64 bits.
 * @throws TypeError The value is none of those that travel. */
export function writeValue(writer: Writer, value: WireValue, form: Form): void {
  switch (typeof value) {
    case "number":
      if (Number.isSafeInteger(value) && !Object.is(value, -0)) {
        writer.i32(Index.Int);
        return writer.i64(value);
      }
      writer.i32(Index.Float);
      return writer.f64(value);
    case "string": {
      const bytes = encodeText(value);
      if (form === "init") return writeWrapped(writer, Index.SmallText, Index.LongText, bytes);
      writer.i32(Index.Text);
      return writer.counted(bytes);
    }
    case "boolean":
      writer.i32(Index.Bool);
      return writer.i64(value ? 1 : 0);
    case "undefined":
      return writer.i32(Index.None);
    case "bigint":
      if (value < MIN_INT || value > MAX_INT) throw new RangeError(`${value} does not fit 64 bits`);
      writer.i32(Index.Int);
      return writer.i64(value);
    case "object":
      return writeObject(writer, value, form);
  }
  throw new TypeError(`a ${typeof value} cannot be sent`);
}

function writeObject(writer: Writer, value: object | null, form: Form): void {
  if (value === null) return writer.i32(Index.None);
  if (value instanceof Uint8Array) {
    if (form !== "reply") return writeWrapped(writer, Index.SmallBytes, Index.LongBytes, value);
    writer.i32(Index.Bytes);
    return writer.counted(value);
  }
  if (value instanceof WireTensor) {
    writer.i32(Index.TensorView);
    return writeTensor(writer, value);
  }
  if (value instanceof Handle) {
    writer.i32(value.type);
    if (value.type === Index.RemoteObject) writer.i32(Index.RemoteObject);
    return writer.i64(value.value);
  }
  if (value instanceof Pointer) {
    writer.i32(Index.Pointer);
    return writer.i64(value.value);
  }
  if (value instanceof Float) {
    writer.i32(Index.Float);
    return writer.f64(value.value);
  }
  if (value instanceof DataType) {
    writer.i32(Index.DataType);
    writer.u8(value.code);
    writer.u8(value.bits);
    writer.u16(value.lanes);
    return writer.i32(0);
  }
  if (value instanceof Device) {
    writer.i32(Index.Device);
    writer.i32(value.type);
    return writer.i32(value.index);
  }
  throw new TypeError(`a ${value.constructor?.name ?? "object"} cannot be sent`);
}

export function readValue(reader: Reader): WireValue {
  const type = reader.i32();
  switch (type) {
    case Index.None:
      return null;
    case Index.Int:
      return reader.i64();
    case Index.Bool:
      return reader.u64() !== 0n;
    case Index.Float:
      return reader.f64();
    case Index.Pointer:
      return new Pointer(reader.u64());
    case Index.DataType: {
      const value = new DataType(reader.u8(), reader.u8(), reader.u16());
      reader.i32();
      return value;
    }
    case Index.Device:
      return new Device(reader.i32(), reader.i32());
    case Index.TensorView:
      return readTensor(reader);
    case Index.Text:
      return reader.text();
    case Index.Bytes:
      return own(reader.counted());
    case Index.Function:
    case Index.Module:
      return new Handle(type, reader.u64());
    default:
      if (type !== Index.SmallText && type !== Index.SmallBytes && type < Index.Object) {
        throw new RemoteProtocolError(`a message has a value of the unknown type index ${type}`);
      }
      return readWrapped(reader);
  }
}

function readWrapped(reader: Reader): WireValue {
  const inner = reader.i32();
  switch (inner) {
    case Index.LongText:
      return reader.text();
    case Index.LongBytes:
      return own(reader.counted());
    case Index.RemoteObject:
      return new Handle(Index.RemoteObject, reader.u64());
    default:
      throw new RemoteProtocolError(`a message has a wrapped value of the unknown type index ${inner}`);
  }
}

/** Bytes that keep no more than twice their own size in memory. */
function own(bytes: Uint8Array): Uint8Array {
  return 2 * bytes.length < bytes.buffer.byteLength ? bytes.slice() : bytes;
}

export function writeSequence(writer: Writer, values: readonly WireValue[], form: Form): void {
  writer.i32(values.length);
  for (const value of values) writeValue(writer, value, form);
}

export function readSequence(reader: Reader): WireValue[] {
  const count = reader.i32();
  if (count < 0 || count > MAX_VALUES) {
    throw new RemoteProtocolError(`a message has a sequence of ${count} values (at most ${MAX_VALUES} are allowed)`);
  }
  const values: WireValue[] = [];
  for (let i = 0; i < count; ++i) values.push(readValue(reader));
  return values;
}

/** The index that announces a result in an answer to a call. */
export function announcedIndex(value: WireValue): number {
  switch (typeof value) {
    case "number":
      return Number.isSafeInteger(value) && !Object.is(value, -0) ? Index.Int : Index.Float;
    case "bigint":
      return Index.Int;
    case "boolean":
      return Index.Bool;
    case "undefined":
      return Index.None;
    case "string":
      return encodeText(value).length <= SMALL ? Index.SmallText : Index.LongText;
  }
  if (value === null) return Index.None;
  if (value instanceof Uint8Array) return value.length <= SMALL ? Index.SmallBytes : Index.LongBytes;
  if (value instanceof Float) return Index.Float;
  if (value instanceof DataType) return Index.DataType;
  if (value instanceof Device) return Index.Device;
  if (value instanceof Pointer) return Index.Pointer;
  throw new TypeError("a result of this kind has no index of its own");
}
