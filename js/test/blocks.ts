// SPDX-License-Identifier: Apache-2.0
// The code blocks of the documentation, and programs of them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { transformSync } from "esbuild";
import { ROOT } from "./captures.js";

export const GUIDE = "docs/javascript.md";

/** Return the code of the blocks of a page in a language. */
export function blocksOf(page: string, language: string): string[] {
  const text = readFileSync(new URL(page, ROOT), "utf8");
  const blocks = [...text.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, "gms"))].map(([, code]) => code!);
  assert(blocks.length, `${page} has no block of ${language}`);
  return blocks;
}

/** Return the block of the guide that has a text. */
export function blockWith(language: string, text: string): string {
  const found = blocksOf(GUIDE, language).filter((code) => code.includes(text));
  assert.equal(found.length, 1, `${GUIDE} has ${found.length} blocks of ${language} with '${text}'`);
  return found[0]!;
}

const BUILD = fileURLToPath(new URL("js/build/", ROOT)); // where "portcall" is this package

/** Return a new folder for programs, below which "portcall" is this package. */
export function folderForPrograms(): string {
  const parent = join(BUILD, "pages");
  mkdirSync(parent, { recursive: true });
  return mkdtempSync(join(parent, "run-"));
}

/** Write a program of a block, after lines that make the names that the block has from elsewhere, and return its path. */
export function writeProgram(folder: string, before: string, code: string): string {
  const path = join(folder, `program-${basename(folder)}.mjs`);
  writeFileSync(path, transformSync(`${before}\n${code}`, { target: "node20", format: "esm" }).code); // without `using`
  return path;
}

/** Run a program of a block, in its folder, and return what it prints. */
export function runBlock(folder: string, before: string, code: string): string {
  const program = writeProgram(folder, before, code);
  return execFileSync(process.execPath, [program], { cwd: folder, timeout: 60_000 }).toString();
}
