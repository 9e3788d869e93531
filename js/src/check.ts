// SPDX-License-Identifier: Apache-2.0
// Checks of arguments: one of a wrong type is a TypeError that names it.

/** What was given, in words: `the number 5`, `null`, `an object of class Map`. */
export function got(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value === "object") return `an object of class ${value.constructor?.name ?? "Object"}`;
  if (typeof value === "function" || typeof value === "symbol") return `a ${typeof value}`;
  return `the ${typeof value} ${JSON.stringify(String(value).slice(0, 40))}`;
}

function check<T>(holds: boolean, value: unknown, name: string, expected: string): T {
  if (!holds) throw new TypeError(`${name} must be ${expected}, got ${got(value)}`);
  return value as T;
}

export function checkText(value: unknown, name: string): string {
  return check(typeof value === "string", value, name, "text");
}

export function checkNumber(value: unknown, name: string): number {
  return check(typeof value === "number", value, name, "a number");
}

/** What holds options, by name. */
export function checkObject<T extends object>(value: T, name: string): T {
  return check(typeof value === "object" && value !== null, value, name, "an object");
}

/** An array, or another object that gives items in order. */
export function checkArray<T extends Iterable<unknown>>(value: T, name: string): T {
  const holds = typeof value === "object" && value !== null && Symbol.iterator in value;
  return check(holds, value, name, "an array");
}

/** A function that may be left out. */
export function checkCallback<T>(value: T, name: string): T {
  return check(value === undefined || typeof value === "function", value, name, "a function");
}

export function checkSignal<T extends AbortSignal | undefined>(value: T, name: string): T {
  const holds = value === undefined || typeof value?.addEventListener === "function";
  return check(holds, value, name, "an AbortSignal");
}

/** A typed array, or another view on memory. */
export function checkView<T>(value: T, name: string): T {
  return check(ArrayBuffer.isView(value), value, name, "a typed array");
}

export function checkBytes(value: unknown, name: string): Uint8Array {
  return check(value instanceof Uint8Array, value, name, "a Uint8Array");
}
