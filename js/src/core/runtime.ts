// SPDX-License-Identifier: Apache-2.0
// The core in WebAssembly: one registry of functions for JavaScript, C++ and kernels, in this process or page.

import { checkFunction, checkText, got } from "../check.js";
import { Device } from "../device.js";
import { dtype as asDtype, bytesOf, type DataType, type TypedArray } from "../dtype.js";
import { DeviceError, FunctionNotFoundError, ModuleLoadError } from "../errors.js";
import type { Tensor } from "../tensor.js";
import { TypeIndex } from "../values.js";
import { BaseRuntime } from "./base.js";
import { Calls } from "./calls.js";
import { Cells, type Objects } from "./cells.js";
import { Held } from "./held.js";
import { systemImports } from "./imports.js";
import { BODY, CORE_VERSION, OBJECT_TYPE, TYPE_KEY } from "./layout.js";
import { type CoreExports, CoreMemory } from "./memory.js";
import { loadModule, loadModuleSync } from "./modules.js";
import { bytesIn, CoreTensor, Module, type PackedFunc, symbolDispose } from "./objects.js";
import { Promises, waitingImport } from "./promises.js";
import { type CompiledModule, compileBytes, readSource } from "./source.js";
import { Stack } from "./stack.js";
import { allocTensor, describeTensor, type Place, placeOfTensor } from "./tensors.js";
import { Thrown } from "./thrown.js";

const PAGE = 1 << 16; // bytes of memory
const OWN_MEMORY = 4 << 20; // bytes: of the core itself (core/web/Makefile)
const MOST_MEMORY = 2 ** 31;
const HOST = new Device(1);
const references = new WeakMap<object, { readonly runtime: WasmRuntime; handle: number; readonly type: number }>();

/** The core in WebAssembly. Several may be there; each has its own registry and memory. */
export class WasmRuntime extends BaseRuntime implements Objects {
  readonly backend = "wasm";
  /** @internal */
  memory!: CoreMemory;
  #stack!: Stack;
  #held!: Held;
  #errors!: Thrown;
  #promises!: Promises;
  #calls!: Calls;

  // Of this runtime alone, which is collected with all that stands for its objects.
  readonly #finalizers = new FinalizationRegistry<number>((handle) => this.release(handle));
  #module!: WebAssembly.Module;
  #carrierType = -1; // of objects that only carry one of JavaScript

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
        call: (self: number, args: number, n: number, result: number) => this.#calls.called(self, args, n, result),
        wait: waitingImport(() => this.#promises.wait()),
        settled: (result: number) => this.#promises.putSettled(result),
        free: (self: number) => this.#freed(self),
      },
    };
  }

  #begin(module: WebAssembly.Module, imports: WebAssembly.Imports, instance: WebAssembly.Instance): WasmRuntime {
    this.#module = module;
    const memory = imports.env!.memory;
    this.memory = new CoreMemory({ ...instance.exports, memory } as unknown as CoreExports);
    this.memory.exports._initialize?.();
    this.#stack = new Stack(this.memory);
    this.#held = new Held();
    this.#errors = new Thrown(this.memory, this.#stack, this.#held);
    const cells = new Cells(this.memory, this);
    this.#promises = new Promises(this.memory, this.#stack, cells, this.#errors);
    this.#calls = new Calls(this.memory, this.#stack, cells, this.#errors, this.#held, this.#promises);
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
    const out = this.#stack.top;
    this.memory.words[out >> 2] = 0;
    const status = use(text, out);
    this.memory.free(text);
    this.check(status);
    return this.memory.words[out >> 2]! >>> 0;
  }

  #freed(self: number): void {
    this.#errors.freed(self);
    this.#held.free(self);
  }

  // ---- For sessions and devices ----

  /** @internal Whether the function of JavaScript that is called now may return a promise, for which the call waits. */
  get canWait(): boolean {
    return this.#promises.canWait;
  }

  /** @internal Return an export of one number that may be called so that it waits for promises of functions of JavaScript,
   * once at a time; undefined where the engine cannot. */
  waitingExport(name: string): ((argument: number) => Promise<number>) | undefined {
    return this.#promises.waitingExport(name);
  }

  /** @internal Take back the stack of calls that a trap left without an end. Nothing of the core may be running. */
  forgetFrames(): void {
    this.#stack.forgetFrames();
  }

  /** @internal How callers are to see what a function of JavaScript threw. */
  set asThrown(make: (thrown: unknown) => Error) {
    this.#errors.asThrown = make;
  }

  check(status: number): void {
    this.#errors.check(status);
  }

  // ---- Modules ----

  /** Load a library of kernels, a .wasm for the target wasm32 that was linked with -shared; or a bundle of one with a
   * graph and its parameters.
   * @throws ModuleLoadError It is not a library, or needs functions that the core does not have. */
  async loadModule(source: string | URL | Uint8Array): Promise<Module> {
    return loadModule(this, source);
  }

  /** The same at once. Browsers allow that to workers, and to pages for small files only. */
  loadModuleSync(bytes: Uint8Array): Module {
    return loadModuleSync(this, bytes);
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
    const start = memory.words[(memory.exports.PortcallGetCore() + CORE_VERSION) >> 2]! >>> 0;
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
    this.check(this.memory.exports.PortcallWebFunction(this.#held.add(value), 0, this.#stack.top));
    return this.memory.words[this.#stack.top >> 2]! >>> 0;
  }
  /** @internal */
  makeCarrier(value: object): { handle: number; type: number } {
    this.check(this.memory.exports.PortcallWebObject(this.#held.add(value), this.#stack.top));
    const handle = this.memory.words[this.#stack.top >> 2]! >>> 0;
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
    const value = this.#held.at(this.memory.words[(handle + BODY) >> 2]!);
    this.release(handle);
    return value;
  }

  #wrapFunction(handle: number, name: string): PackedFunc {
    const call = (...args: unknown[]) => {
      if (!reference.handle) throw new TypeError("the function was disposed of");
      return this.#calls.call(handle, args);
    };
    Object.defineProperty(call, "name", { value: name });
    this.own(call, handle, TypeIndex.Function);
    const reference = references.get(call)!;
    const dispose = () => this.disposeOf(call);
    const later = (...args: unknown[]) => this.#promises.call(call, () => this.handleOf(call)!.handle, args);
    return Object.assign(call, { async: later, dispose, [symbolDispose]: dispose }) as PackedFunc;
  }
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
