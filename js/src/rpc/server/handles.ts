// SPDX-License-Identifier: Apache-2.0
// What the client of a session knows by number. Numbers are never given twice; each has a kind.

import { ServedError } from "./error_text.js";

export type HandleKind = "function" | "object" | "tensor" | "memory";

interface Entry {
  readonly kind: HandleKind;
  readonly value: unknown;
  /** References that the client has. */
  count: number;
  /** The name under which a function was found. */
  readonly name: string | undefined;
}

const MOST = 1_000_000; // entries of one session

export class HandleTable {
  readonly #entries = new Map<bigint, Entry>();
  readonly #named = new Map<string, bigint>();
  #last = 0n;

  /** Keep a value and return its number. */
  add(kind: HandleKind, value: unknown, name?: string): bigint {
    if (this.#entries.size >= MOST) throw new ServedError("MemoryError", `the session has ${MOST} handles; free some`);
    this.#last += 1n;
    this.#entries.set(this.#last, { kind, value, count: 1, name });
    if (name !== undefined) this.#named.set(name, this.#last);
    return this.#last;
  }

  /** Return the number of a function that was found before under that name, with one more reference. */
  addNamed(name: string): bigint | undefined {
    const handle = this.#named.get(name);
    if (handle !== undefined) this.#entries.get(handle)!.count += 1;
    return handle;
  }

  /** Return a value.
   * @throws ServedError There is none of that number, or it is of another kind. */
  get(handle: bigint, ...kinds: HandleKind[]): any {
    return this.#find(handle, kinds).value;
  }

  /** Give up one reference and return the value.
   * @throws ServedError There is none of that number, or it is of another kind. */
  free(handle: bigint, ...kinds: HandleKind[]): unknown {
    const entry = this.#find(handle, kinds);
    entry.count -= 1;
    if (entry.count === 0) {
      this.#entries.delete(handle);
      if (entry.name !== undefined) this.#named.delete(entry.name);
    }
    return entry.value;
  }

  #find(handle: bigint, kinds: HandleKind[]): Entry {
    const entry = this.#entries.get(handle);
    if (entry && kinds.includes(entry.kind)) return entry;
    const what = entry ? `is a ${entry.kind}` : "is not known";
    throw new ServedError("ValueError", `the handle ${handle} ${what}, instead of a ${kinds.join(" or ")}`);
  }

  clear(): void {
    this.#entries.clear();
    this.#named.clear();
  }
}
