// SPDX-License-Identifier: Apache-2.0
// Loads the core.

import { checkOptions, got, isNode } from "./check.js";
import type { Runtime } from "./core/interface.js";
import { loadWasm } from "./core/runtime.js";
import type { CompiledModule } from "./core/source.js";
import { ModuleLoadError } from "./errors.js";

/** Which core: that of a backend, or core.wasm from a file of Node, a URL, bytes or a compiled module. */
export type CoreSource = { readonly backend: "native" | "wasm" } | string | URL | Uint8Array | CompiledModule;

/**
 * Load the core: in Node the native one, where its package is there, else core.wasm of this package.
 *
 * Throws ModuleLoadError where there is no such core, and TypeError for a source of another kind.
 */
export async function load(source?: CoreSource): Promise<Runtime> {
  if (source !== undefined && !isBackend(source)) return loadWasm(source);
  const backend = source && checkOptions(source, ["backend"]).backend;
  if (source && backend !== "native" && backend !== "wasm") {
    throw new TypeError(`backend must be "native" or "wasm", got ${got(backend)}`);
  }
  if (backend === "wasm" || (!backend && !isNode())) return loadWasm();
  if (!isNode()) throw new ModuleLoadError("the native core is for Node");
  const { loadNative } = await import("./native/runtime.js");
  if (backend === "native") return loadNative();
  try {
    return loadNative();
  } catch (native) {
    return loadWasm().catch((wasm) => {
      throw new ModuleLoadError(`${(native as Error).message}; ${wasm.message}`, { cause: native });
    });
  }
}

function isBackend(source: unknown): source is { readonly backend: "native" | "wasm" } {
  return typeof source === "object" && source !== null && Object.getPrototypeOf(source) === Object.prototype;
}
