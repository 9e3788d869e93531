// SPDX-License-Identifier: Apache-2.0
// Containers and objects by value, between portcall peers (docs/wire.md, section 8): the binary form of portcall.ir, as
// core/ir/binary.h lays it out. No I/O here.

import { Device } from "../../device.js";
import { bytesOf, countOf, DataType, type TypedArray } from "../../dtype.js";
import { RemoteProtocolError } from "../../errors.js";
import { Tensor } from "../../tensor.js";
import { encodeText } from "../../text.js";
import { checkInt64, Float, isInteger } from "../../values.js";
import { Reader, Writer } from "./bytes.js";
import { MOST_DEPTH, MOST_NODES } from "./facts.js";

/** The extents of a tensor, as a value. */
export class Shape {
  readonly extents: readonly number[];

  constructor(extents: readonly number[]) {
    countOf(extents); // checks them
    this.extents = extents;
  }
}

/** An object of a described type: the key of its type, and its fields by name. */
export class DescribedObject {
  constructor(
    readonly typeKey: string,
    readonly fields: Readonly<Record<string, unknown>>,
  ) {}
}

const MAGIC = [0x89, 0x70, 0x63, 0x67, 1]; // "\x89pcg", version 1
const CHECKSUM = 8; // bytes
const MOST_WIDE = 2 ** 27; // bytes of a whole number: V8's BigInt has 2^30 bits at most
const PIECE = 2 ** 15; // bytes of it that become digits at once

const Node = { Array: 0, List: 1, Map: 2, Dict: 3, Tensor: 4, Contents: 5, FirstType: 8 } as const;
const Tag = {
  ...{ None: 0, False: 1, True: 2, Int: 3, Float: 4, Text: 5, Bytes: 6, Node: 7 },
  ...{ WideInt: 8, DataType: 9, Device: 10, Shape: 11 },
} as const;

const MASK = 2n ** 64n - 1n;

/** The hash of bytes of core/ir/hash_bytes.h. */
function hashOf(bytes: Uint8Array): bigint {
  const whole = bytes.length - (bytes.length % 8);
  const view = new DataView(bytes.buffer, bytes.byteOffset, whole);
  let hash = BigInt(bytes.length);
  const mix = (word: bigint) => {
    const product = (hash ^ 0x9e3779b97f4a7c15n) * (word ^ 0xd1b54a32d192ed03n);
    hash = (((product & MASK) ^ (product >> 64n)) + word) & MASK;
  };
  for (let at = 0; at < whole; at += 8) mix(view.getBigUint64(at, true));
  let last = 0n;
  for (let at = bytes.length - 1; at >= whole; --at) last = (last << 8n) | BigInt(bytes[at]!);
  mix(last);
  return hash;
}

// ---- Writing ---------------------------------------------------------------------------------------------------------

/** Whether a value travels by value: an array, a Map, a plain object, a Shape, or an object of a described type. */
export function isContainer(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(value) || value instanceof Map) return true;
  if (value instanceof Shape || value instanceof DescribedObject) return true;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** Return the description of an object of another class; undefined for those without one. */
export type Describe = (value: object) => DescribedObject | undefined;

/** Return the bytes of a container or a described object.
 * @throws TypeError Something in it has no form by value, or it contains itself. */
export function encodeValue(value: object, describe: Describe = () => undefined): Uint8Array {
  const encoder = new Encoder(describe);
  const root = encoder.encode(value, 0);
  const writer = new Writer();
  const types = [...encoder.types];
  writer.u8(types.some(([key]) => !key.startsWith("ffi.")) ? 1 : 0); // whether there are objects of registered types in it
  const start = writer.length;
  for (const byte of MAGIC) writer.u8(byte);
  number(writer, BigInt(types.length));
  for (const [key, { fields }] of types) {
    text(writer, encodeText(key));
    number(writer, BigInt(fields.length));
    for (const name of fields) text(writer, encodeText(name));
  }
  number(writer, BigInt(encoder.count));
  writer.raw(encoder.nodes.bytes());
  encoder.put(writer, root, encoder.count);
  const checksum = hashOf(writer.bytes().subarray(start));
  writer.i64(checksum);
  return writer.bytes();
}

