// SPDX-License-Identifier: Apache-2.0
// What a session owns, as it looks from here: functions, modules, tensors and objects. Each is freed with its last
// reference, or by `dispose()`, or by `using`.

import { checkText, checkView, got, withArticle } from "../../check.js";
import type { Device } from "../../device.js";
import { bytesOf, countOf, type DataType, dtype, dtypeOf, isElements, type TypedArray } from "../../dtype.js";
import { FunctionNotFoundError, RemoteProtocolError, SessionClosedError } from "../../errors.js";
import { Tensor } from "../../tensor.js";
import { TypeIndex } from "../../values.js";
import { DescribedObject, decodeValue, encodeValue, isContainer, type Shape } from "../wire/by_value.js";
import type { Reader, Writer } from "../wire/bytes.js";
import { Code, REMOTE_OBJECT } from "../wire/facts.js";
import {
  ByValue,
  copyHeadBytes,
  Handle,
  type PlainValue,
  Pointer,
  WireTensor,
  type WireValue,
  writeSequence,
  writeTensor,
} from "../wire/values.js";
import { expectValues, type Pipeline, raiseLocated } from "./pipeline.js";
import { type Timing, type TimingOptions, timingArguments, timingOf } from "./timing.js";

/** What functions of a session take. */
export type RemoteValue =
  | PlainValue
  | RemoteFunction
  | RemoteModule
  | RemoteTensor
  | RemoteObject
  | DescribedObject
  | Shape
  | readonly unknown[]
  | ReadonlyMap<unknown, unknown>
  | Readonly<Record<string, unknown>>;

