// SPDX-License-Identifier: Apache-2.0
// What is published.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { load, ModuleLoadError } from "../src/index.js";
import { ROOT } from "./captures.js";

const HERE = fileURLToPath(new URL("js/", ROOT));
const description = JSON.parse(readFileSync(`${HERE}package.json`, "utf8"));

test("the package has the compiled sources with their types and the page, and nothing else", () => {
  const [packed] = JSON.parse(
    execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: HERE }).toString(),
  );
  const names: string[] = packed.files.map((file: { path: string }) => file.path);
  const others = names.filter((name) => !/^build\/src\/.*\.(js|d\.ts)$/.test(name));
  assert.deepEqual(others.filter((name) => name !== "LICENSE" && name !== "core.wasm").sort(), [
    "README.md",
    "package.json",
    "page/device.html",
  ]);
  assert(names.includes("build/src/index.js") && names.includes("build/src/index.d.ts"));
  assert(packed.unpackedSize < 1_000_000, `${packed.unpackedSize} bytes`);
});

test("the package has the version of the Python package, and needs no other", () => {
  const version = /^version = "([^"]+)"/m.exec(readFileSync(new URL("pyproject.toml", ROOT), "utf8"))?.[1];
  assert.equal(description.version, version);
  assert.equal(description.dependencies, undefined);
});

test("without core.wasm the error says how to make it", async () => {
  const absent = new URL("js/nonesuch.wasm", ROOT);
  await assert.rejects(load(absent), (error) => error instanceof ModuleLoadError && /make wasm/.test(error.message));
});