function number(writer: Writer, value: bigint): void {
  let rest = value;
  for (; rest >= 128n; rest >>= 7n) writer.u8(Number(rest & 127n) | 128);
  writer.u8(Number(rest));
}

function signed(writer: Writer, value: number | bigint): void {
  const wide = BigInt(value);
  number(writer, BigInt.asUintN(64, (wide << 1n) ^ (wide >> 63n)));
}

function text(writer: Writer, bytes: Uint8Array): void {
  number(writer, BigInt(bytes.length));
  writer.raw(bytes);
}

/** A value with the number of its node, where it has one. */
type Placed = { readonly node: number } | { readonly value: unknown };

class Encoder {
  readonly nodes = new Writer();
  count = 0;
  readonly types = new Map<string, { readonly number: number; readonly fields: readonly string[] }>();
  readonly #describe: Describe;
  readonly #known = new Map<object, number | undefined>(); // undefined while a container is being written

  constructor(describe: Describe) {
    this.#describe = describe;
  }

  /** Write the node of a value, and those of what is in it. */
  encode(value: unknown, depth: number): Placed {
    if (typeof value !== "object" || value === null || value instanceof Uint8Array || value instanceof Shape) {
      return { value };
    }
    if (value instanceof Float || value instanceof DataType || value instanceof Device) return { value };
    if (this.#known.has(value)) {
      const node = this.#known.get(value);
      if (node === undefined) throw new TypeError("a container contains itself");
      return { node };
    }
    this.#known.set(value, undefined);
    const node = this.#node(value, depth);
    this.#known.set(value, node);
    return { node };
  }

  #node(value: object, depth: number): number {
    if (depth === MOST_DEPTH) throw new TypeError(`more than ${MOST_DEPTH} containers are in each other`);
    if (value instanceof Tensor) return this.#tensor(value);
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      return this.#tensor(new Tensor(value as TypedArray));
    }
    const described = value instanceof DescribedObject ? value : this.#describe(value);
    if (described) return this.#object(described, depth);
    if (!isContainer(value)) {
      throw new TypeError(`a ${(value as object).constructor?.name ?? "object"} cannot be sent by value`);
    }
    const isArray = Array.isArray(value);
    const items: unknown[] = isArray ? value : [...(value instanceof Map ? value : Object.entries(value))].flat(1);
    const placed = items.map((item) => this.encode(item, depth + 1));
    number(this.nodes, BigInt(isArray ? Node.Array : Node.Map));
    number(this.nodes, BigInt(isArray ? items.length : items.length / 2));
    for (const item of placed) this.put(this.nodes, item, this.count);
    this.count += 1;
    return this.count - 1;
  }

  #object({ typeKey, fields }: DescribedObject, depth: number): number {
    let type = this.types.get(typeKey);
    if (!type) {
      type = { number: this.types.size, fields: Object.keys(fields) };
      this.types.set(typeKey, type);
    }
    const names = type.fields;
    if (names.length !== Object.keys(fields).length || names.some((name) => !Object.hasOwn(fields, name))) {
      throw new TypeError(`objects of ${typeKey} have different fields`);
    }
    const placed = names.map((name) => this.encode(fields[name], depth + 1));
    number(this.nodes, BigInt(Node.FirstType + type.number));
    for (const item of placed) this.put(this.nodes, item, this.count);
    this.count += 1;
    return this.count - 1;
  }

  #tensor({ data, shape, dtype }: Tensor): number {
    number(this.nodes, BigInt(Node.Tensor));
    putType(this.nodes, dtype);
    number(this.nodes, BigInt(shape.length));
    for (const extent of shape) signed(this.nodes, extent);
    text(this.nodes, bytesOf(data));
    this.count += 1;
    return this.count - 1;
  }

  /** Write a value, in front of which there are `count` nodes. */
  put(writer: Writer, placed: Placed, count: number): void {
    if ("node" in placed) {
      writer.u8(Tag.Node);
      return number(writer, BigInt(count - placed.node));
    }
    const { value } = placed;
    switch (typeof value) {
      case "undefined":
        return writer.u8(Tag.None);
      case "boolean":
        return writer.u8(value ? Tag.True : Tag.False);
      case "bigint":
        checkInt64(value);
        writer.u8(Tag.Int);
        return signed(writer, value);
      case "number":
        writer.u8(isInteger(value) ? Tag.Int : Tag.Float);
        return isInteger(value) ? signed(writer, value) : writer.f64(value);
      case "string":
        writer.u8(Tag.Text);
        return text(writer, encodeText(value));
      case "object":
        return putObject(writer, value);
    }
    throw new TypeError(`a ${typeof value} cannot be sent`);
  }
}

