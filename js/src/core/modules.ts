// SPDX-License-Identifier: Apache-2.0
// Libraries of kernels and bundles, loaded into a core in WebAssembly.

import { checkBytes } from "../check.js";
import type { TypedArray } from "../dtype.js";
import { TypeIndex } from "../values.js";
import { readBundle } from "./bundle.js";
import { linkLibrary, makeModule } from "./library.js";
import type { CoreMemory } from "./memory.js";
import type { CoreTensor, Module, PackedFunc } from "./objects.js";
import { compileBytes, compileNow, readSource } from "./source.js";

/** The core that they are loaded into. */
interface Loader {
  readonly memory: CoreMemory;
  check(status: number): void;
  wrap(handle: number, type: number): unknown;
  tensor(data: TypedArray): CoreTensor;
  getGlobalFunc(name: string): PackedFunc;
}

/** Load a library or a bundle from a file of Node, a URL or its bytes. */
export async function loadModule(core: Loader, source: string | URL | Uint8Array): Promise<Module> {
  const bytes = source instanceof Uint8Array ? source : await readSource(source);
  return open(core, await compileBytes(readBundle(bytes)?.library ?? bytes), bytes);
}

/** The same at once, from bytes. */
export function loadModuleSync(core: Loader, bytes: Uint8Array): Module {
  checkBytes(bytes, "the bytes of a library");
  return open(core, compileNow(readBundle(bytes)?.library ?? bytes), bytes);
}

function open(core: Loader, library: WebAssembly.Module, file: Uint8Array): Module {
  const handle = makeModule(core.memory, (status) => core.check(status), linkLibrary(core.memory, library));
  const kernels = core.wrap(handle, TypeIndex.Module) as Module;
  const bundle = readBundle(file);
  if (!bundle) return kernels;
  const content = core.tensor(bundle.content); // its parameters are used in place
  try {
    return core.getGlobalFunc("portcall.OpenBundle")(content, bundle.indexOffset, bundle.indexSize, kernels);
  } finally {
    content.dispose();
    kernels.dispose();
  }
}
