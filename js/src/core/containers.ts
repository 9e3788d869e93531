// SPDX-License-Identifier: Apache-2.0
// Containers of the core that are objects: those that change, and shapes. An Array of the core is an array of JavaScript,
// and a Map a Map. core/ir/objects.cc has the functions.

import { CoreObject, type Keeper } from "./objects.js";
import { showObject } from "./show.js";

/** A sequence that changes, for everybody who holds it. */
export class CoreList extends CoreObject {
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper) {
    super(keeper, "ffi.List");
    this.#keeper = keeper;
  }

  get length(): number {
    return this.#keeper.call("ffi.ArraySize", this);
  }
  /** The item at a place; a negative one counts from the end.
   * @throws RangeError There is none. */
  at(i: number): any {
    return this.#keeper.call("ffi.ArrayGetItem", this, i < 0 ? i + this.length : i);
  }
  /** @throws RangeError There is no item at the place. */
  set(i: number, value: unknown): void {
    this.splice(i < 0 ? i + this.length : i, 1, value);
  }
  push(...values: unknown[]): void {
    this.splice(this.length, 0, ...values);
  }
  /** Put values in the place of `count` items.
   * @throws RangeError There are no such items. */
  splice(start: number, count: number, ...values: unknown[]): void {
    this.#keeper.call("portcall.ir.ListSplice", this, start, count, values);
  }
  /** The items, as they are now. */
  toArray(): any[] {
    return this.#keeper.call("portcall.ir.Convert", this);
  }
  override toString(): string {
    return showObject(this);
  }
  [Symbol.iterator](): IterableIterator<any> {
    return this.toArray()[Symbol.iterator]();
  }
}

/** A mapping that changes, for everybody who holds it, with the methods of a Map. Keys are compared by the core. */
export class CoreDict extends CoreObject {
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper) {
    super(keeper, "ffi.Dict");
    this.#keeper = keeper;
  }

  get size(): number {
    return this.#keeper.call("ffi.MapSize", this);
  }
  has(key: unknown): boolean {
    return this.#keeper.call("ffi.MapCount", this, key) > 0;
  }
  /** The value of a key, undefined where there is none. */
  get(key: unknown): any {
    return this.has(key) ? this.#keeper.call("ffi.MapGetItem", this, key) : undefined;
  }
  set(key: unknown, value: unknown): this {
    this.#keeper.call("portcall.ir.DictSet", this, key, value);
    return this;
  }
  /** Take a key out, and return whether it was there. */
  delete(key: unknown): boolean {
    return this.#keeper.call("portcall.ir.DictErase", this, key);
  }
  /** The keys and values, as they are now. */
  toMap(): Map<any, any> {
    return this.#keeper.call("portcall.ir.Convert", this);
  }
  override toString(): string {
    return showObject(this);
  }
  [Symbol.iterator](): IterableIterator<[any, any]> {
    return this.toMap()[Symbol.iterator]();
  }
}

/** The extents of a tensor, as a value. */
export class CoreShape extends CoreObject {
  readonly #keeper: Keeper;

  /** @internal */
  constructor(keeper: Keeper) {
    super(keeper, "ffi.Shape");
    this.#keeper = keeper;
  }

  toArray(): number[] {
    return this.#keeper.call("portcall.ir.Convert", this);
  }
  override toString(): string {
    return showObject(this);
  }
  [Symbol.iterator](): IterableIterator<number> {
    return this.toArray()[Symbol.iterator]();
  }
}
