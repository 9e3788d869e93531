// SPDX-License-Identifier: Apache-2.0
// Imports point down: a file may import from its own line, or from those above it in the list.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "./captures.js";

const LAYERS = [
  ["errors", "check", "dtype", "device", "text", "values", "node"],
  ["tensor"],
  ["core"],
  ["native"],
  ["load"],
  ["vm"],
  ["rpc/wire"],
  ["rpc/transport"],
  ["rpc/client", "rpc/server"],
  ["rpc/index"],
  ["index"],
  ["cli", "page"],
];
const SOURCES = fileURLToPath(new URL("js/src/", ROOT));

function layerOf(file: string): number {
  const layer = LAYERS.findIndex((names) => names.some((name) => file === `${name}.ts` || file.startsWith(`${name}/`)));
  assert(layer >= 0, `${file} is in no layer`);
  return layer;
}

/** The files that each file imports, types included. */
function readImports(): Map<string, string[]> {
  const files = readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".ts"));
  return new Map(
    files.map((file) => {
      const text = readFileSync(join(SOURCES, file), "utf8");
      const found = [...text.matchAll(/(?:from|import\()\s*"(\.[^"]*)\.js"/g)];
      return [file, found.map(([, from]) => normalize(join(dirname(file), `${from}.ts`)))];
    }),
  );
}

test("imports point down", () => {
  const imports = [...readImports()].flatMap(([file, targets]) => targets.map((target) => [file, target] as const));
  const wrong = imports.filter(([file, target]) => layerOf(target) > layerOf(file));
  assert.deepEqual(wrong, []);
  assert(imports.length > 30);
});

test("no files import each other in a circle", () => {
  const imports = readImports();
  for (let size = -1; size !== imports.size; ) {
    size = imports.size; // what imports nothing that is left is in no circle
    for (const [file, targets] of imports) if (!targets.some((target) => imports.has(target))) imports.delete(file);
  }
  assert.deepEqual([...imports.keys()], []);
});
