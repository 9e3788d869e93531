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

/** A noun with its article: `a Map`, `an ArrayBuffer`. */
export function withArticle(noun: string): string {
  return `${/^[aeio]/i.test(noun) ? "an" : "a"} ${noun}`;
}

export function checkText(value: unknown, name: string): string {
  return check(typeof value === "string", value, name, "text");
}

/** A yes or no that may be left out. */
export function checkFlag(value: unknown, name: string): boolean {
  return check(value === undefined || typeof value === "boolean", value, name, "true or false") ?? false;
}

/** Whether this is Node, and no page. */
export function isNode(): boolean {
  return typeof process !== "undefined" && process.versions?.node !== undefined;
}

export function checkNumber(value: unknown, name: string): number {
  return check(typeof value === "number", value, name, "a number");
}

/** What holds options, by name. */
export function checkObject<T extends object>(value: T, name: string): T {
  return check(typeof value === "object" && value !== null, value, name, "an object");
}

/** What holds options, none but those that are named: one with a typing mistake would have no effect.
 * @throws TypeError It is no object, or has another option; the nearest one is named. */
export function checkOptions<T extends object>(options: T, names: readonly (keyof T & string)[]): T {
  for (const name of Object.keys(checkObject(options, "options"))) {
    if (names.includes(name as keyof T & string)) continue;
    const near = nearest(name, names);
    const remedy = near ? `did you mean '${near}'?` : `there are ${names.join(", ")}`;
    throw new TypeError(`there is no option '${name}' here; ${remedy}`);
  }
  return options;
}

/** The name that a mistaken one is most like, such as `sessionTimeout` for `session_timeout`; undefined when none is near. */
export function nearest(mistaken: string, names: readonly string[]): string | undefined {
  const plain = (name: string) => name.replace(/[-_]/g, "").toLowerCase();
  const distances = names.map((name) => [editDistance(plain(mistaken), plain(name)), name] as const);
  const [best] = distances.sort(([a], [b]) => a - b);
  return best && best[0] <= Math.min(2, mistaken.length / 3) ? best[1] : undefined;
}

/** How many letters have to be inserted, left out or replaced. */
function editDistance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, j) => j);
  for (const [i, letter] of [...from].entries()) {
    const next = [i + 1];
    for (let j = 0; j < to.length; ++j) {
      next.push(Math.min(row[j]! + (letter === to[j] ? 0 : 1), row[j + 1]! + 1, next[j]! + 1));
    }
    row = next;
  }
  return row[to.length]!;
}

/** An array, or another object that gives items in order. */
export function checkArray<T extends Iterable<unknown>>(value: T, name: string): T {
  const holds = typeof value === "object" && value !== null && Symbol.iterator in value;
  return check(holds, value, name, "an array");
}

export function checkFunction<T>(value: T, name: string): T {
  return check(typeof value === "function", value, name, "a function");
}

/** A function that may be left out. */
export function checkCallback<T>(value: T, name: string): T {
  return check(value === undefined || typeof value === "function", value, name, "a function");
}

export function checkSignal<T extends AbortSignal | undefined>(value: T, name: string): T {
  const holds = value === undefined || typeof value?.addEventListener === "function";
  return check(holds, value, name, "an AbortSignal");
}

/** A typed array, or another view on memory.
 * @throws TypeError It is something else, or its memory was transferred. */
export function checkView<T>(value: T, name: string): T {
  check(ArrayBuffer.isView(value), value, name, "a typed array");
  if (isDetached(value as ArrayBufferView)) {
    throw new TypeError(`${name} has no memory any more: its buffer was transferred`);
  }
  return value;
}

function isDetached({ buffer, byteLength }: ArrayBufferView): boolean {
  if (byteLength || buffer.byteLength) return false;
  try {
    new Uint8Array(buffer); // Node 20 has no other test
    return false;
  } catch {
    return true;
  }
}

export function checkBytes(value: unknown, name: string): Uint8Array {
  return check(value instanceof Uint8Array, value, name, "a Uint8Array");
}
