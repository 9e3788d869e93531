// SPDX-License-Identifier: Apache-2.0
// What a client may do in this process: find and call functions, and own memory. Memory is named by a handle, and every
// access is checked against its extent.

import { Device } from "../../device.js";
import { bytesOf, countOf, DataType, type TypedArray } from "../../dtype.js";
import { Tensor } from "../../tensor.js";
import { Float, TypeIndex } from "../../values.js";
import { announcedIndex, Handle, Pointer, WireTensor, type WireValue } from "../wire/values.js";
import { ServedError } from "./error_text.js";
import { HandleTable } from "./handles.js";

/** A function that clients may call. Tensors come as `Tensor`, bytes as Uint8Array; it may return a promise. */
export type ServedFunction = (...args: any[]) => unknown;
export type ServedFunctions = ReadonlyMap<string, ServedFunction>;

const CPU = 1;

/** Bytes that a session may use, for memory and files. */
export class MemoryBudget {
  #used = 0;

  /** `elsewhere` says how many bytes count beside those that are taken here. */
  constructor(
    readonly limit: number,
    readonly elsewhere: () => number = () => 0,
  ) {}

  /** Count bytes.
   * @throws ServedError They are over the limit. */
  take(nbytes: number): void {
    const used = this.#used + this.elsewhere();
    if (used + nbytes > this.limit) {
      const text = `the session has ${used} bytes; ${nbytes} more are over the limit of ${this.limit} bytes`;
      throw new ServedError("MemoryError", text);
    }
    this.#used += nbytes;
  }

  give(nbytes: number): void {
    this.#used -= nbytes;
  }
}

export class LocalSession {
  readonly #functions: ServedFunctions;
  readonly #budget: MemoryBudget;
  readonly #handles = new HandleTable();

  constructor(functions: ServedFunctions, budget: MemoryBudget) {
    this.#functions = functions;
    this.#budget = budget;
  }

  // ---- Functions ----

  /** Return the handle of a function; 0 when there is none of that name. */
  getFunction(name: string): bigint {
    const known = this.#handles.addNamed(name);
    if (known !== undefined) return known;
    const found = this.#functions.get(name);
    return found ? this.#handles.add("function", found, name) : 0n;
  }

  /** Call a function, and return the values of the answer or a promise of them. */
  call(handle: bigint, args: readonly WireValue[]): WireValue[] | Promise<WireValue[]> {
    const called: ServedFunction = this.#handles.get(handle, "function");
    const result = called(...args.map((value) => this.#argument(value)));
    if (isPromise(result)) return Promise.resolve(result).then((value) => this.#result(value));
    return this.#result(result);
  }

  free(handle: bigint): void {
    if (handle) this.#handles.free(handle, "function", "object", "tensor");
  }

  #argument(value: WireValue): unknown {
    if (value instanceof WireTensor) return this.#view(value);
    if (value instanceof Pointer) return value.value ? this.#handles.get(value.value, "memory") : null;
    if (!(value instanceof Handle)) return value;
    const kind = value.type === TypeIndex.Function ? "function" : "object";
    return this.#handles.get(value.value, kind);
  }

  #result(value: unknown): WireValue[] {
    if (typeof value === "function") return [TypeIndex.Function, new Pointer(this.#handles.add("function", value))];
    if (value instanceof Tensor) return this.#tensorResult(value);
    if (isPlain(value)) return [announcedIndex(value), value];
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      return this.#tensorResult(new Tensor(value as TypedArray));
    }
    return [TypeIndex.Object, new Pointer(this.#handles.add("object", value))];
  }

  #tensorResult(tensor: Tensor): WireValue[] {
    const handle = this.#handles.add("tensor", bytesOf(tensor.data));
    return [TypeIndex.Tensor, new WireTensor(handle, new Device(CPU), tensor.dtype, tensor.shape), new Pointer(handle)];
  }

  // ---- Memory ----

  alloc(like: WireTensor, scope: string | null): bigint {
    if (scope && scope !== "global") throw new ServedError("ValueError", `memory scope '${scope}' does not exist here`);
    return this.allocBytes(like.device, like.dtype.bytesOf(countOf(like.shape)));
  }

  allocBytes(device: Device, nbytes: number): bigint {
    this.checkDevice(device);
    if (!Number.isSafeInteger(nbytes) || nbytes < 0) throw new RangeError(`cannot allocate ${nbytes} bytes`);
    this.#budget.take(nbytes);
    try {
      return this.#handles.add("memory", new Uint8Array(nbytes));
    } catch (error) {
      this.#budget.give(nbytes);
      throw error instanceof RangeError ? new ServedError("MemoryError", `no memory for ${nbytes} bytes`) : error;
    }
  }

  freeData(handle: bigint): void {
    if (handle) this.#budget.give((this.#handles.free(handle, "memory") as Uint8Array).length);
  }

  /** Return the bytes that a tensor names.
   * @throws ServedError They do not lie within the memory of its handle. */
  bytes(tensor: WireTensor, nbytes: number): Uint8Array {
    this.checkDevice(tensor.device);
    if (nbytes === 0) return new Uint8Array(0);
    const block: Uint8Array = this.#handles.get(tensor.data, "memory", "tensor");
    if (tensor.byteOffset > block.length || nbytes > block.length - tensor.byteOffset) {
      const text = `${nbytes} bytes at offset ${tensor.byteOffset} go past the end of memory of ${block.length} bytes`;
      throw new ServedError("ValueError", text);
    }
    return block.subarray(tensor.byteOffset, tensor.byteOffset + nbytes);
  }

  copyAmong(from: WireTensor, to: WireTensor): void {
    const [count = 0, other = 0] = [from, to].map((tensor) => tensor.dtype.bytesOf(countOf(tensor.shape)));
    if (count !== other) throw new RangeError(`a copy needs tensors of one size: ${count} bytes to ${other}`);
    this.bytes(to, count).set(this.bytes(from, count));
  }

  #view(tensor: WireTensor): Tensor {
    const bytes = this.bytes(tensor, tensor.dtype.bytesOf(countOf(tensor.shape)));
    const Class = tensor.dtype.arrayClass;
    const size = Class.BYTES_PER_ELEMENT;
    if (bytes.byteOffset % size) {
      const text = `a tensor of ${tensor.dtype} begins at byte ${tensor.byteOffset}, not at a whole element`;
      throw new ServedError("ValueError", text);
    }
    return new Tensor(new Class(bytes.buffer, bytes.byteOffset, bytes.length / size), tensor.shape, tensor.dtype);
  }

  // ---- Devices ----

  exists(device: Device): boolean {
    return device.type === CPU && device.index === 0;
  }

  checkDevice(device: Device): void {
    if (!this.exists(device)) throw new ServedError("DeviceError", `this server has no device ${device}, only cpu:0`);
  }

  close(): void {
    this.#handles.clear();
  }
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as PromiseLike<unknown>).then === "function";
}

/** Whether a result travels as it is.
 * @throws TypeError It cannot leave the session at all. */
function isPlain(value: unknown): value is WireValue {
  if (typeof value === "symbol") throw new TypeError("a symbol cannot leave the session");
  if (typeof value !== "object" || value === null) return true;
  return [Uint8Array, Float, DataType, Device].some((kind) => value instanceof kind);
}
