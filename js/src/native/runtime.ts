// SPDX-License-Identifier: Apache-2.0
// The native core in Node: libportcall.so, by the addon of the package for this platform.

import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { checkBytes, checkFunction, checkText } from "../check.js";
import { BaseRuntime } from "../core/base.js";
import type { Runtime } from "../core/interface.js";
import type { CoreTensor, Module, PackedFunc } from "../core/objects.js";
import { readSource } from "../core/source.js";
import { dtype as asDtype, countOf, type DataType, type TypedArray } from "../dtype.js";
import { FunctionNotFoundError, ModuleLoadError } from "../errors.js";
import { type Addon, hooksOf } from "./hooks.js";

/** The native core. A process has one, whose registry all its threads share. */
class NativeRuntime extends BaseRuntime {
  readonly backend = "native";
  readonly version: string;
  readonly #addon: Addon;
  readonly #arrays = new WeakMap<object, TypedArray>(); // over the memory of tensors

  readonly #objects: string; // the library that has what is done with objects
  #loaded: Module | undefined;

  /** `folder` is that of the package for the platform. */
  constructor(addon: Addon, folder: string) {
    super();
    this.#addon = addon;
    this.#objects = join(folder, "libportcall_ir.so");
    this.version = addon.start(hooksOf(this, addon));
    process.on("exit", () => addon.abandon());
  }

  getGlobalFunc(name: string): PackedFunc {
    const found = this.#addon.getGlobal(checkText(name, "the name"));
    if (!found) throw new FunctionNotFoundError(`there is no function '${name}'`, name);
    return found;
  }

  registerFunc(name: string, f: (...args: any[]) => unknown, options: { override?: boolean } = {}): void {
    checkFunction(f, "what is registered");
    this.#addon.register(checkText(name, "the name"), f, options.override ?? false);
  }

  async loadModule(source: string | URL | Uint8Array): Promise<Module> {
    if (source instanceof Uint8Array) return this.loadModuleSync(source);
    const isUrl =
      source instanceof URL ? source.protocol !== "file:" : /^https?:/.test(checkText(source, "the source"));
    if (isUrl) return this.loadModuleSync(await readSource(source));
    return this.#load(source instanceof URL ? fileURLToPath(source) : source);
  }

  loadModuleSync(bytes: Uint8Array): Module {
    checkBytes(bytes, "the bytes of a library");
    const folder = mkdtempSync(join(tmpdir(), "portcall-"));
    try {
      const path = join(folder, "kernels.so");
      writeFileSync(path, bytes);
      return this.#load(path);
    } finally {
      rmSync(folder, { recursive: true });
    }
  }

  #load(path: string): Module {
    try {
      return this.getGlobalFunc("ffi.ModuleLoadFromFile")(path);
    } catch (error) {
      throw new ModuleLoadError((error as Error).message, { cause: error });
    }
  }

  empty(shape: readonly number[], dtype: string | DataType = "float32"): CoreTensor {
    const { code, bits, lanes } = asDtype(dtype);
    countOf(shape);
    return this.#addon.allocate([shape, code, bits, lanes]);
  }

  offers(_name: string): boolean {
    return false;
  }

  // ---- What objects ask for ----

  disposeOf(target: object): void {
    this.#addon.dispose(target);
    const array = this.#arrays.get(target);
    if (array) this.#addon.detach(array.buffer);
    this.#arrays.delete(target);
  }

  dataOf(tensor: CoreTensor): TypedArray {
    let array = this.#arrays.get(tensor);
    if (!array) {
      array = new tensor.dtype.arrayClass(this.#addon.buffer(tensor));
      this.#arrays.set(tensor, array);
    }
    return array;
  }

  /** Functions on objects are in a separate library, which is loaded when it is first needed. */
  override call(name: string, ...args: unknown[]): any {
    if (name.startsWith("portcall.ir.")) this.#loaded ??= this.#load(this.#objects);
    return super.call(name, ...args);
  }
}

let runtime: Runtime | undefined;

/** Return the native core, the same one each time.
 * @throws ModuleLoadError The package for this platform is missing, or does not run on this machine. */
export function loadNative(): Runtime {
  if (runtime) return runtime;
  const platform = `${process.platform}-${process.arch}`;
  const name = `@portcall/${platform}`;
  const built = fileURLToPath(new URL(`../../../platform/${platform}`, import.meta.url)); // in a clone, by make addon
  const require = createRequire(import.meta.url);
  try {
    const place = existsSync(join(built, "portcall.node")) ? built : name;
    runtime = new NativeRuntime(require(place), dirname(require.resolve(place)));
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === "MODULE_NOT_FOUND";
    const why = missing
      ? `is not installed: npm install it beside portcall (in a clone of portcall, make npm packs it, and make addon builds it)`
      : `cannot be loaded: ${(error as Error).message}`;
    throw new ModuleLoadError(`the package ${name} ${why}`, { cause: error });
  }
  return runtime;
}
