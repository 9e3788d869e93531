// SPDX-License-Identifier: Apache-2.0
// What both cores do alike, by functions of the core.

import { checkArray, checkView } from "../check.js";
import { bytesOf, type DataType, dtypeOf, type TypedArray } from "../dtype.js";
import { Classes } from "./classes.js";
import type { CoreDict, CoreList } from "./containers.js";
import type { Runtime } from "./interface.js";
import { type CoreTensor, checkFills, type Keeper, type Module, type ObjectClass, type PackedFunc } from "./objects.js";

export abstract class BaseRuntime implements Runtime, Keeper {
  abstract readonly backend: "native" | "wasm";
  abstract readonly version: string;
  /** @internal */
  readonly classes: Classes = new Classes(this);
  readonly #functions = new Map<string, PackedFunc>();

  abstract getGlobalFunc(name: string): PackedFunc;
  abstract registerFunc(name: string, f: (...args: any[]) => unknown, options?: { override?: boolean }): void;
  abstract loadModule(source: string | URL | Uint8Array): Promise<Module>;
  abstract loadModuleSync(bytes: Uint8Array): Module;
  abstract empty(shape: readonly number[], dtype?: string | DataType): CoreTensor;
  abstract offers(name: string): boolean;
  /** @internal */
  abstract disposeOf(target: object): void;
  /** @internal */
  abstract dataOf(tensor: CoreTensor): TypedArray;

  /** @internal */
  call(name: string, ...args: unknown[]): any {
    let found = this.#functions.get(name);
    if (!found) {
      found = this.getGlobalFunc(name);
      this.#functions.set(name, found);
    }
    return found(...args);
  }

  /** @internal */
  functionOf(module: Module, name: string): PackedFunc | null {
    return this.call("ffi.ModuleGetFunction", module, name, true);
  }

  tensor(data: TypedArray, shape?: readonly number[], dtype: string | DataType = dtypeOf(data)): CoreTensor {
    checkView(data, "the data of a tensor");
    const tensor = this.empty(shape ?? [data.length], dtype);
    checkFills(data, tensor);
    bytesOf(tensor.data).set(bytesOf(data));
    return tensor;
  }

  objectClass(key: string): ObjectClass {
    return this.classes.named(key);
  }

  list(items: Iterable<unknown> = []): CoreList {
    return this.call("portcall.ir.Convert", [...checkArray(items, "items")]);
  }

  dict(items: Iterable<readonly [unknown, unknown]> = []): CoreDict {
    return this.call("portcall.ir.Convert", new Map(checkArray(items, "items")));
  }

  saveJson(value: unknown, options: { indent?: number } = {}): string {
    return this.call("portcall.ir.SaveJson", value, options.indent);
  }

  loadJson(text: string): any {
    return this.call("portcall.ir.LoadJson", text, 0, 0);
  }
}
