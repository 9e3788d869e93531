// SPDX-License-Identifier: Apache-2.0
// The interface of both cores, that in WebAssembly and the native one.

import type { DataType, TypedArray } from "../dtype.js";
import type { CoreDict, CoreList } from "./containers.js";
import type { CoreTensor, Module, ObjectClass, PackedFunc } from "./objects.js";

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

  /** Return the class of a type that the core describes, by its key.
   * @throws PortcallError There is no type of that key. */
  objectClass(key: string): ObjectClass;
  /** Return a list of the core, which changes for everybody who holds it. */
  list(items?: Iterable<unknown>): CoreList;
  /** Return a mapping of the core, which changes for everybody who holds it. */
  dict(items?: Iterable<readonly [unknown, unknown]>): CoreDict;
  /** Return a value as JSON, in which an object that is held twice stands once (docs/ir.md). `indent`: spaces, with a line for
   * each object.
   * @throws TypeError Something cannot be saved, such as a function. */
  saveJson(value: unknown, options?: { indent?: number }): string;
  /** Return the value that `saveJson` of any language saved.
   * @throws PortcallError The text is not such JSON, or has unknown types. */
  loadJson(text: string): any;

  /** @internal Whether libraries find a function or variable of that name in the core. */
  offers(name: string): boolean;
}
