// SPDX-License-Identifier: Apache-2.0
// Libraries of kernels that a client sends: functions that it calls by name (docs/wire.md, section 7).

import { Module, type Runtime } from "../../core/runtime.js";
import { FunctionNotFoundError } from "../../errors.js";
import type { Files } from "./files.js";
import type { ServedFunction } from "./local_session.js";

/** The functions by their names. Each library is loaded into the core, which keeps it as long as it lives. */
export function moduleFunctions(core: Runtime, files: Files): [string, ServedFunction][] {
  return [
    ["tvm.rpc.server.load_module", (path) => core.loadModuleSync(files.get(path))],
    ["tvm.rpc.server.ModuleGetFunction", (module, name) => functionOf(module, name)],
  ];
}

/** Return a function of a module; null when it has none of that name. */
function functionOf(module: unknown, name: unknown): ServedFunction | null {
  if (!(module instanceof Module) || typeof name !== "string") throw new TypeError("a module and a name are needed");
  try {
    return module.get(name);
  } catch (error) {
    if (error instanceof FunctionNotFoundError) return null;
    throw error;
  }
}
