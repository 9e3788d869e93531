// SPDX-License-Identifier: Apache-2.0
// Errors on their way through the core: one that JavaScript threw comes out as the same object.

import { PortcallError } from "../errors.js";
import type { Held } from "./held.js";
import { ERROR } from "./layout.js";
import type { CoreMemory } from "./memory.js";
import { asError } from "./objects.js";
import type { Stack } from "./stack.js";

export class Thrown {
  /** Makes an error, as callers are to see it, of what a function of JavaScript threw. */
  asThrown: (thrown: unknown) => Error = (thrown) => (thrown instanceof Error ? thrown : new Error(String(thrown)));
  readonly #memory: CoreMemory;
  readonly #stack: Stack;
  readonly #held: Held;
  // What carries an error through the core: a function object that is never called, by handle and by number.
  readonly #carriers = new Map<number, number>();
  readonly #handles = new Map<number, number>();

  constructor(memory: CoreMemory, stack: Stack, held: Held) {
    this.#memory = memory;
    this.#stack = stack;
    this.#held = held;
  }

  /** Throw the error that the core raised, if the status is that of one. */
  check(status: number): void {
    if (status !== 0) throw this.taken();
  }

  /** Leave an error for the core, which carries the very object with it. */
  raise(thrown: unknown): void {
    const error = this.asThrown(thrown);
    const memory = this.#memory;
    const carrier = this.#makeCarrier(this.#held.add(error));
    const texts = [error.name, error.message.toWellFormed(), ""].map((text) => memory.byteArray(text));
    const out = this.#stack.top;
    memory.exports.TVMFFIErrorCreateWithCauseAndExtraContext(...texts, 0, carrier, out);
    const handle = memory.words[out >> 2]!;
    memory.exports.TVMFFIErrorSetRaised(handle);
    for (const text of texts) memory.free(text);
    memory.exports.TVMFFIObjectDecRef(handle);
    memory.exports.TVMFFIObjectDecRef(carrier);
  }

  #makeCarrier(number: number): number {
    const out = this.#stack.top;
    this.check(this.#memory.exports.PortcallWebFunction(number, 0, out));
    const handle = this.#memory.words[out >> 2]! >>> 0;
    this.#carriers.set(handle, number);
    this.#handles.set(number, handle);
    return handle;
  }

  /** The core has no use any more for what has that number, which may have been an error. */
  freed(number: number): void {
    this.#carriers.delete(this.#handles.get(number) ?? 0);
    this.#handles.delete(number);
  }

  /** Take the error that the core raised: the object that JavaScript threw, or one of the class of that name. */
  taken(): Error {
    const memory = this.#memory;
    const out = this.#stack.top;
    memory.exports.TVMFFIErrorMoveFromRaised(out);
    const handle = memory.words[out >> 2]! >>> 0;
    if (!handle) return new PortcallError("a call failed without an error");
    const number = this.#carriers.get(memory.words[(handle + ERROR.CONTEXT) >> 2]! >>> 0);
    const thrown = number === undefined ? undefined : this.#held.at(number);
    const [kind, message, trace] = [ERROR.KIND, ERROR.MESSAGE, ERROR.TRACE].map((at) => memory.textOf(handle + at)) as [
      string,
      string,
      string,
    ];
    memory.exports.TVMFFIObjectDecRef(handle);
    if (thrown instanceof Error) return thrown;
    return asError(kind, message, trace);
  }
}