function putType(writer: Writer, type: DataType): void {
  writer.u8(type.code);
  writer.u8(type.bits);
  writer.u16(type.lanes);
}

function putObject(writer: Writer, value: object | null): void {
  if (value === null) return writer.u8(Tag.None);
  if (value instanceof Float) {
    writer.u8(Tag.Float);
    writer.f64(value.value);
  } else if (value instanceof Uint8Array) {
    writer.u8(Tag.Bytes);
    text(writer, value);
  } else if (value instanceof DataType) {
    writer.u8(Tag.DataType);
    putType(writer, value);
  } else if (value instanceof Device) {
    writer.u8(Tag.Device);
    signed(writer, value.type);
    signed(writer, value.index);
  } else {
    const { extents } = value as Shape;
    writer.u8(Tag.Shape);
    number(writer, BigInt(extents.length));
    for (const extent of extents) signed(writer, extent);
  }
}

// ---- Reading ---------------------------------------------------------------------------------------------------------

/** Return the value of bytes: arrays, Maps, Tensors, Shapes and what `make` makes of objects of described types.
 * @throws RemoteProtocolError The bytes are damaged. */
export function decodeValue(
  bytes: Uint8Array,
  make: (described: DescribedObject) => unknown = (described) => described,
): unknown {
  const form = bytes.subarray(1); // the first byte says whether there are objects of registered types in it
  if (form.length < MAGIC.length + CHECKSUM) throw new RemoteProtocolError("a value ends early");
  const end = form.length - CHECKSUM;
  const content = form.subarray(0, end);
  const checksum = new DataView(form.buffer, form.byteOffset + end).getBigUint64(0, true);
  if (MAGIC.some((byte, i) => form[i] !== byte)) throw new RemoteProtocolError("a value has an unknown form");
  if (hashOf(content) !== checksum) throw new RemoteProtocolError("a value is damaged: its checksum is wrong");
  return new Decoder(content.subarray(MAGIC.length), make).decode();
}

class Decoder {
  readonly #reader: Reader;
  readonly #nodes: unknown[] = [];
  readonly #make: (described: DescribedObject) => unknown;
  #types: { key: string; fields: string[] }[] = [];

  constructor(bytes: Uint8Array, make: (described: DescribedObject) => unknown) {
    this.#reader = new Reader(bytes);
    this.#make = make;
  }

  decode(): unknown {
    const list = <T>(read: () => T): T[] => Array.from({ length: this.#count() }, read);
    this.#types = list(() => ({ key: this.#text(), fields: list(() => this.#text()) }));
    const count = this.#count(MOST_NODES);
    for (let i = 0; i < count; ++i) this.#nodes.push(this.#node());
    const root = this.#value();
    this.#reader.expectEnd();
    return root;
  }

  #number(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.#reader.u8();
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw new RemoteProtocolError("a value has a number that is too long");
  }

  /** A number of things, each of which has a byte at least. */
  #count(most = Number.POSITIVE_INFINITY): number {
    const value = this.#number();
    if (value > BigInt(this.#reader.left) || Number(value) > most) {
      throw new RemoteProtocolError(`a value claims ${value} items in ${this.#reader.left} bytes`);
    }
    return Number(value);
  }

  #signed(): number | bigint {
    const folded = this.#number();
    const value = BigInt.asIntN(64, (folded >> 1n) ^ -(folded & 1n));
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  #bytes(): Uint8Array {
    return this.#reader.raw(this.#count()).slice();
  }

  #text(): string {
    return new TextDecoder().decode(this.#bytes());
  }

