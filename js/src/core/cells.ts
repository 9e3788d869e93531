// SPDX-License-Identifier: Apache-2.0
// Values as cells of 16 bytes, which functions of the core take and give: a type index, a size, and a payload.

import { Device } from "../device.js";
import { bytesOf, DataType, type TypedArray } from "../dtype.js";
import { Tensor } from "../tensor.js";
import { checkInt64, Float, isInteger, SMALL, TypeIndex } from "../values.js";
import { BODY, CELL, SEQUENCE } from "./layout.js";
import type { CoreMemory } from "./memory.js";

const DEEPEST = 500; // containers in containers

/** Undoes what a call borrowed: releases references, copies arrays back. */
export type Cleanup = (() => void)[];

/** What cells need to know of the objects of JavaScript. */
export interface Objects {
  /** The handle of an object of the core that `value` stands for; undefined for others. */
  handleOf(value: object): { readonly handle: number; readonly type: number } | undefined;
  /** Make a function object of a function of JavaScript; the reference is the caller's. */
  makeFunction(value: (...args: any[]) => unknown): number;
  /** Make a tensor with the bytes of an array; the reference is the caller's. */
  makeTensor(value: Tensor): { readonly handle: number; readonly bytes: () => Uint8Array };
  /** Make an object of the core that only carries one of JavaScript; the reference is the caller's. */
  makeCarrier(value: object): { readonly handle: number; readonly type: number };
  /** Return what stands for an object; takes the reference over. */
  wrap(handle: number, type: number): unknown;
  check(status: number): void;
}

export class Cells {
  readonly #memory: CoreMemory;
  readonly #objects: Objects;
  #depth = 0; // containers around the value that is written

  constructor(memory: CoreMemory, objects: Objects) {
    this.#memory = memory;
    this.#objects = objects;
  }

  /** Write a value. With `cleanup` the cell borrows what it holds until that has run; without, it owns it. */
  put(at: number, value: unknown, cleanup?: Cleanup): void {
    switch (typeof value) {
      case "number":
        return isInteger(value) ? this.#int(at, value) : this.#float(at, value);
      case "boolean":
        return this.#cell(at, TypeIndex.Bool, value ? 1 : 0);
      case "undefined":
        return this.#cell(at, TypeIndex.None, 0);
      case "bigint":
        checkInt64(value);
        this.#cell(at, TypeIndex.Int, 0);
        return this.#memory.view.setBigInt64(at + 8, value, true);
      case "string":
        return this.#text(at, value, cleanup);
      case "function":
      case "object":
        return value === null ? this.#cell(at, TypeIndex.None, 0) : this.#object(at, value, cleanup);
    }
    throw new TypeError(`a ${typeof value} cannot be passed`);
  }

