// SPDX-License-Identifier: Apache-2.0
// Objects as text.

import { CoreObject, CoreTensor, type ObjectClass } from "./objects.js";

const DEEPEST = 5; // objects and containers in each other
const MOST = 20; // items of a container

/** Return an object as text: its type, and its fields or items. */
export function showObject(object: CoreObject): string {
  return show(object, 0);
}

function show(value: unknown, depth: number): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "function") return `function ${value.name}`;
  if (typeof value !== "object" || value === null) return String(value);
  if (value instanceof CoreTensor) return `Tensor([${value.shape}], ${value.dtype})`;
  if (value instanceof CoreObject) return `${value.typeKey}${depth === DEEPEST ? "(…)" : partsOf(value, depth + 1)}`;
  if (depth === DEEPEST) return "…";
  if (Array.isArray(value)) return `[${listed(value.map((item) => show(item, depth + 1)))}]`;
  if (!(value instanceof Map)) return String(value);
  return `{${listed([...value].map(([key, item]) => `${show(key, depth + 1)}: ${show(item, depth + 1)}`))}}`;
}

function partsOf(object: CoreObject & { toArray?(): unknown[]; toMap?(): unknown }, depth: number): string {
  if (object.toArray) return `(${show(object.toArray(), depth)})`;
  if (object.toMap) return `(${show(object.toMap(), depth)})`;
  const { fields } = object.constructor as unknown as ObjectClass;
  if (!fields) return "";
  const values = object as unknown as Record<string, unknown>;
  const shown = fields.filter(({ hidden }) => !hidden);
  return `(${shown.map(({ name, property }) => `${name}=${show(values[property], depth)}`).join(", ")})`;
}

function listed(items: string[]): string {
  return items.slice(0, MOST).join(", ") + (items.length > MOST ? ", …" : "");
}
