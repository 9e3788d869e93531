// SPDX-License-Identifier: Apache-2.0
// Loads the core.

import type { Runtime } from "./core/objects.js";
import { loadWasm } from "./core/runtime.js";

/**
 * Load the core: that of the package, or core.wasm from a file of Node, a URL, bytes or a compiled module.
 *
 * Throws ModuleLoadError where there is no such file.
 */
export async function load(source?: string | URL | Uint8Array | WebAssembly.Module): Promise<Runtime> {
  return loadWasm(source);
}
