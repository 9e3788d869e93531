// SPDX-License-Identifier: Apache-2.0
// The core in WebAssembly: one registry of functions for JavaScript, C++ and kernels, in this process or page.

import { checkBytes, checkFunction, checkText, got } from "../check.js";
import { Device } from "../device.js";
import { dtype as asDtype, bytesOf, type DataType, type TypedArray } from "../dtype.js";
import { DeviceError, FunctionNotFoundError, ModuleLoadError, PortcallError } from "../errors.js";
import type { Tensor } from "../tensor.js";
import { TypeIndex } from "../values.js";
import { BaseRuntime } from "./base.js";
import { readBundle } from "./bundle.js";
import { Cells, type Cleanup, type Objects } from "./cells.js";
import { systemImports } from "./imports.js";
import { BODY, CELL, ERROR, OBJECT_TYPE, TYPE_KEY } from "./layout.js";
import { linkLibrary, makeModule } from "./library.js";
import { type CoreExports, CoreMemory } from "./memory.js";
import { asError, bytesIn, CoreTensor, Module, type PackedFunc, symbolDispose } from "./objects.js";
import { type CompiledModule, compileBytes, compileNow, readSource } from "./source.js";
import { allocTensor, describeTensor, type Place, placeOfTensor } from "./tensors.js";

const PAGE = 1 << 16; // bytes of memory
const OWN_MEMORY = 4 << 20; // bytes: of the core itself (core/web/Makefile)
const MOST_MEMORY = 2 ** 31;
const STACK = 1 << 16; // bytes of cells for calls within calls
const HOST = new Device(1);
const PENDING = 1; // core/web/web.h
const NO_INTEGRATION =
  "a function of JavaScript that was called inside the call returned a promise; to wait for it takes WebAssembly's " +
  "JavaScript Promise Integration, which Chromium 137 and Node 26 have, and Node 24 with --experimental-wasm-jspi";

type Invoke = (...args: number[]) => Promise<number>;
/** JavaScript Promise Integration, where the engine has it. */
const integration =
  "Suspending" in WebAssembly
    ? (WebAssembly as unknown as {
        Suspending: new (f: () => Promise<void>) => WebAssembly.ImportValue;
        promising: (f: WebAssembly.ExportValue | undefined) => Invoke;
      })
    : undefined;
const references = new WeakMap<object, { readonly runtime: WasmRuntime; handle: number; readonly type: number }>();

/** The core in WebAssembly. Several may be there; each has its own registry and memory. */
export class WasmRuntime extends BaseRuntime implements Objects {
  readonly backend = "wasm";
  /** @internal */
  memory!: CoreMemory;
  #cells!: Cells;
  #top = 0; // where the next call puts its cells
  #end = 0;
  readonly #functions: unknown[] = []; // what the core calls by number; errors that it carries, too
  readonly #idle: number[] = [];
  // What carries an error of JavaScript through the core: a function object that is never called, by handle and by number.
  readonly #carriers = new Map<number, number>();
  readonly #carrierHandles = new Map<number, number>();
  #depth = 0; // calls of JavaScript by the core that have not returned
  #invoke!: (handle: number, args: number, n: number, result: number) => number;
  #stackPointer = 0; // of the core, outside of all calls but one that waits
  // The call that may wait for promises: where the cells after its own are, as long as it is the one that runs.
  #waiting = -1;
  #promise: Promise<unknown> | undefined; // that it waits for
  #settled: (() => unknown) | undefined;
  #afterWait = 0; // what #stackPointer was before
  #missed = 0; // promises that could not be waited for
  // Such calls that are not over, in the order in which they began. They share a stack: each ends before one that began earlier
  // goes on.
  readonly #calls: Promise<void>[] = [];
  #invokeWaiting: ((handle: number, args: number, n: number, result: number) => Promise<number>) | undefined;

  // Of this runtime alone, which is collected with all that stands for its objects.
  readonly #finalizers = new FinalizationRegistry<number>((handle) => this.release(handle));
  #module!: WebAssembly.Module;
  #exports!: WebAssembly.Exports;
  #carrierType = -1; // of objects that only carry one of JavaScript

  /** @internal Makes an error, as callers are to see it, of what a function of JavaScript threw. */
  asThrown: (thrown: unknown) => Error = (thrown) => (thrown instanceof Error ? thrown : new Error(String(thrown)));

