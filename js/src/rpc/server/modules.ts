// SPDX-License-Identifier: Apache-2.0
// Libraries of kernels that a client sends: functions that it calls by name (docs/wire.md, section 7).

import type { Runtime } from "../../core/interface.js";
import { ServedError } from "./error_text.js";
import type { Files } from "./files.js";
import type { ServedFunction } from "./functions.js";

/** The functions by their names. Each library is loaded into the core, the session's own. */
export function moduleFunctions(core: Runtime, files: Files): [string, ServedFunction][] {
  return [
    ["tvm.rpc.server.load_module", (path) => core.loadModuleSync(files.get(path))],
    ["portcall.rpc.machine", (_path = "", needs = "") => machine(core, needs)],
  ];
}

const OWN_MODULE = "__tvm_ffi__library_ctx"; // the core fills it in, too
const MACHINE = {
  build: { machine: "wasm32", bits: 32, byte_order: "little" },
  ...{ system: "wasm", libc: "", libc_version: "", target: "wasm32" },
  abis: ["modern"],
};

/** Say, as JSON, what libraries are to be compiled for, and what of a library's needs is not there. */
function machine(core: Runtime, needs: unknown): string {
  const answer: Record<string, unknown> = { machine: { ...MACHINE, portcall: core.version } };
  if (needs !== "") {
    const { needed, contexts, symbols } = parseNeeds(needs);
    const libraries = Object.fromEntries(needed.map((name) => [name, "it"]));
    const lacks = (name: string) => !core.offers(name);
    // Variables that hold the address of what has their name (core/library.ts), and one of the library itself.
    const unfilled = contexts.filter((name) => name !== OWN_MODULE && lacks(name.replace(/^__/, "")));
    answer.unmet = { libraries, versions: {}, contexts: unfilled, symbols: symbols.filter(lacks) };
  }
  return JSON.stringify(answer);
}

function parseNeeds(text: unknown): { needed: string[]; contexts: string[]; symbols: string[] } {
  if (typeof text !== "string") throw new TypeError("a library's needs are text");
  const facts = JSON.parse(text);
  for (const name of ["needed", "contexts", "symbols"]) {
    const names = facts?.[name];
    if (!Array.isArray(names) || !names.every((item) => typeof item === "string")) {
      throw new ServedError("ValueError", `'${name}' of the needs is not a list of names`);
    }
  }
  return facts;
}
