// SPDX-License-Identifier: Apache-2.0
// What core.wasm imports: a clock, an output, and system calls that answer that there is no file.

import type { CoreMemory } from "./memory.js";

const SUCCESS = 0;
const BAD_FILE = 8; // of WASI
const NOT_IMPLEMENTED = -52; // ENOSYS of emscripten's system calls
const NANOSECONDS = 1e6; // in a millisecond
const REALTIME = 0;

/** Return imports for a module, whose memory `memory` returns once it is there. */
export function systemImports(module: WebAssembly.Module, memory: () => CoreMemory): WebAssembly.Imports {
  const wasi = {
    clock_time_get(id: number, _precision: bigint, out: number) {
      const now = id === REALTIME ? Date.now() : performance.now();
      memory().view.setBigUint64(out, BigInt(Math.round(now * NANOSECONDS)), true);
      return SUCCESS;
    },
    environ_sizes_get(count: number, size: number) {
      memory().view.setUint32(count, 0, true);
      memory().view.setUint32(size, 0, true);
      return SUCCESS;
    },
    environ_get: () => SUCCESS,
    proc_exit(code: number) {
      throw new Error(`the core ended with ${code}`);
    },
    fd_close: () => BAD_FILE,
    fd_read: () => BAD_FILE,
    fd_seek: () => BAD_FILE,
    fd_write(file: number, parts: number, count: number, out: number) {
      const { view } = memory();
      let text = "";
      let size = 0;
      for (let at = parts; at < parts + 8 * count; at += 8) {
        text += memory().textAt(view.getUint32(at, true), view.getUint32(at + 4, true));
        size += view.getUint32(at + 4, true);
      }
      (file === 2 ? console.error : console.log)(text.replace(/\n$/, ""));
      view.setUint32(out, size, true);
      return SUCCESS;
    },
  };
  const env: Record<string, () => unknown> = { emscripten_notify_memory_growth: () => undefined };
  for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
    if (from === "env" && kind === "function") env[name] ??= () => NOT_IMPLEMENTED;
  }
  return { wasi_snapshot_preview1: wasi, env };
}