  /** @internal `load` makes runtimes. */
  static async start(module: WebAssembly.Module): Promise<WasmRuntime> {
    const runtime = new WasmRuntime();
    const imports = runtime.#imports(module, MOST_MEMORY);
    return runtime.#begin(module, imports, await WebAssembly.instantiate(module, imports));
  }

  /** @internal Another runtime of the same code, which has at most `limit` bytes of memory beside the core's own. */
  another(limit: number): WasmRuntime {
    const runtime = new WasmRuntime();
    const imports = runtime.#imports(this.#module, Math.min(limit + OWN_MEMORY, MOST_MEMORY));
    return runtime.#begin(this.#module, imports, new WebAssembly.Instance(this.#module, imports));
  }

  #imports(module: WebAssembly.Module, mostMemory: number): WebAssembly.Imports {
    const imports = systemImports(module, () => this.memory);
    const memory = new WebAssembly.Memory({ initial: OWN_MEMORY / PAGE, maximum: Math.ceil(mostMemory / PAGE) });
    return {
      ...imports,
      env: { ...imports.env, memory },
      portcall: {
        call: (self: number, args: number, n: number, result: number) => this.#called(self, args, n, result),
        wait: integration ? new integration.Suspending(() => this.#wait()) : () => undefined,
        settled: (result: number) => this.#putSettled(result),
        free: (self: number) => this.#freed(self),
      },
    };
  }

