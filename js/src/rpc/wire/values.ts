// SPDX-License-Identifier: Apache-2.0
// Values as they lie on the wire: sequences of type index and payload (docs/wire.md, section 3). No I/O here.

import { withArticle } from "../../check.js";
import { Device } from "../../device.js";
import { DataType } from "../../dtype.js";
import { RemoteProtocolError } from "../../errors.js";
import { encodeText } from "../../text.js";
import { checkInt64, Float, isInteger, SMALL, TypeIndex } from "../../values.js";
import type { Reader, Writer } from "./bytes.js";
import { BY_VALUE, MAX_DIMENSIONS, MAX_VALUES, REMOTE_OBJECT } from "./facts.js";

/** Bytes of the frame of a copy in front of the copied ones: code, tensor and size. */
export const copyHeadBytes = (dimensions: number): number => 44 + 8 * dimensions;

/** An address that is only passed on. Handles of memory travel so, too. */
export class Pointer {
  constructor(readonly value: bigint) {}
}

/** The handle of a function, a module or an object of the server. */
export class Handle {
  constructor(
    readonly type: typeof TypeIndex.Function | typeof TypeIndex.Module | typeof REMOTE_OBJECT,
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

/** A container or an object by value, between portcall peers: the bytes of by_value.ts. */
export class ByValue {
  constructor(readonly bytes: Uint8Array) {}
}

/** Values that both sides have. Whole numbers beyond 53 bits are read as BigInt; a Float is only written. */
export type PlainValue =
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
  | Pointer;

/** What a sequence holds. */
export type WireValue = PlainValue | Handle | WireTensor | ByValue;

/** Text has two forms on the wire; which one is written depends on where. */
export type Form = "request" | "init";

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
 * @throws TypeError The value cannot be sent. */
export function writeValue(writer: Writer, value: WireValue, form: Form): void {
  switch (typeof value) {
    case "number":
      if (isInteger(value)) {
        writer.i32(TypeIndex.Int);
        return writer.i64(value);
      }
      writer.i32(TypeIndex.Float);
      return writer.f64(value);
    case "string": {
      const bytes = encodeText(value);
      if (form === "init") return writeWrapped(writer, TypeIndex.SmallText, TypeIndex.Text, bytes);
      writer.i32(TypeIndex.RawText);
      return writer.counted(bytes);
    }
    case "boolean":
      writer.i32(TypeIndex.Bool);
      return writer.i64(value ? 1 : 0);
    case "undefined":
      return writer.i32(TypeIndex.None);
    case "bigint":
      checkInt64(value);
      writer.i32(TypeIndex.Int);
      return writer.i64(value);
    case "object":
      return writeObject(writer, value);
  }
  throw new TypeError(`a ${typeof value} cannot be sent`);
}

function writeObject(writer: Writer, value: object | null): void {
  if (value === null) return writer.i32(TypeIndex.None);
  if (value instanceof Uint8Array) return writeWrapped(writer, TypeIndex.SmallBytes, TypeIndex.Bytes, value);
  if (value instanceof WireTensor) {
    writer.i32(TypeIndex.TensorView);
    return writeTensor(writer, value);
  }
  if (value instanceof Handle) {
    writer.i32(value.type);
    if (value.type === REMOTE_OBJECT) writer.i32(REMOTE_OBJECT);
    return writer.i64(value.value);
  }
  if (value instanceof ByValue) {
    writer.i32(BY_VALUE);
    writer.i32(BY_VALUE);
    return writer.counted(value.bytes);
  }
  if (value instanceof Pointer) {
    writer.i32(TypeIndex.Pointer);
    return writer.i64(value.value);
  }
  if (value instanceof Float) {
    writer.i32(TypeIndex.Float);
    return writer.f64(value.value);
  }
  if (value instanceof DataType) {
    writer.i32(TypeIndex.DataType);
    writer.u8(value.code);
    writer.u8(value.bits);
    writer.u16(value.lanes);
    return writer.i32(0);
  }
  if (value instanceof Device) {
    writer.i32(TypeIndex.Device);
    writer.i32(value.type);
    return writer.i32(value.index);
  }
  throw new TypeError(`${withArticle(value.constructor?.name ?? "object")} cannot be sent`);
}

export function readValue(reader: Reader): WireValue {
  const type = reader.i32();
  switch (type) {
    case TypeIndex.None:
      return null;
    case TypeIndex.Int:
      return reader.i64();
    case TypeIndex.Bool:
      return reader.u64() !== 0n;
    case TypeIndex.Float:
      return reader.f64();
    case TypeIndex.Pointer:
      return new Pointer(reader.u64());
    case TypeIndex.DataType: {
      const value = new DataType(reader.u8(), reader.u8(), reader.u16());
      reader.i32();
      return value;
    }
    case TypeIndex.Device:
      return new Device(reader.i32(), reader.i32());
    case TypeIndex.TensorView:
      return readTensor(reader);
    case TypeIndex.RawText:
      return reader.text();
    case TypeIndex.RawBytes:
      return own(reader.counted());
    case TypeIndex.Function:
    case TypeIndex.Module:
      return new Handle(type, reader.u64());
    default:
      if (type !== TypeIndex.SmallText && type !== TypeIndex.SmallBytes && type < TypeIndex.Object) {
        throw new RemoteProtocolError(`a message has a value of the unknown type index ${type}`);
      }
      return readWrapped(reader);
  }
}

function readWrapped(reader: Reader): WireValue {
  const inner = reader.i32();
  switch (inner) {
    case TypeIndex.Text:
      return reader.text();
    case TypeIndex.Bytes:
      return own(reader.counted());
    case REMOTE_OBJECT:
      return new Handle(REMOTE_OBJECT, reader.u64());
    case BY_VALUE:
      return new ByValue(reader.counted());
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
