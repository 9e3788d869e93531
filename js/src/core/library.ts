// SPDX-License-Identifier: Apache-2.0
// Libraries of kernels: a .wasm that `wasm-ld -shared` made joins the memory and the table of the core. The format is
// WebAssembly's convention for dynamic linking (tool-conventions, DynamicLinking.md).

import { ModuleLoadError } from "../errors.js";
import type { CoreMemory } from "./memory.js";

/** What a library asks for: bytes of memory and their alignment (a power of two), slots of the table. */
interface Needs {
  readonly memorySize: number;
  readonly memoryAlign: number;
  readonly tableSize: number;
}

const MEMORY_INFO = 1; // the part of the section that has the needs
const FUNCTIONS = "__tvm_ffi_"; // the prefix of what kernel compilers export
const VARIABLE = "__TVM"; // the prefix of variables that hold the address of one of the core's functions: __TVMBackend…
const MARK = "portcall_abi_version"; // of libraries with portcall's headers

function needsOf(module: WebAssembly.Module): Needs {
  const [section] = WebAssembly.Module.customSections(module, "dylink.0");
  if (!section) throw new ModuleLoadError("it is not a library: link it with wasm-ld --experimental-pic -shared");
  const bytes = new Uint8Array(section);
  let at = 0;
  const number = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      if (byte === undefined || shift > 28) throw new ModuleLoadError("its section dylink.0 is damaged");
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const part = number();
    const end = number() + at;
    if (part === MEMORY_INFO) return { memorySize: number(), memoryAlign: number(), tableSize: number() };
    at = end;
  }
  return { memorySize: 0, memoryAlign: 0, tableSize: 0 };
}

type Exports = Record<string, WebAssembly.ExportValue>;

/** Put a library into the core's memory, and return the names and addresses of what it exports for us: a place in memory,
 * or in the table for functions.
 * @throws ModuleLoadError It is not a library, or needs functions that the core does not have; they are named. */
export function linkLibrary(memory: CoreMemory, module: WebAssembly.Module): [string, number][] {
  const core = memory.exports;
  const table = core.__indirect_function_table;
  const needs = needsOf(module);
  const align = 2 ** needs.memoryAlign;
  const base = Math.ceil(memory.allocate(needs.memorySize + align) / align) * align;
  memory.bytes.fill(0, base, base + needs.memorySize);
  const tableBase = table.grow(needs.tableSize);
  const i32 = (value: number, mutable = false) => new WebAssembly.Global({ value: "i32", mutable }, value);
  const env: Record<string, WebAssembly.ImportValue> = {
    memory: core.memory,
    __indirect_function_table: table,
    __stack_pointer: core.__stack_pointer,
    __memory_base: i32(base),
    __table_base: i32(tableBase),
  };
  let own: Exports = {};
  const offered = new Set(WebAssembly.Module.exports(module).map(({ name }) => name));
  const addresses: Record<string, Record<string, WebAssembly.Global>> = { "GOT.mem": {}, "GOT.func": {} };
  const missing: string[] = [];
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (addresses[from]) addresses[from][name] = i32(0, true);
    else if (kind !== "function") continue;
    else if (typeof core[name] === "function") env[name] = core[name];
    else if (offered.has(name))
      env[name] = (...args: unknown[]) => (own[name] as (...all: unknown[]) => unknown)(...args);
    else missing.push(name);
  }
  if (missing.length) {
    throw new ModuleLoadError(`it needs functions that the core does not have: ${missing.join(", ")}`);
  }
  own = new WebAssembly.Instance(module, { env, ...addresses }).exports;

  const slots = new Map<unknown, number>();
  const addressOf = (value: unknown, start: number): number => {
    if (typeof value !== "function") return value === undefined ? 0 : (value as WebAssembly.Global).value + start;
    if (!slots.has(value)) slots.set(value, table.grow(1, value));
    return slots.get(value)!;
  };
  for (const got of Object.values(addresses)) {
    for (const [name, global] of Object.entries(got)) {
      global.value = own[name] === undefined ? addressOf(core[name], 0) : addressOf(own[name], base);
    }
  }
  for (const [name, place] of Object.entries(own)) {
    const target = name.startsWith(VARIABLE) ? core[name.slice(2)] : undefined;
    if (typeof target === "function" && place instanceof WebAssembly.Global) {
      memory.words[(place.value + base) >> 2] = addressOf(target, 0);
    }
  }
  for (const name of ["__wasm_apply_data_relocs", "__wasm_call_ctors"]) (own[name] as (() => void) | undefined)?.();
  return Object.entries(own)
    .filter(([name]) => name.startsWith(FUNCTIONS) || name === MARK)
    .map(([name, value]) => [name, addressOf(value, base)]);
}

/** Make a module object of names and addresses, and return its handle. `check` throws for a status that is an error. */
export function makeModule(
  memory: CoreMemory,
  check: (status: number) => void,
  symbols: readonly [string, number][],
): number {
  const names = symbols.map(([name]) => memory.byteArray(name));
  const place = memory.allocate(12 * symbols.length + 4);
  const addresses = place + 8 * symbols.length;
  const { words } = memory;
  for (const [i, [, address]] of symbols.entries()) {
    words[(place >> 2) + 2 * i] = words[names[i]! >> 2]!;
    words[(place >> 2) + 2 * i + 1] = words[(names[i]! >> 2) + 1]!;
    words[(addresses >> 2) + i] = address;
  }
  const out = addresses + 4 * symbols.length;
  const status = memory.exports.PortcallWebModule(place, addresses, symbols.length, out);
  const handle = memory.words[out >> 2]! >>> 0;
  for (const address of [...names, place]) memory.free(address);
  check(status);
  return handle;
}
