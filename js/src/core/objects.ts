// SPDX-License-Identifier: Apache-2.0
// What stands for objects of both cores, that in WebAssembly and the native one.

import { countOf, type DataType, type TypedArray } from "../dtype.js";
import { FunctionNotFoundError, PortcallError } from "../errors.js";

/** A function of the core's registry, of a module, or of JavaScript as the core sees it. */
export interface PackedFunc {
  (...args: any[]): any;
  readonly name: string;
  /** Call it in another thread, so that the event loop goes on. In WebAssembly, which has one thread, the call runs in this one,
   * and waits for promises of functions that it calls, where the engine can suspend it. */
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
  /** Call a function of the core by its name. */
  call(name: string, ...args: unknown[]): any;
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
  /** The type, and fields where it has some. */
  toString(): string {
    return this.typeKey;
  }
}

/** A field of a described type. */
export interface FieldDescription {
  readonly name: string;
  /** The property that has it: its name, with an underscore where all objects have one of that name. */
  readonly property: string;
  readonly doc: string;
  /** The type of its values, as text. */
  readonly type: string;
  readonly writable: boolean;
  /** Whether an object may be made without a value for it. */
  readonly hasDefault: boolean;
  /** Whether `toString` leaves it out. */
  readonly hidden: boolean;
}

/** The class of a described type. Its objects have the fields as properties, and the methods. */
export interface ObjectClass {
  /** Make an object from fields by name, or as the type's own constructor does.
   * @throws TypeError A field has another type, is missing, or there is none of that name. */
  new (...args: any[]): CoreObject & Record<string, any>;
  readonly prototype: CoreObject & Record<string, any>;
  readonly name: string;
  readonly typeKey: string;
  readonly doc: string;
  /** Whether objects can be made from fields by name. */
  readonly creatable: boolean;
  /** The fields, those of the base class first. */
  readonly fields: readonly FieldDescription[];
  /** Static methods. */
  readonly [method: string]: any;
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

/** How many bytes a tensor's elements take. */
export function bytesIn({ dtype, shape }: CoreTensor): number {
  return dtype.bytesOf(countOf(shape));
}

/** Check that an array has the bytes of a new tensor, which is given back if not.
 * @throws RangeError It has not. */
export function checkFills(data: TypedArray, tensor: CoreTensor): void {
  if (bytesIn(tensor) === data.byteLength) return;
  const { shape } = tensor;
  tensor.dispose();
  throw new RangeError(`the array has ${data.byteLength} bytes, which is not what the shape [${shape}] has`);
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