/** A function of a session. Calls leave in order, without waiting for each other. */
export interface RemoteFunction<Result = any> {
  /** @throws RemoteError The function raised. */
  (...args: RemoteValue[]): Promise<Result>;
  readonly name: string;
  /** Give the function back to the session. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/** What a proxy stands for: how it is written as an argument, and of which session it is. */
interface Reference {
  readonly owner: Owner;
  readonly wire: WireValue;
  disposed: boolean;
}

const references = new WeakMap<object, Reference>();
const finalizers = new FinalizationRegistry<() => void>((free) => free());
const symbolDispose: typeof Symbol.dispose = Symbol.dispose ?? Symbol.for("Symbol.dispose");

/** What all objects of a session share. */
export interface Owner {
  readonly pipeline: Pipeline;
  /** Bytes that the frame of a copy may have, from its code to its last byte. */
  readonly copyLimit: number;
  /** Functions of the server by name, undefined for one that it does not offer; looked up once. */
  find(name: string): Promise<RemoteFunction | undefined>;
  get(name: string): Promise<RemoteFunction>;
}

function refer(target: object, owner: Owner, wire: WireValue, free?: () => void): void {
  references.set(target, { owner, wire, disposed: false });
  if (free) finalizers.register(target, free, target);
}

function disposeOf(target: object, free: () => void): void {
  const reference = references.get(target)!;
  if (reference.disposed) return;
  reference.disposed = true;
  finalizers.unregister(target);
  free();
}

function freeHandle(owner: Owner, handle: bigint): () => void {
  return () =>
    owner.pipeline.free(Code.FreeHandle, (writer) => writeSequence(writer, [new Pointer(handle)], "request"));
}

/** Return an argument as it is written.
 * @throws TypeError It belongs to another session, or cannot be sent.
 * @throws SessionClosedError It was disposed of. */
export function asArgument(owner: Owner, value: unknown, what = "an argument"): WireValue {
  if ((typeof value !== "object" && typeof value !== "function") || value === null) return value as WireValue;
  const reference = references.get(value);
  if (reference) {
    if (reference.owner !== owner) throw new TypeError(`${what} belongs to another session`);
    if (reference.disposed) throw new SessionClosedError(`${what} was disposed of`, { peer: owner.pipeline.peer });
    return reference.wire;
  }
  const remedy = remedyFor(value);
  if (remedy) throw new TypeError(`${withArticle(value.constructor?.name ?? "Object")} cannot be sent: ${remedy}`);
  if (!isContainer(value)) return value as WireValue;
  if (owner.pipeline.has("values")) return new ByValue(encodeValue(value));
  throw new TypeError(`${owner.pipeline.peer} takes no containers by value`);
}

/** What to do with a value that is not sent as it is. */
function remedyFor(value: object): string | undefined {
  if (typeof value === "function") return "servers take no functions of JavaScript; register it where it is to run";
  if (value instanceof Promise) return "await it first";
  if (value instanceof Tensor) return "make it one of the session, session.tensor(x.data, x.shape, x.dtype)";
  if (value instanceof ArrayBuffer) return "send its bytes, new Uint8Array(x)";
  if (!ArrayBuffer.isView(value) || value instanceof Uint8Array) return undefined;
  if (isElements(value)) return "make a tensor of it, session.tensor(x)";
  return "send its bytes, new Uint8Array(x.buffer, x.byteOffset, x.byteLength)";
}

/** Call a function by its handle. */
export function callHandle(owner: Owner, handle: bigint, args: readonly unknown[]): Promise<any> {
  const values = args.map((value) => asArgument(owner, value));
  return owner.pipeline.ask(
    Code.CallFunc,
    (writer) => {
      writer.i64(handle);
      writeSequence(writer, values, "request");
    },
    (reader) => readResult(owner, reader),
  );
}

/** Read the answer to a call (docs/wire.md, section 4). */
function readResult(owner: Owner, reader: Reader): unknown {
  const values = expectValues(reader, 2);
  const [announced, value, extra] = values;
  if (typeof announced !== "number") throw new RemoteProtocolError("the answer to a call announces no type");
  if (value instanceof ByValue) return givenValue(owner, decodeValue(value.bytes), announced, extra);
  switch (announced) {
    case TypeIndex.Function:
      return remoteFunction(owner, handleIn(value), "");
    case TypeIndex.Module:
      return new RemoteModule(owner, handleIn(value));
    case TypeIndex.Tensor:
    case TypeIndex.TensorView: {
      if (!(value instanceof WireTensor)) throw new RemoteProtocolError("the answer to a call has no tensor");
      const handle = extra === undefined ? 0n : handleIn(extra);
      return new RemoteTensor(owner, value, handle ? freeHandle(owner, handle) : undefined);
    }
    case TypeIndex.SmallText:
    case TypeIndex.Text:
    case TypeIndex.SmallBytes:
    case TypeIndex.Bytes:
      return value;
  }
  if (announced >= TypeIndex.Object) return new RemoteObject(owner, handleIn(value), announced);
  return value;
}

/** Return a value that came whole. An object of a described type is the server's, whose fields are known here. */
function givenValue(owner: Owner, value: unknown, type: number, handle: WireValue): unknown {
  if (!(value instanceof DescribedObject)) {
    if (handle !== undefined) freeHandle(owner, handleIn(handle))();
    return value;
  }
  return handle === undefined ? value : new RemoteObject(owner, handleIn(handle), type, value);
}

export function handleIn(value: WireValue): bigint {
  if (!(value instanceof Pointer)) throw new RemoteProtocolError("an answer has no handle where one is expected");
  return value.value;
}

/** Return the function of a handle. */
export function remoteFunction(owner: Owner, handle: bigint, name: string): RemoteFunction {
  const free = freeHandle(owner, handle);
  const call = async (...args: RemoteValue[]): Promise<any> => {
    asArgument(owner, call, "the function"); // throws once it is disposed of
    try {
      return await callHandle(owner, handle, args);
    } catch (error) {
      return raiseLocated(error);
    }
  };
  const dispose = () => disposeOf(call, free);
  Object.defineProperty(call, "name", { value: name });
  refer(call, owner, new Handle(TypeIndex.Function, handle), free);
  return Object.assign(call, { dispose, [symbolDispose]: dispose }) as RemoteFunction;
}

abstract class Proxied {
  readonly #free: (() => void) | undefined;
  /** @internal */
  protected readonly owner: Owner;

