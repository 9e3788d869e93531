// SPDX-License-Identifier: Apache-2.0
// Calls of functions of the core, and calls of JavaScript by it.

import { TypeIndex } from "../values.js";
import type { Cells, Cleanup } from "./cells.js";
import type { Held } from "./held.js";
import { CELL } from "./layout.js";
import type { CoreMemory } from "./memory.js";
import type { Promises } from "./promises.js";
import type { Stack } from "./stack.js";
import type { Thrown } from "./thrown.js";

const PENDING = 1; // core/web/web.h

export class Calls {
  readonly #memory: CoreMemory;
  readonly #stack: Stack;
  readonly #cells: Cells;
  readonly #errors: Thrown;
  readonly #held: Held;
  readonly #promises: Promises;
  readonly #invoke: (handle: number, args: number, n: number, result: number) => number;
  #depth = 0; // calls of JavaScript by the core that have not returned

  constructor(memory: CoreMemory, stack: Stack, cells: Cells, errors: Thrown, held: Held, promises: Promises) {
    this.#memory = memory;
    this.#stack = stack;
    this.#cells = cells;
    this.#errors = errors;
    this.#held = held;
    this.#promises = promises;
    this.#invoke = memory.exports.TVMFFIFunctionCall;
  }

  /** Call a function of the core. */
  call(handle: number, args: readonly unknown[]): unknown {
    const memory = this.#memory;
    const stack = this.#stack;
    const start = stack.top;
    const result = start + CELL * args.length;
    if (result + CELL > stack.end) throw new RangeError("too many calls within calls");
    stack.top = result + CELL;
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
      if (status !== 0) throw this.#errors.taken();
      return memory.words[j] === TypeIndex.None ? null : this.#cells.get(result, true);
    } finally {
      stack.top = start;
      // A kernel that traps leaves its frames.
      if (trapped && this.#depth === 0) stack.forgetFrames();
      if (cleanup) for (const undo of cleanup) undo();
    }
  }

  /** The core calls function number `self` of JavaScript. */
  called(self: number, args: number, n: number, result: number): number {
    const called = this.#held.at(self) as (...args: unknown[]) => unknown;
    this.#depth += 1;
    try {
      const values: unknown[] = [];
      for (let at = args; at < args + CELL * n; at += CELL) values.push(this.#cells.get(at, false));
      const value = called(...values);
      if (value instanceof Promise && this.#promises.takes(value)) return PENDING;
      this.#cells.put(result, value);
      return 0;
    } catch (error) {
      this.#errors.raise(error);
      return -1;
    } finally {
      this.#depth -= 1;
    }
  }
}
