// SPDX-License-Identifier: Apache-2.0
// What both cores have in common, that in WebAssembly and the native one: their interface, and what stands for their objects.

import { bytesOf, type DataType, type TypedArray } from "../dtype.js";
import { FunctionNotFoundError, PortcallError } from "../errors.js";

/** A function of the core's registry, of a module, or of JavaScript as the core sees it. */
export interface PackedFunc {
  (...args: any[]): any;
  readonly name: string;
  /** Call it in another thread, so that the event loop goes on. In WebAssembly, which has one thread, the call runs at once. */
  async(...args: any[]): Promise<any>;
  /** Give the function back to the core. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/** What a core does for that which stands for its objects. */
export interface Keeper {
  /** Give the object's reference back; the second time nothing happens. */
  disposeOf(target: object): void;
  /** The elements of a tensor, in place.
   * @throws TypeError It was disposed of. */
  dataOf(tensor: CoreTensor): TypedArray;
  /** A function of a module, or null. */
  functionOf(module: Module, name: string): PackedFunc | null;
}

export const symbolDispose: typeof Symbol.dispose = Symbol.dispose ?? Symbol.for("Symbol.dispose");

/** Something of the core: freed with its last reference, by `dispose()`, or by `using`. */
export class CoreObject {
  /** The name of its type, such as `ffi.List`. */
  readonly typeKey: string;
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper, typeKey: string) {
    this.#keeper = keeper;
    this.typeKey = typeKey;
  }
  dispose(): void {
    this.#keeper.disposeOf(this);
  }
  [symbolDispose](): void {
    this.#keeper.disposeOf(this);
  }
}

/** A tensor in the core's memory. */
export class CoreTensor extends CoreObject {
  readonly shape: readonly number[];
  readonly dtype: DataType;
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper, shape: readonly number[], dtype: DataType) {
    super(keeper, "ffi.Tensor");
    this.#keeper = keeper;
    this.shape = shape;
    this.dtype = dtype;
  }

  /** The elements, in place. In WebAssembly a view that was taken before the core's memory grew is empty; take it again.
   * @throws TypeError The tensor was disposed of. */
  get data(): TypedArray {
    return this.#keeper.dataOf(this);
  }
}

/** A named set of functions: a library of kernels, or code that is linked into the core. */
export class Module extends CoreObject {
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper) {
    super(keeper, "ffi.Module");
    this.#keeper = keeper;
  }

  /** Return a function.
   * @throws FunctionNotFoundError The module has none of that name. */
  get(name: string): PackedFunc {
    const found = this.#keeper.functionOf(this, name);
    if (!found) throw new FunctionNotFoundError(`the module has no function '${name}'`, name);
    Object.defineProperty(found, "name", { value: name });
    return found;
  }
}

/** A new tensor with the elements of an array. */
export function tensorOf(
  runtime: Runtime,
  data: TypedArray,
  shape: readonly number[],
  dtype: string | DataType,
): CoreTensor {
  const tensor = runtime.empty(shape, dtype);
  if (tensor.data.byteLength !== data.byteLength) {
    tensor.dispose();
    throw new RangeError(`the array has ${data.byteLength} bytes, which is not what the shape [${shape}] has`);
  }
  bytesOf(tensor.data).set(bytesOf(data));
  return tensor;
}

/** The core, loaded: `load` gives it. */
export interface Runtime {
  /** Which core it is. */
  readonly backend: "native" | "wasm";
  /** The version of the core. */
  readonly version: string;

  /** Return a function of the registry.
   * @throws FunctionNotFoundError There is none of that name. */
  getGlobalFunc(name: string): PackedFunc;
  /** Register a function of JavaScript, for JavaScript, C++ and clients of this runtime.
   * @throws PortcallError There is one of that name already, unless `override` is set. */
  registerFunc(name: string, f: (...args: any[]) => unknown, options?: { override?: boolean }): void;

  /** Load a library of kernels from a file of Node, a URL or its bytes: for the native core one for this machine, else a .wasm
   * for the target wasm32 that was linked with -shared.
   * @throws ModuleLoadError It is not a library, or needs functions that the core does not have. */
  loadModule(source: string | URL | Uint8Array): Promise<Module>;
  /** The same at once, from bytes. Browsers allow that to workers, and to pages for small files only. */
  loadModuleSync(bytes: Uint8Array): Module;

  /** Return a tensor of the core's memory, uninitialised. Functions take it without a copy. */
  empty(shape: readonly number[], dtype?: string | DataType): CoreTensor;
  /** Return a tensor of the core's memory with the elements of an array. */
  tensor(data: TypedArray, shape?: readonly number[], dtype?: string | DataType): CoreTensor;

  /** @internal Whether libraries find a function or variable of that name in the core. */
  offers(name: string): boolean;
}

const CLASSES: Record<string, new (message: string) => Error> = {
  TypeError,
  RangeError,
  SyntaxError,
  ReferenceError,
  IndexError: RangeError,
};

/** Return an error of the core in the class of its name, or one that tells the name. */
export function asError(kind: string, message: string, trace: string): Error {
  const Class = CLASSES[kind];
  if (Class) return Object.assign(new Class(message), { trace });
  return Object.assign(new PortcallError(message), { kind, trace });
}