  protected constructor(owner: Owner, wire: WireValue, free?: () => void) {
    this.owner = owner;
    this.#free = free;
    refer(this, owner, wire, free);
  }

  /** Give it back to the session. It cannot be used any more. */
  dispose(): void {
    disposeOf(this, this.#free ?? (() => {}));
  }
  [symbolDispose](): void {
    this.dispose();
  }
}

/** An object of a session, which can be passed back to its functions. */
export class RemoteObject extends Proxied {
  /** The index of its type at the server. */
  readonly typeIndex: number;
  /** The key of its type, and its fields by name as they were when it came, where the server says them. */
  readonly typeKey: string;
  readonly fields: Readonly<Record<string, unknown>>;

  /** @internal */
  constructor(owner: Owner, handle: bigint, typeIndex: number, value?: DescribedObject) {
    super(owner, new Handle(REMOTE_OBJECT, handle), freeHandle(owner, handle));
    this.typeIndex = typeIndex;
    this.typeKey = value?.typeKey ?? "";
    this.fields = value?.fields ?? {};
  }

  /** Return an item of a container, by its place or its key. Servers of portcall tell it.
   * @throws RemoteError There is none, or the object has no items. */
  async item(key: RemoteValue): Promise<any> {
    return (await this.owner.get("portcall.rpc.object_item"))(this, key);
  }

  /** Return how many items a container has; -1 for what has none. Servers of portcall tell it. */
  async length(): Promise<number> {
    return (await (await this.owner.get("portcall.rpc.object_describe"))(this)).get("length");
  }
}

/** A module of a session: a named set of functions. */
export class RemoteModule extends Proxied {
  /** @internal */
  constructor(owner: Owner, handle: bigint) {
    super(owner, new Handle(TypeIndex.Module, handle), freeHandle(owner, handle));
  }

  /** Return a function of the module, or of those that it imports.
   * @throws FunctionNotFoundError It has none of that name. */
  async get(name: string): Promise<RemoteFunction> {
    checkText(name, "the name");
    const find = await this.owner.get("tvm.rpc.server.ModuleGetFunction");
    const found: RemoteFunction | null = await find(this, name, true);
    if (!found) throw new FunctionNotFoundError(`the module has no function '${name}'`, name);
    Object.defineProperty(found, "name", { value: name });
    return found;
  }

  /** Make the functions of another module of the session those of this one. */
  async importModule(other: RemoteModule): Promise<void> {
    await (await this.owner.get("tvm.rpc.server.ImportModule"))(this, other);
  }

  /** Return a function that takes the arguments of the named one and times it at the server.
   * @throws FunctionNotFoundError The module has none of that name. */
  async timeEvaluator(name: string, options: TimingOptions = {}): Promise<TimeEvaluator> {
    (await this.get(name)).dispose(); // the error for a missing one names it
    return timeEvaluator(this.owner, this, name, options);
  }
}

/** Times one call of a function after the other, at the server. */
export type TimeEvaluator = (...args: RemoteValue[]) => Promise<Timing>;

/** Make a function that times another one of a module, or of the server where that is null. */
export async function timeEvaluator(
  owner: Owner,
  module: RemoteModule | null,
  name: string,
  options: TimingOptions,
): Promise<TimeEvaluator> {
  const make = await owner.get("runtime.RPCTimeEvaluator");
  const evaluate: RemoteFunction = await make(module, name, ...timingArguments(options));
  return async (...args) => timingOf(await evaluate(...args));
}

/** A tensor in the memory of a session. */
export class RemoteTensor extends Proxied {
  readonly shape: readonly number[];
  readonly dtype: DataType;
  readonly device: Device;
  readonly #wire: WireTensor;
  readonly #base: RemoteTensor | undefined; // this shows its memory

  /** @internal */
  constructor(owner: Owner, wire: WireTensor, free?: () => void, base?: RemoteTensor) {
    super(owner, wire, free);
    this.#wire = wire;
    this.#base = base;
    this.shape = wire.shape;
    this.dtype = wire.dtype;
    this.device = wire.device;
  }

  get byteLength(): number {
    return this.dtype.bytesOf(countOf(this.shape));
  }