  #cell(at: number, type: number, payload: number): void {
    const { words } = this.#memory;
    const j = at >> 2;
    words[j] = type;
    words[j + 1] = 0;
    words[j + 2] = payload;
    words[j + 3] = 0;
  }

  #int(at: number, value: number): void {
    const { words } = this.#memory;
    const j = at >> 2;
    words[j] = TypeIndex.Int;
    words[j + 1] = 0;
    words[j + 2] = value; // modulo 2^32
    words[j + 3] = (value | 0) === value ? value >> 31 : Math.floor(value / 2 ** 32);
  }

  #float(at: number, value: number): void {
    this.#cell(at, TypeIndex.Float, 0);
    this.#memory.doubles[(at >> 3) + 1] = value;
  }

  #text(at: number, value: string, cleanup?: Cleanup): void {
    if (value.length <= SMALL && this.#smallAscii(at, value)) return;
    const source = this.#memory.byteArray(value);
    this.#fromByteArray("TVMFFIStringFromByteArray", source, at, cleanup);
  }

  #fromByteArray(make: string, source: number, at: number, cleanup?: Cleanup): void {
    const status: number = this.#memory.exports[make](source, at);
    this.#memory.free(source);
    this.#objects.check(status);
    const { words } = this.#memory;
    if (cleanup && words[at >> 2]! >= TypeIndex.Object) this.#release(words[(at >> 2) + 2]!, cleanup);
  }

  #release(handle: number, cleanup: Cleanup): void {
    cleanup.push(() => this.#memory.exports.TVMFFIObjectDecRef(handle));
  }

  #smallAscii(at: number, value: string): boolean {
    const { bytes } = this.#memory;
    for (let i = 0; i < 8; ++i) {
      const unit = i < value.length ? value.charCodeAt(i) : 0;
      if (unit > 127) return false;
      bytes[at + 8 + i] = unit;
    }
    const { words } = this.#memory;
    words[at >> 2] = TypeIndex.SmallText;
    words[(at >> 2) + 1] = value.length;
    return true;
  }

  #owned(at: number, type: number, handle: number, cleanup?: Cleanup): void {
    this.#cell(at, type, handle);
    if (cleanup) this.#release(handle, cleanup);
  }

  #object(at: number, value: object, cleanup?: Cleanup): void {
    const known = this.#objects.handleOf(value);
    if (known) {
      if (!cleanup) this.#memory.exports.TVMFFIObjectIncRef(known.handle);
      return this.#cell(at, known.type, known.handle);
    }
    if (typeof value === "function") {
      return this.#owned(at, TypeIndex.Function, this.#objects.makeFunction(value as () => unknown), cleanup);
    }
    if (value instanceof Uint8Array) {
      return this.#fromByteArray("TVMFFIBytesFromByteArray", this.#memory.byteArray(value), at, cleanup);
    }
    if (value instanceof Float) return this.#float(at, value.value);
    if (value instanceof DataType) {
      return this.#cell(at, TypeIndex.DataType, value.code | (value.bits << 8) | (value.lanes << 16));
    }
    if (value instanceof Device) {
      this.#cell(at, TypeIndex.Device, value.type);
      this.#memory.words[(at >> 2) + 3] = value.index;
      return;
    }
    if (value instanceof Tensor) return this.#tensor(at, value, cleanup);
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      return this.#tensor(at, new Tensor(value as TypedArray), cleanup);
    }
    return this.#container(at, value, cleanup);
  }

  /** An array is copied into the core, and back after the call. */
  #tensor(at: number, value: Tensor, cleanup?: Cleanup): void {
    const { handle, bytes } = this.#objects.makeTensor(value);
    if (cleanup) cleanup.push(() => bytesOf(value.data).set(bytes()));
    this.#owned(at, TypeIndex.Tensor, handle, cleanup);
  }

  #container(at: number, value: object, cleanup?: Cleanup): void {
    const isArray = Array.isArray(value);
    if (!isArray && !(value instanceof Map) && Object.getPrototypeOf(value) !== Object.prototype) {
      const { handle, type } = this.#objects.makeCarrier(value);
      return this.#owned(at, type, handle, cleanup);
    }
    const items: unknown[] = isArray ? value : [...(value instanceof Map ? value : Object.entries(value))].flat(1);
    if (this.#depth === DEEPEST) throw new RangeError("a value has too many levels, or contains itself");
    const { exports } = this.#memory;
    const place = this.#memory.allocate(CELL * items.length + 8);
    const out = place + CELL * items.length;
    const own: Cleanup = [];
    this.#depth += 1;
    try {
      for (const [i, item] of items.entries()) this.put(place + CELL * i, item, own);
      const count = BigInt(isArray ? items.length : items.length / 2);
      this.#objects.check(exports[isArray ? "PortcallArrayCreate" : "PortcallMapCreate"](place, count, out));
      this.#owned(at, isArray ? TypeIndex.Array : TypeIndex.Map, this.#memory.words[out >> 2]!, cleanup);
    } finally {
      this.#depth -= 1;
      this.#memory.free(place);
      for (const undo of own) undo();
    }
  }

  /** Read a value. An owned cell gives its reference up. */
  get(at: number, owned: boolean): unknown {
    const { words } = this.#memory;
    const j = at >> 2;
    const type = words[j]!;
    const low = words[j + 2]!;
    switch (type) {
      case TypeIndex.None:
        return null;
      case TypeIndex.Int:
        return this.#readInt(at, low, words[j + 3]!);
      case TypeIndex.Bool:
        return low !== 0;
      case TypeIndex.Float:
        return this.#memory.doubles[(at >> 3) + 1];
      case TypeIndex.DataType:
        return new DataType(low & 255, (low >> 8) & 255, (low >>> 16) & 65535);
      case TypeIndex.Device:
        return new Device(low, words[j + 3]!);
      case TypeIndex.SmallText:
        return this.#memory.textAt(at + 8, words[j + 1]!);
      case TypeIndex.SmallBytes:
        return this.#memory.bytes.slice(at + 8, at + 8 + words[j + 1]!);
      case TypeIndex.RawText:
        return this.#memory.textAt(low >>> 0, this.#memory.bytes.indexOf(0, low >>> 0) - (low >>> 0));
      case TypeIndex.RawBytes:
        return this.#memory.contentOf(low >>> 0);
    }
    if (type < TypeIndex.Object) return low >>> 0; // a pointer
    return this.#readObject(low >>> 0, type, owned);
  }

  #readInt(at: number, low: number, high: number): number | bigint {
    if (high === low >> 31) return low;
    const value = this.#memory.view.getBigInt64(at + 8, true);
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  #readObject(handle: number, type: number, owned: boolean): unknown {
    const { exports } = this.#memory;
    let value: unknown;
    switch (type) {
      case TypeIndex.Text:
        value = this.#memory.textOf(handle + BODY);
        break;
      case TypeIndex.Bytes:
        value = this.#memory.contentOf(handle + BODY);
        break;
      case TypeIndex.Array:
        value = this.#readArray(handle);
        break;
      case TypeIndex.Map:
        value = this.#readMap(handle);
        break;
      default:
        if (!owned) exports.TVMFFIObjectIncRef(handle);
        return this.#objects.wrap(handle, type);
    }
    if (owned) exports.TVMFFIObjectDecRef(handle);
    return value;
  }

  #readArray(handle: number): unknown[] {
    const { words } = this.#memory;
    const start = words[(handle + SEQUENCE.DATA) >> 2]! >>> 0;
    const count = words[(handle + SEQUENCE.SIZE) >> 2]!;
    return Array.from({ length: count }, (_, i) => this.get(start + CELL * i, false));
  }

  #readMap(handle: number): Map<unknown, unknown> {
    const map = new Map<unknown, unknown>();
    const next = this.#memory.exports.PortcallMapNext;
    for (let pair = next(handle, 0); pair; pair = next(handle, pair)) {
      map.set(this.get(pair, false), this.get(pair + CELL, false));
    }
    return map;
  }
}
