// SPDX-License-Identifier: Apache-2.0
// Libraries in C for the tests, compiled by the machine's compiler, or by that of the environment variable CC.

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "../captures.js";

const folder = mkdtempSync(join(tmpdir(), "portcall-native-"));
after(() => rmSync(folder, { recursive: true }));

/** Compile `js/test/native/NAME.c` and return the path of the library. */
export function compile(name: string): string {
  const at = (path: string) => fileURLToPath(new URL(path, ROOT));
  const out = join(folder, `${name}.so`);
  const words = ["-O1", "-fPIC", "-shared", "-pthread", `-I${at("core/include")}`, at(`js/test/native/${name}.c`)];
  const [compiler, ...first] = (process.env.CC ?? "cc").split(" ");
  execFileSync(compiler!, [...first, ...words, "-o", out]);
  return out;
}
