// SPDX-License-Identifier: Apache-2.0
// Where code comes from: files of Node, URLs and bytes.

import { checkText, isNode } from "../check.js";
import { ModuleLoadError } from "../errors.js";

/** A WebAssembly.Module, where the program that uses these types knows that. */
export type CompiledModule = typeof globalThis extends { WebAssembly: { Module: { prototype: infer Module } } }
  ? Module
  : object;

/** Return the bytes of a file of Node or of a URL.
 * @throws ModuleLoadError They cannot be read. */
export async function readSource(source: string | URL): Promise<Uint8Array> {
  if (!(source instanceof URL)) checkText(source, "the source");
  try {
    if (isNode() && !/^https?:/.test(String(source))) {
      const { readFile } = await import("../node.js");
      return new Uint8Array(await readFile(/^file:/.test(String(source)) ? new URL(source) : source));
    }
    const answer = await fetch(source);
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    return new Uint8Array(await answer.arrayBuffer());
  } catch (error) {
    const { message, cause } = error as Error;
    const why = cause instanceof Error && cause.message ? cause.message : message; // fetch tells why there
    throw new ModuleLoadError(`${source} cannot be read: ${why}`, { cause: error });
  }
}

/** Compile bytes.
 * @throws ModuleLoadError They are not WebAssembly. */
export async function compileBytes(bytes: Uint8Array): Promise<CompiledModule> {
  return WebAssembly.compile(bytes as Uint8Array<ArrayBuffer>).catch(notWebAssembly);
}

/** The same at once. */
export function compileNow(bytes: Uint8Array): CompiledModule {
  try {
    return new WebAssembly.Module(bytes as Uint8Array<ArrayBuffer>);
  } catch (error) {
    return notWebAssembly(error as Error);
  }
}

function notWebAssembly(error: Error): never {
  if (!(error instanceof WebAssembly.CompileError)) throw error; // such as a page's, which takes small files only at once
  throw new ModuleLoadError(`it is not WebAssembly: ${error.message}`, { cause: error });
}
