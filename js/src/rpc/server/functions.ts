// SPDX-License-Identifier: Apache-2.0
// The functions of JavaScript that a server offers, by name.

/** A function that clients may call. Tensors come as `CoreTensor`, bytes as Uint8Array; it may return a promise. */
export type ServedFunction = (...args: any[]) => unknown;
export type ServedFunctions = ReadonlyMap<string, ServedFunction>;

/** Functions by name, such as `{ "demo.add": (a, b) => a + b }`. */
export type Functions = Readonly<Record<string, ServedFunction>> | ServedFunctions;

/** Return the names with their functions. */
export function entriesOf(functions: Functions): Iterable<readonly [string, ServedFunction]> {
  return functions instanceof Map ? functions.entries() : Object.entries(functions);
}