  /** Fetch the elements, into `into` if it is given: raw 16-bit numbers for float16 and bfloat16.
   * @throws RangeError `into` has another size. */
  async data<Into extends TypedArray = TypedArray>(into?: Into): Promise<Into> {
    const size = this.byteLength;
    const target =
      (into === undefined ? undefined : checkView(into, "into")) ??
      (new this.dtype.arrayClass(new ArrayBuffer(size)) as Into);
    if (target.byteLength !== size) throw new RangeError(`the tensor has ${size} bytes, not ${target.byteLength}`);
    this.#checkElements(target);
    const bytes = bytesOf(target);
    this.#check();
    await Promise.all(
      this.#blocks(size).map(([at, end]) =>
        this.owner.pipeline.requestBytes(Code.CopyFromRemote, this.#copy(at, end), bytes.subarray(at, end)),
      ),
    );
    return target;
  }

  /** Send elements, or copy those of another tensor of the session. An array must not change until this is done.
   * @throws RangeError The sizes differ. @throws TypeError The element types differ. */
  async copyFrom(source: TypedArray | RemoteTensor): Promise<this> {
    const size = this.byteLength;
    this.#check();
    if (source instanceof RemoteTensor) {
      const values = [asArgument(this.owner, source), this.#wire, new Pointer(0n)];
      await this.owner.pipeline.requestNone(Code.CopyAmongRemote, (writer) => writeSequence(writer, values, "request"));
      return this;
    }
    if (checkView(source, "source").byteLength !== size)
      throw new RangeError(`the tensor has ${size} bytes, the array ${source.byteLength}`);
    this.#checkElements(source);
    const bytes = bytesOf(source);
    await Promise.all(
      this.#blocks(size).map(([at, end]) =>
        this.owner.pipeline.requestNone(Code.CopyToRemote, this.#copy(at, end), bytes.subarray(at, end)),
      ),
    );
    return this;
  }

  /** Return a tensor of the same memory: another shape, another type, or a part that begins `byteOffset` bytes later.
   * @throws RangeError It does not lie within this one. */
  view(shape: readonly number[], type: string | DataType = this.dtype, byteOffset = 0): RemoteTensor {
    const element = dtype(type);
    if (!Number.isSafeInteger(byteOffset) || byteOffset < 0)
      throw new RangeError(`invalid byte offset: ${got(byteOffset)}`);
    const end = byteOffset + element.bytesOf(countOf(shape));
    if (end > this.byteLength) throw new RangeError(`a view of ${end} bytes goes past the ${this.byteLength} bytes`);
    this.#check();
    const { data, byteOffset: start } = this.#wire;
    const wire = new WireTensor(data, this.device, element, shape, start + byteOffset);
    return new RemoteTensor(this.owner, wire, undefined, this);
  }

  #check(): void {
    asArgument(this.owner, this, "the tensor");
    if (this.#base) asArgument(this.owner, this.#base, "the tensor that this one shows");
  }

  /** @throws TypeError An array shows elements of another type. */
  #checkElements(array: TypedArray): void {
    if (array instanceof Uint8Array || array instanceof this.dtype.arrayClass) return;
    throw new TypeError(`a tensor of ${this.dtype} has no elements of type ${dtypeOf(array)}`);
  }

  /** Parts of a copy that servers with a limit take, as start and end. */
  #blocks(size: number): [number, number][] {
    const whole = this.owner.copyLimit - copyHeadBytes(this.shape.length);
    const element = this.dtype.itemSize;
    const most = Math.max(1, whole >= element ? whole - (whole % element) : whole);
    const blocks: [number, number][] = [];
    for (let at = 0; at < size; at += most) blocks.push([at, Math.min(size, at + most)]);
    return blocks;
  }

  #copy(at: number, end: number): (writer: Writer) => void {
    const { data, byteOffset } = this.#wire;
    return (writer) => {
      writeTensor(writer, new WireTensor(data, this.device, this.dtype, this.shape, byteOffset + at));
      writer.i64(end - at);
    };
  }
}
