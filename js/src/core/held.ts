// SPDX-License-Identifier: Apache-2.0
// What the core holds of JavaScript, by number: functions that it calls, objects and errors that it carries.

export class Held {
  readonly #values: unknown[] = [];
  readonly #idle: number[] = [];

  /** Keep a value, and return its number. */
  add(value: unknown): number {
    const number = this.#idle.pop() ?? this.#values.length;
    this.#values[number] = value;
    return number;
  }

  at(number: number): unknown {
    return this.#values[number];
  }

  /** Forget a value; its number is given again. */
  free(number: number): void {
    this.#values[number] = undefined;
    this.#idle.push(number);
  }
}
