// SPDX-License-Identifier: Apache-2.0
// What the addon asks JavaScript for, since Node-API has no functions for it: js/addon/addon.h lists the hooks.

import type { BaseRuntime } from "../core/base.js";
import { asError, CoreTensor, Module, type PackedFunc, symbolDispose } from "../core/objects.js";
import { Device } from "../device.js";
import { DataType, dtypeOf, type TypedArray } from "../dtype.js";
import { Tensor } from "../tensor.js";
import { Float, TypeIndex } from "../values.js";

/** What the addon exports. */
export interface Addon {
  /** Take the hooks, and return the version of the core. */
  start(hooks: readonly ((...args: any[]) => unknown)[]): string;
  getGlobal(name: string): PackedFunc | null;
  register(name: string, f: (...args: any[]) => unknown, override: boolean): void;
  dispose(target: object): void;
  callAsync(f: PackedFunc, args: readonly unknown[]): Promise<unknown>;
  /** A tensor of shape, code, bits and lanes. */
  allocate(description: readonly [readonly number[], number, number, number]): CoreTensor;
  /** An ArrayBuffer over a tensor's memory. */
  buffer(tensor: CoreTensor): ArrayBuffer;
  detach(buffer: ArrayBufferLike): void;
  /** Let no thread wait for this one any more. */
  abandon(): void;
}

/** The hooks, in their order. */
export function hooksOf(keeper: BaseRuntime, addon: Addon): ((...args: any[]) => unknown)[] {
  // What functions of the core have beside those of JavaScript.
  const methods = Object.create(Function.prototype, {
    async: {
      value(this: PackedFunc, ...args: unknown[]) {
        return addon.callAsync(this, args);
      },
    },
    dispose: {
      value(this: PackedFunc) {
        keeper.disposeOf(this);
      },
    },
    [symbolDispose]: {
      value(this: PackedFunc) {
        keeper.disposeOf(this);
      },
    },
  });

  function make(type: number, ...parts: any[]): unknown {
    switch (type) {
      case TypeIndex.Function:
        return Object.setPrototypeOf(parts[0], methods);
      case TypeIndex.Tensor:
        return new CoreTensor(keeper, parts[0], new DataType(parts[1], parts[2], parts[3]));
      case TypeIndex.Module:
        return new Module(keeper);
      case TypeIndex.Map:
        return toMap(parts[0]);
      case TypeIndex.DataType:
        return new DataType(parts[0], parts[1], parts[2]);
      case TypeIndex.Device:
        return new Device(parts[0], parts[1]);
    }
    return keeper.classes.stand(type, parts[0]);
  }

  return [make, lower, asError, describe];
}

function toMap(items: readonly unknown[]): Map<unknown, unknown> {
  const map = new Map<unknown, unknown>();
  for (let i = 0; i < items.length; i += 2) map.set(items[i], items[i + 1]);
  return map;
}

/** Say what a value consists of: a type index and parts; nothing for what goes through as it is.
 * @throws TypeError It cannot be passed. */
function lower(value: unknown): readonly unknown[] {
  if (typeof value === "string") {
    if (value.isWellFormed()) return [];
    throw new TypeError("text with half of a surrogate pair cannot be passed");
  }
  if (typeof value !== "object" || value === null) throw new TypeError(`a ${typeof value} cannot be passed`);
  if (value instanceof Float) return [TypeIndex.Float, value.value];
  if (value instanceof DataType) return [TypeIndex.DataType, value.code, value.bits, value.lanes];
  if (value instanceof Device) return [TypeIndex.Device, value.type, value.index];
  if (value instanceof Tensor) {
    const { code, bits, lanes } = value.dtype;
    return [TypeIndex.Tensor, value.data, value.shape, code, bits, lanes];
  }
  if (value instanceof Map) return [TypeIndex.Map, [...value].flat(1)];
  if (Object.getPrototypeOf(value) === Object.prototype) return [TypeIndex.Map, Object.entries(value).flat(1)];
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) dtypeOf(value as TypedArray); // throws
  return [];
}

/** Return class and message of what a function threw, and the error that stands for it. */
function describe(thrown: unknown): [[string, string], Error] {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  return [[String(error.name).toWellFormed(), String(error.message).toWellFormed()], error];
}