  #extents(): number[] {
    return Array.from({ length: this.#count() }, () => Number(this.#signed()));
  }

  #type(): DataType {
    return new DataType(this.#reader.u8(), this.#reader.u8(), this.#reader.u16());
  }

  #items(into: unknown[]): unknown[] {
    for (let left = this.#count(); left > 0; --left) into.push(this.#value());
    return into;
  }

  #pairs(into: Map<unknown, unknown>): Map<unknown, unknown> {
    for (let left = this.#count(); left > 0; --left) into.set(this.#value(), this.#value());
    return into;
  }

  #node(): unknown {
    const kind = Number(this.#number());
    switch (kind) {
      case Node.Array:
      case Node.List:
        return this.#items([]);
      case Node.Map:
      case Node.Dict:
        return this.#pairs(new Map());
      case Node.Tensor:
        return this.#tensor();
      case Node.Contents: {
        const earlier = this.#back();
        if (Array.isArray(earlier)) return this.#items(earlier);
        if (earlier instanceof Map) return this.#pairs(earlier);
        throw new RemoteProtocolError("a value gives contents to what is no container");
      }
    }
    const type = this.#types[kind - Node.FirstType];
    if (!type) throw new RemoteProtocolError(`a value has a node of the unknown kind ${kind}`);
    const fields = Object.fromEntries(type.fields.map((name) => [name, this.#value()]));
    return this.#make(new DescribedObject(type.key, fields));
  }

  #back(): unknown {
    const at = this.#nodes.length - Number(this.#number());
    if (!(at >= 0 && at < this.#nodes.length))
      throw new RemoteProtocolError("a value refers to a node that is not there");
    return this.#nodes[at];
  }

  #tensor(): Tensor {
    const type = this.#type();
    const shape = this.#extents();
    const content = this.#bytes();
    const Class = type.arrayClass;
    try {
      return new Tensor(new Class(content.buffer, 0, content.length / Class.BYTES_PER_ELEMENT), shape, type);
    } catch (error) {
      throw new RemoteProtocolError(`a value has a tensor that is damaged: ${(error as Error).message}`);
    }
  }

  #value(): unknown {
    const tag = this.#reader.u8();
    switch (tag) {
      case Tag.None:
        return null;
      case Tag.False:
      case Tag.True:
        return tag === Tag.True;
      case Tag.Int:
        return this.#signed();
      case Tag.Float:
        return this.#reader.f64();
      case Tag.Text:
        return this.#text();
      case Tag.Bytes:
        return this.#bytes();
      case Tag.Node:
        return this.#back();
      case Tag.WideInt:
        return wideInt(this.#bytes());
      case Tag.DataType:
        return this.#type();
      case Tag.Device:
        return new Device(Number(this.#signed()), Number(this.#signed()));
      case Tag.Shape:
        return this.#shape();
    }
    throw new RemoteProtocolError(`a value has the unknown tag ${tag}`);
  }

  #shape(): Shape {
    try {
      return new Shape(this.#extents());
    } catch (error) {
      throw new RemoteProtocolError(`a value has a shape that is damaged: ${(error as Error).message}`);
    }
  }
}

/** A whole number of any size: words of 64 bits in two's complement, least significant first.
 * @throws RemoteProtocolError The bytes are no words, or more than a BigInt has. */
export function wideInt(bytes: Uint8Array): number | bigint {
  if (!bytes.length || bytes.length % 8 || bytes.length > MOST_WIDE) {
    throw new RemoteProtocolError(`a value has a whole number of ${bytes.length} bytes`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const pieces = ["0x"]; // a BigInt is made at once, of digits: one that grows word by word is copied for each word
  for (let end = bytes.length; end > 0; end -= PIECE) {
    const words: string[] = [];
    for (let at = end - 8; at >= Math.max(0, end - PIECE); at -= 8) {
      words.push(view.getBigUint64(at, true).toString(16).padStart(16, "0"));
    }
    pieces.push(words.join(""));
  }
  try {
    const value = BigInt.asIntN(8 * bytes.length, BigInt(pieces.join("")));
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  } catch {
    throw new RemoteProtocolError(`a value has a whole number of ${bytes.length} bytes, more than a BigInt has here`);
  }
}
