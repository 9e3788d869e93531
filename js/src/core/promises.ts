// SPDX-License-Identifier: Apache-2.0
// Calls of the core that wait for promises, which functions of JavaScript return inside of them: by WebAssembly's JavaScript
// Promise Integration, where the engine has it.

import { PortcallError } from "../errors.js";
import { TypeIndex } from "../values.js";
import type { Cells, Cleanup } from "./cells.js";
import { CELL } from "./layout.js";
import type { CoreMemory } from "./memory.js";
import type { Stack } from "./stack.js";
import type { Thrown } from "./thrown.js";

const NO_INTEGRATION =
  "a function of JavaScript that was called inside the call returned a promise; to wait for it takes WebAssembly's " +
  "JavaScript Promise Integration, which Chromium 137 and Node 26 have, and Node 24 with --experimental-wasm-jspi";

type Invoke = (...args: number[]) => Promise<number>;
const integration =
  "Suspending" in WebAssembly
    ? (WebAssembly as unknown as {
        Suspending: new (f: () => Promise<void>) => WebAssembly.ImportValue;
        promising: (f: WebAssembly.ExportValue | undefined) => Invoke;
      })
    : undefined;

/** Return an import that the core calls and that waits for a promise. */
export function waitingImport(wait: () => Promise<void>): WebAssembly.ImportValue {
  return integration ? new integration.Suspending(wait) : () => undefined;
}

function raise(error: unknown): never {
  throw error;
}

export class Promises {
  readonly #memory: CoreMemory;
  readonly #stack: Stack;
  readonly #cells: Cells;
  readonly #errors: Thrown;
  readonly #invoke: Invoke | undefined;
  // The call that may wait: where the cells after its own are, as long as it is the one that runs.
  #waiting = -1;
  #promise: Promise<unknown> | undefined; // that it waits for
  #settled: (() => unknown) | undefined;
  #afterWait = 0; // what the stack's pointer was before
  #missed = 0; // promises that could not be waited for
  // Such calls that are not over, in the order in which they began. They share a stack: each ends before one that began earlier
  // goes on.
  readonly #calls: Promise<void>[] = [];

  constructor(memory: CoreMemory, stack: Stack, cells: Cells, errors: Thrown) {
    this.#memory = memory;
    this.#stack = stack;
    this.#cells = cells;
    this.#errors = errors;
    this.#invoke = integration?.promising(memory.exports.TVMFFIFunctionCall);
  }

  /** Whether the function of JavaScript that is called now may return a promise, for which the call waits. */
  get canWait(): boolean {
    return this.#invoke !== undefined && this.#stack.top === this.#waiting;
  }

  /** Whether the call waits for the promise that a function of JavaScript returned; if not it is a value as any other. */
  takes(promise: Promise<unknown>): boolean {
    if (this.#stack.top !== this.#waiting) return false;
    if (this.#invoke) this.#promise = promise;
    else this.#missed += 1;
    return this.#invoke !== undefined;
  }

  /** Return an export of one number that may be called so that it waits for promises of functions of JavaScript, once at a time;
   * undefined where the engine cannot. */
  waitingExport(name: string): ((argument: number) => Promise<number>) | undefined {
    const invoke = integration?.promising(this.#memory.exports[name]);
    return (
      invoke &&
      (async (argument) => {
        const { pointer } = this.#stack;
        this.#waiting = this.#stack.top;
        try {
          return await invoke(argument);
        } finally {
          this.#waiting = -1;
          this.#stack.pointer = pointer;
        }
      })
    );
  }

  /** Call a function, whose calls of JavaScript may return promises: it waits for them. `handle` gives its handle. */
  async call(call: (...args: unknown[]) => unknown, handle: () => number, args: readonly unknown[]): Promise<unknown> {
    await undefined; // so that nothing of the core runs, nor is about to go on
    if (this.#calls.length) await new Promise((resolve) => setTimeout(resolve));
    if (!this.#invoke) return this.#callAtOnce(call, args);
    const found = handle();
    let over!: () => void;
    this.#calls.push(
      new Promise<void>((resolve) => {
        over = resolve;
      }),
    );
    try {
      return await this.#callWaiting(this.#invoke, found, args);
    } finally {
      this.#calls.pop();
      over();
    }
  }

  async #callWaiting(invoke: Invoke, handle: number, args: readonly unknown[]): Promise<unknown> {
    const stack = this.#stack;
    const outer = this.#waiting;
    const count = this.#calls.length;
    const start = stack.top;
    const result = start + CELL * args.length;
    const pointer = this.#memory.exports.__stack_pointer.value;
    const cleanup: Cleanup = [];
    if (result + CELL > stack.end) throw new RangeError("too many arguments");
    stack.top = result + CELL;
    try {
      this.#hold(TypeIndex.Function, handle, cleanup);
      for (const [i, value] of args.entries()) {
        this.#cells.put(start + CELL * i, value, cleanup);
        const { words } = this.#memory;
        this.#hold(words[(start + CELL * i) >> 2]!, words[(start + CELL * i + 8) >> 2]!, cleanup);
      }
      this.#memory.words.fill(0, result >> 2, (result + CELL) >> 2);
      this.#waiting = stack.top;
      const call = invoke(handle, start, args.length, result).then(
        (status) => () => this.#errors.check(status),
        (error) => () => raise(error),
      );
      const finish = await call;
      while (this.#calls.length > count) await this.#calls.at(-1);
      finish();
      return this.#cells.get(result, true);
    } finally {
      this.#waiting = outer;
      stack.top = start;
      stack.pointer = pointer;
      stack.forgetFrames(); // where it trapped
      for (const undo of cleanup) undo();
    }
  }

  /** Keep an object while a call waits, whatever is disposed of meanwhile. */
  #hold(type: number, handle: number, cleanup: Cleanup): void {
    if (type < TypeIndex.Object) return;
    const { exports } = this.#memory;
    exports.TVMFFIObjectIncRef(handle);
    cleanup.push(() => exports.TVMFFIObjectDecRef(handle));
  }

  /** Without an engine that suspends calls. A function that itself is of JavaScript returns its promise. */
  async #callAtOnce(call: (...args: unknown[]) => unknown, args: readonly unknown[]): Promise<unknown> {
    this.#missed = 0;
    this.#waiting = this.#stack.top + CELL * (args.length + 1);
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

  // ---- What the core asks for ----

  /** Wait for the promise of the function that the core called. Other calls may run meanwhile, on top of its frames. */
  async wait(): Promise<void> {
    const stack = this.#stack;
    const { pointer } = stack;
    const waiting = this.#waiting;
    const count = this.#calls.length;
    stack.pointer = this.#memory.exports.__stack_pointer.value;
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

  /** Put what the promise gave into a cell; -1 where that is an error. */
  putSettled(result: number): number {
    this.#stack.pointer = this.#afterWait;
    try {
      this.#cells.put(result, this.#settled!());
      return 0;
    } catch (error) {
      this.#errors.raise(error);
      return -1;
    } finally {
      this.#promise = undefined;
      this.#settled = undefined;
    }
  }
}