  #begin(module: WebAssembly.Module, imports: WebAssembly.Imports, instance: WebAssembly.Instance): WasmRuntime {
    this.#module = module;
    const memory = imports.env!.memory;
    this.memory = new CoreMemory({ ...instance.exports, memory } as unknown as CoreExports);
    this.#cells = new Cells(this.memory, this);
    this.memory.exports._initialize?.();
    this.#invoke = this.memory.exports.TVMFFIFunctionCall;
    this.#exports = instance.exports;
    this.#invokeWaiting = integration?.promising(instance.exports.TVMFFIFunctionCall);
    this.#top = this.memory.allocate(STACK + CELL);
    this.#end = this.#top + STACK;
    this.#stackPointer = this.memory.exports.__stack_pointer.value;
    this.registerFunc("portcall.LoadPlugin", refuseDevice, { override: true }); // there are no plug-ins here
    return this;
  }

  // ---- Functions ----

  /** Return a function of the registry.
   * @throws FunctionNotFoundError There is none of that name. */
  getGlobalFunc(name: string): PackedFunc {
    checkText(name, "the name");
    const handle = this.#named(name, (text, out) => this.memory.exports.TVMFFIFunctionGetGlobal(text, out));
    if (!handle) throw new FunctionNotFoundError(`there is no function '${name}'`, name);
    return this.#wrapFunction(handle, name);
  }

  /** Register a function of JavaScript, for JavaScript, C++ and clients of this runtime.
   * @throws PortcallError There is one of that name already, unless `override` is set. */
  registerFunc(name: string, f: (...args: any[]) => unknown, options: { override?: boolean } = {}): void {
    checkText(name, "the name");
    const handle = this.makeFunction(checkFunction(f, "what is registered"));
    try {
      this.#named(name, (text) => this.memory.exports.TVMFFIFunctionSetGlobal(text, handle, options.override ? 1 : 0));
    } finally {
      this.release(handle);
    }
  }

  /** Call `use` with a name as the core has it, and return the handle that it writes. */
  #named(name: string, use: (text: number, out: number) => number): number {
    const text = this.memory.byteArray(name);
    const out = this.#top;
    this.memory.words[out >> 2] = 0;
    const status = use(text, out);
    this.memory.free(text);
    this.check(status);
    return this.memory.words[out >> 2]! >>> 0;
  }

  #call(handle: number, args: readonly unknown[]): unknown {
    const { memory } = this;
    const start = this.#top;
    const result = start + CELL * args.length;
    if (result + CELL > this.#end) throw new RangeError("too many calls within calls");
    this.#top = result + CELL;
    let cleanup: Cleanup | undefined;
    let trapped = true;
    try {
      let { words } = memory;
      let j = start >> 2;
      for (let i = 0; i < args.length; ++i, j += 4) {
        const value = args[i];
        if (typeof value === "number" && (value | 0) === value && (value !== 0 || 1 / value > 0)) {
          words[j] = TypeIndex.Int; // by far the most frequent, and all of it inline
          words[j + 1] = 0;
          words[j + 2] = value;
          words[j + 3] = value >> 31;
        } else {
          cleanup ??= [];
          this.#cells.put(start + CELL * i, value, cleanup);
          words = memory.words;
        }
      }
      words[j] = words[j + 1] = words[j + 2] = words[j + 3] = 0;
      const status = this.#invoke(handle, start, args.length, result);
      trapped = false;
      if (status !== 0) throw this.#raised();
      return memory.words[j] === TypeIndex.None ? null : this.#cells.get(result, true);
    } finally {
      this.#top = start;
      // A kernel that traps leaves its frames.
      if (trapped && this.#depth === 0) this.forgetFrames();
      if (cleanup) for (const undo of cleanup) undo();
    }
  }

  /** The core calls function number `self` of JavaScript. */
  #called(self: number, args: number, n: number, result: number): number {
    const called = this.#functions[self] as (...args: unknown[]) => unknown;
    this.#depth += 1;
    try {
      const values: unknown[] = [];
      for (let at = args; at < args + CELL * n; at += CELL) values.push(this.#cells.get(at, false));
      const value = called(...values);
      if (value instanceof Promise && this.#top === this.#waiting) {
        if (this.#invokeWaiting) {
          this.#promise = value;
          return PENDING;
        }
        this.#missed += 1;
      }
      this.#cells.put(result, value);
      return 0;
    } catch (error) {
      this.#raise(this.asThrown(error));
      return -1;
    } finally {
      this.#depth -= 1;
    }
  }

  // ---- Calls that wait for promises ----

  /** @internal Whether the function of JavaScript that is called now may return a promise, for which the call waits. */
  get canWait(): boolean {
    return this.#invokeWaiting !== undefined && this.#top === this.#waiting;
  }

  /** @internal Return an export of one number that may be called so that it waits for promises of functions of JavaScript,
   * once at a time; undefined where the engine cannot. */
  waitingExport(name: string): ((argument: number) => Promise<number>) | undefined {
    const invoke = integration?.promising(this.#exports[name]);
    return (
      invoke &&
      (async (argument) => {
        const pointer = this.#stackPointer;
        this.#waiting = this.#top;
        try {
          return await invoke(argument);
        } finally {
          this.#waiting = -1;
          this.#stackPointer = pointer;
        }
      })
    );
  }

  /** Call a function, whose calls of JavaScript may return promises: it waits for them. */
  async #callAsync(call: (...args: unknown[]) => unknown, args: readonly unknown[]): Promise<unknown> {
    await undefined; // so that nothing of the core runs, nor is about to go on
    if (this.#calls.length) await new Promise((resolve) => setTimeout(resolve));
    if (!this.#invokeWaiting) return this.#callAtOnce(call, args);
    const { handle } = this.handleOf(call)!;
    let over!: () => void;
    this.#calls.push(
      new Promise<void>((resolve) => {
        over = resolve;
      }),
    );
    try {
      return await this.#callWaiting(handle, args);
    } finally {
      this.#calls.pop();
      over();
    }
  }

  async #callWaiting(handle: number, args: readonly unknown[]): Promise<unknown> {
    const outer = this.#waiting;
    const count = this.#calls.length;
    const start = this.#top;
    const result = start + CELL * args.length;
    const pointer = this.memory.exports.__stack_pointer.value;
    const cleanup: Cleanup = [];
    if (result + CELL > this.#end) throw new RangeError("too many arguments");
    this.#top = result + CELL;
    try {
      this.#hold(TypeIndex.Function, handle, cleanup);
      for (const [i, value] of args.entries()) {
        this.#cells.put(start + CELL * i, value, cleanup);
        const { words } = this.memory;
        this.#hold(words[(start + CELL * i) >> 2]!, words[(start + CELL * i + 8) >> 2]!, cleanup);
      }
      this.memory.words.fill(0, result >> 2, (result + CELL) >> 2);
      this.#waiting = this.#top;
      const call = this.#invokeWaiting!(handle, start, args.length, result).then(
        (status) => () => this.check(status),
        (error) => () => raise(error),
      );
      const finish = await call;
      while (this.#calls.length > count) await this.#calls.at(-1);
      finish();
      return this.#cells.get(result, true);
    } finally {
      this.#waiting = outer;
      this.#top = start;
      this.#stackPointer = pointer;
      this.forgetFrames(); // where it trapped
      for (const undo of cleanup) undo();
    }
  }

  /** Keep an object while a call waits, whatever is disposed of meanwhile. */
  #hold(type: number, handle: number, cleanup: Cleanup): void {
    if (type < TypeIndex.Object) return;
    this.memory.exports.TVMFFIObjectIncRef(handle);
    cleanup.push(() => this.release(handle));
  }

  /** Without an engine that suspends calls. A function that itself is of JavaScript returns its promise. */
  async #callAtOnce(call: (...args: unknown[]) => unknown, args: readonly unknown[]): Promise<unknown> {
    this.#missed = 0;
    this.#waiting = this.#top + CELL * (args.length + 1);
    let result: unknown;
    let cause: unknown;
    try {
      result = call(...args);
    } catch (error) {
      if (!this.#missed) throw error;
      cause = error;
    } finally {
      this.#waiting = -1;
    }
    if (this.#missed > (result instanceof Promise ? 1 : 0)) throw new PortcallError(NO_INTEGRATION, { cause });
    return result;
  }

  /** The core waits for the promise of the function that it called. Other calls may run meanwhile, after its frames. */
  async #wait(): Promise<void> {
    const { exports } = this.memory;
    const pointer = this.#stackPointer;
    const waiting = this.#waiting;
    const count = this.#calls.length;
    this.#stackPointer = exports.__stack_pointer.value;
    let settled: () => unknown;
    try {
      const value = await this.#promise;
      settled = () => value;
    } catch (error) {
      settled = () => raise(error);
    }
    while (this.#calls.length > count) await this.#calls.at(-1);
    this.#settled = settled;
    this.#waiting = waiting;
    this.#afterWait = pointer;
  }

  #putSettled(result: number): number {
    this.#stackPointer = this.#afterWait;
    try {
      this.#cells.put(result, this.#settled!());
      return 0;
    } catch (error) {
      this.#raise(this.asThrown(error));
      return -1;
    } finally {
      this.#promise = undefined;
      this.#settled = undefined;
    }
  }

  #freed(self: number): void {
    this.#functions[self] = undefined;
    this.#carriers.delete(this.#carrierHandles.get(self) ?? 0);
    this.#carrierHandles.delete(self);
    this.#idle.push(self);
  }

  #number(value: unknown): number {
    const number = this.#idle.pop() ?? this.#functions.length;
    this.#functions[number] = value;
    return number;
  }

  // ---- Errors ----

  /** Leave an error for the core, which carries the very object with it. */
  #raise(error: Error): void {
    const { memory } = this;
    const number = this.#number(error);
    const carrier = this.#makeErrorCarrier(number);
    const texts = [error.name, error.message.toWellFormed(), ""].map((text) => memory.byteArray(text));
    const out = this.#top;
    memory.exports.TVMFFIErrorCreateWithCauseAndExtraContext(...texts, 0, carrier, out);
    const handle = memory.words[out >> 2]!;
    memory.exports.TVMFFIErrorSetRaised(handle);
    for (const text of texts) memory.free(text);
    this.release(handle);
    this.release(carrier);
  }

  #makeErrorCarrier(number: number): number {
    this.check(this.memory.exports.PortcallWebFunction(number, 0, this.#top));
    const handle = this.memory.words[this.#top >> 2]! >>> 0;
    this.#carriers.set(handle, number);
    this.#carrierHandles.set(number, handle);
    return handle;
  }

  check(status: number): void {
    if (status !== 0) throw this.#raised();
  }

  /** Take the error that the core raised: the object that JavaScript threw, or one of the class of that name. */
  #raised(): Error {
    const { memory } = this;
    memory.exports.TVMFFIErrorMoveFromRaised(this.#top);
    const handle = memory.words[this.#top >> 2]! >>> 0;
    if (!handle) return new PortcallError("a call failed without an error");
    const number = this.#carriers.get(memory.words[(handle + ERROR.CONTEXT) >> 2]! >>> 0);
    const thrown = number === undefined ? undefined : this.#functions[number];
    const [kind, message, trace] = [ERROR.KIND, ERROR.MESSAGE, ERROR.TRACE].map((at) => memory.textOf(handle + at)) as [
      string,
      string,
      string,
    ];
    this.release(handle);
    if (thrown instanceof Error) return thrown;
    return asError(kind, message, trace);
  }

  /** @internal Take back the stack of calls that a trap left without an end. Nothing of the core may be running. */
  forgetFrames(): void {
    this.memory.exports.__stack_pointer.value = this.#stackPointer;
  }

  // ---- Modules ----

  /** Load a library of kernels, a .wasm for the target wasm32 that was linked with -shared; or a bundle of one with a
   * graph and its parameters.
   * @throws ModuleLoadError It is not a library, or needs functions that the core does not have. */
  async loadModule(source: string | URL | Uint8Array): Promise<Module> {
    const bytes = source instanceof Uint8Array ? source : await readSource(source);
    return this.#open(await compileBytes(readBundle(bytes)?.library ?? bytes), bytes);
  }

  /** The same at once. Browsers allow that to workers, and to pages for small files only. */
  loadModuleSync(bytes: Uint8Array): Module {
    checkBytes(bytes, "the bytes of a library");
    return this.#open(compileNow(readBundle(bytes)?.library ?? bytes), bytes);
  }

  #open(library: WebAssembly.Module, file: Uint8Array): Module {
    const kernels = this.#load(library);
    const bundle = readBundle(file);
    if (!bundle) return kernels;
    const content = this.tensor(bundle.content); // its parameters are used in place
    try {
      return this.getGlobalFunc("portcall.OpenBundle")(content, bundle.indexOffset, bundle.indexSize, kernels);
    } finally {
      content.dispose();
      kernels.dispose();
    }
  }

  #load(library: WebAssembly.Module): Module {
    const handle = makeModule(this.memory, (status) => this.check(status), linkLibrary(this.memory, library));
    return this.#keep(new Module(this), handle, TypeIndex.Module);
  }

  // ---- Tensors ----

  /** Return a tensor of the core's memory, or a device's, uninitialised. Functions take it without a copy. */
  empty(shape: readonly number[], dtype: string | DataType = "float32", on: Device = HOST): CoreTensor {
    return this.#wrapTensor(this.#allocTensor(shape, asDtype(dtype), on));
  }

  #allocTensor(shape: readonly number[], type: DataType, on: Device): number {
    return allocTensor(this.memory, (status) => this.check(status), shape, type, on);
  }

  /** Bytes of the core's memory, its own part included. */
  get memorySize(): number {
    return this.memory.exports.memory.buffer.byteLength;
  }

  /** The version of the core. */
  get version(): string {
    const { memory } = this;
    const start = memory.words[(memory.exports.PortcallGetCore() >> 2) + 1]! >>> 0; // after the table's size
    return memory.textAt(start, memory.bytes.indexOf(0, start) - start);
  }

  /** @internal Whether libraries find a function or variable of that name in the core. */
  offers(name: string): boolean {
    return Object.hasOwn(this.memory.exports, name);
  }

  // ---- Objects, for cells ----

  /** @internal */
  own(target: object, handle: number, type: number): void {
    references.set(target, { runtime: this, handle, type });
    this.#finalizers.register(target, handle, target);
  }
  /** @internal */
  disposeOf(target: object): void {
    const reference = references.get(target)!;
    if (!reference.handle) return;
    this.#finalizers.unregister(target);
    this.release(reference.handle);
    reference.handle = 0;
  }
  /** @internal */
  release(handle: number): void {
    this.memory.exports.TVMFFIObjectDecRef(handle);
  }
  /** @internal */
  handleOf(value: object): { readonly handle: number; readonly type: number } | undefined {
    const reference = references.get(value);
    if (!reference) return undefined;
    if (reference.runtime !== this) throw new TypeError("a value belongs to another runtime");
    if (!reference.handle) throw new TypeError("a value was disposed of");
    return reference;
  }
  /** @internal */
  makeFunction(value: (...args: any[]) => unknown): number {
    this.check(this.memory.exports.PortcallWebFunction(this.#number(value), 0, this.#top));
    return this.memory.words[this.#top >> 2]! >>> 0;
  }
  /** @internal */
  makeCarrier(value: object): { handle: number; type: number } {
    this.check(this.memory.exports.PortcallWebObject(this.#number(value), this.#top));
    const handle = this.memory.words[this.#top >> 2]! >>> 0;
    this.#carrierType = this.memory.words[(handle + OBJECT_TYPE) >> 2]!;
    return { handle, type: this.#carrierType };
  }
  /** @internal */
  makeTensor(value: Tensor): { handle: number; bytes: () => Uint8Array } {
    const handle = this.#allocTensor(value.shape, value.dtype, HOST);
    const bytes = () => {
      const start = this.memory.view.getUint32(handle + BODY, true);
      return this.memory.bytes.subarray(start, start + value.data.byteLength);
    };
    bytes().set(bytesOf(value.data));
    return { handle, bytes };
  }
  /** @internal */
  wrap(handle: number, type: number): unknown {
    if (type === TypeIndex.Function) return this.#wrapFunction(handle, "");
    if (type === TypeIndex.Tensor) return this.#wrapTensor(handle);
    if (type === this.#carrierType) return this.#carried(handle);
    if (type === TypeIndex.Module) return this.#keep(new Module(this), handle, type);
    const typeKey = this.memory.textOf(this.memory.exports.TVMFFIGetTypeInfo(type) + TYPE_KEY);
    return this.#keep(this.classes.stand(type, typeKey), handle, type);
  }

  #keep<T extends object>(target: T, handle: number, type: number): T {
    this.own(target, handle, type);
    return target;
  }

  #wrapTensor(handle: number): CoreTensor {
    const { shape, dtype } = describeTensor(this.memory, handle);
    return this.#keep(new CoreTensor(this, shape, dtype), handle, TypeIndex.Tensor);
  }

  /** @internal */
  dataOf(tensor: CoreTensor): TypedArray {
    const { device, data, offset } = this.placeOf(tensor);
    if (device.type !== HOST.type) throw new TypeError(`the tensor is on ${device}, which has to be read from`);
    const Class = tensor.dtype.arrayClass;
    const count = bytesIn(tensor) / Class.BYTES_PER_ELEMENT;
    return new Class(this.memory.exports.memory.buffer, data + offset, count);
  }
  /** @internal Where a tensor's elements are. */
  placeOf(tensor: CoreTensor): Place {
    return placeOfTensor(this.memory, this.handleOf(tensor)!.handle);
  }

  #carried(handle: number): unknown {
    const value = this.#functions[this.memory.words[(handle + BODY) >> 2]!];
    this.release(handle);
    return value;
  }

  #wrapFunction(handle: number, name: string): PackedFunc {
    const call = (...args: unknown[]) => {
      if (!reference.handle) throw new TypeError("the function was disposed of");
      return this.#call(handle, args);
    };
    Object.defineProperty(call, "name", { value: name });
    this.own(call, handle, TypeIndex.Function);
    const reference = references.get(call)!;
    const dispose = () => this.disposeOf(call);
    const later = (...args: unknown[]) => this.#callAsync(call, args);
    return Object.assign(call, { async: later, dispose, [symbolDispose]: dispose }) as PackedFunc;
  }
}

function raise(error: unknown): never {
  throw error;
}

function refuseDevice(kind: string): void {
  if (kind !== "webgpu") return;
  throw new DeviceError("webgpu:0 is not open here: await openWebGpu(core) first, in a browser that has navigator.gpu");
}

const PACKAGED = new URL("../../../core.wasm", import.meta.url);

/**
 * Load the core: that of the package, or from a file of Node, a URL, bytes or a compiled module.
 *
 * Throws ModuleLoadError where it cannot be read, or is something else.
 */
export async function loadWasm(source: string | URL | Uint8Array | CompiledModule = PACKAGED): Promise<WasmRuntime> {
  const module = source instanceof WebAssembly.Module ? source : await compileBytes(await readCore(source));
  try {
    return await WasmRuntime.start(module);
  } catch (error) {
    throw new ModuleLoadError(`it is WebAssembly, but not the core.wasm of portcall: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

async function readCore(source: string | URL | Uint8Array | CompiledModule): Promise<Uint8Array> {
  if (source instanceof Uint8Array) return source;
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new TypeError(
      `load() takes { backend }, or core.wasm as a file, a URL, bytes or a module, got ${got(source)}`,
    );
  }
  return readSource(source).catch((error) => {
    const text = `core.wasm is missing: ${error.message}; it is a file of the npm package, which a page's host has to serve`;
    throw new ModuleLoadError(`${text}; in a clone of portcall make wasm makes it`, { cause: error });
  });
}
