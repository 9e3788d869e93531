// SPDX-License-Identifier: Apache-2.0
// Imports point down: a file may import from its own line, or from those above it in the list.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "./captures.js";

const LAYERS = [
  ["errors", "dtype", "device", "text", "values"],
  ["tensor"],
  ["core"],
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

test("imports point down", () => {
  const files = readdirSync(SOURCES, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".ts"));
  const wrong: string[] = [];
  let imports = 0;
  for (const file of files) {
    for (const [, from] of readFileSync(join(SOURCES, file), "utf8").matchAll(/(?:from|import\()\s*"(\.[^"]*)\.js"/g)) {
      const target = normalize(join(dirname(file), `${from}.ts`));
      imports += 1;
      if (layerOf(target) > layerOf(file)) wrong.push(`${file} imports ${target}`);
    }
  }
  assert.deepEqual(wrong, []);
  assert(imports > 30);
});
