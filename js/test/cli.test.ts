// SPDX-License-Identifier: Apache-2.0
// The command, as users mistype it; what it serves is in wasm/cli.test.ts.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "./captures.js";

const CLI = fileURLToPath(new URL("js/build/src/cli.js", ROOT));
let folder: string;
before(() => {
  folder = mkdtempSync(join(tmpdir(), "portcall-js-"));
});
after(() => rmSync(folder, { recursive: true }));

test("a wrong command line has exit code 2, and an error 1", () => {
  const run = (...args: string[]) => spawnSync(process.execPath, [CLI, ...args], { encoding: "utf8", timeout: 60_000 });
  const wrong = ["--nothing"],
    open = ["--address", "0.0.0.0:0"],
    late = ["--session-timeout", "abc"],
    bare = ["--memory-limit", "1000"], // of what?
    python = ["--import", "functions.py"];
  const words = [wrong, open, late, bare, python, ["--import", CLI.replace("cli", "errors")]].map((each) => [
    "serve",
    ...each,
  ]);
  for (const args of [[], ["fetch"], ...words]) {
    const { status, stderr } = run(...args);
    assert.deepEqual([status, stderr.includes("portcall --help")], [2, true], args.join(" "));
  }
  const near = { "--session_timeout": "--session-timeout", "--port": "--address", "--memry-limit": "--memory-limit" };
  for (const [typed, meant] of Object.entries(near)) {
    assert(run("serve", typed, "1").stderr.includes(` ${meant}?`), typed);
  }
  assert.equal(run("serve", "--import", join(folder, "missing.mjs")).status, 1);
  assert.equal(run("serve", "--address", "127.0.0.1:x").status, 1);
  const bad = join(folder, "bad.mjs");
  for (const text of ["\n\nconst a = ;", "\n\nthrow new TypeError('no');"]) {
    writeFileSync(bad, text);
    const { status, stderr } = run("serve", "--import", bad);
    assert.deepEqual([status, stderr.includes(`'${bad}'`), stderr.includes("line 3")], [1, true, true], stderr);
  }
  const help = run("--help");
  assert.deepEqual([help.status, help.stdout.startsWith("Usage: portcall serve")], [0, true]);
});
