// SPDX-License-Identifier: Apache-2.0
// What is published.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { load, ModuleLoadError } from "../src/index.js";
import { ROOT } from "./captures.js";

const HERE = fileURLToPath(new URL("js/", ROOT));
const description = JSON.parse(readFileSync(`${HERE}package.json`, "utf8"));
const PLATFORM = `${HERE}platform/${process.platform}-${process.arch}/`;

/** What `npm pack` would put into a package. */
function pack(folder: string): { files: { path: string }[]; unpackedSize: number } {
  const words = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  return JSON.parse(execFileSync("npm", words, { cwd: folder }).toString())[0];
}

test("the package has the compiled sources with their types and the pages, and nothing else", () => {
  const packed = pack(HERE);
  const names = packed.files.map((file) => file.path);
  const others = names.filter((name) => !/^build\/src\/.*\.(js|d\.ts)$/.test(name));
  assert.deepEqual(others.filter((name) => name !== "LICENSE" && name !== "core.wasm").sort(), [
    "README.md",
    "package.json",
    "page/device.html",
    "page/language.html",
  ]);
  assert(names.includes("build/src/index.js") && names.includes("build/src/index.d.ts"));
  assert(packed.unpackedSize < 1_150_000, `${packed.unpackedSize} bytes`);
});

test("the types need neither a page's nor Node's, and take an option that is undefined", () => {
  const program = `${HERE}build/user.mts`;
  writeFileSync(
    program,
    'import { load, openWebGpu, rpc } from "portcall"; export const users = [load, openWebGpu, rpc.listen];\n' +
      'const key: string | undefined = users.length ? undefined : "k";\n' +
      'void rpc.connect("host", { key, timeout: undefined });\n' +
      "void rpc.listen({ functions: {}, key, onSession: undefined });\n",
  );
  const strict = ["--ignoreConfig", "--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext"];
  for (const [lib, types] of [
    ["es2022,esnext.disposable,dom", ""],
    ["es2022,esnext.disposable", "node"],
  ] as const) {
    const words = [...strict, "--skipLibCheck", "false", "--lib", lib, "--types", types];
    const run = spawnSync(process.execPath, [`${HERE}node_modules/typescript/bin/tsc`, ...words, program]);
    assert.equal(String(run.stdout), "", lib);
  }
});

test("a page's bundle needs no option, and has nothing of Node", async () => {
  const { outputFiles, warnings } = await build({
    stdin: { contents: 'import { load, rpc } from "portcall"; window.portcall = { load, rpc };', resolveDir: HERE },
    bundle: true,
    format: "esm",
    write: false,
    logLevel: "silent",
  });
  assert.deepEqual(warnings, []);
  const [{ text }] = outputFiles as [(typeof outputFiles)[0]];
  assert.deepEqual(text.match(/["']node:[^"']*/g), null);
  assert(!text.includes("createConnection"));
});

test("the package has the version of the Python package, and needs no other", () => {
  const version = /^version = "([^"]+)"/m.exec(readFileSync(new URL("pyproject.toml", ROOT), "utf8"))?.[1];
  assert.equal(description.version, version);
  assert.equal(description.dependencies, undefined);
  const platforms = readdirSync(`${HERE}platform`).sort();
  assert.deepEqual(
    description.optionalDependencies,
    Object.fromEntries(platforms.map((name) => [`@portcall/${name}`, version])),
  );
});

test("npm installs the package of a platform there only", () => {
  for (const folder of readdirSync(`${HERE}platform`)) {
    const { name, version, os, cpu, libc } = JSON.parse(readFileSync(`${HERE}platform/${folder}/package.json`, "utf8"));
    assert.deepEqual([name, `${os}-${cpu}`], [`@portcall/${folder}`, folder]);
    assert.deepEqual([version, libc], [description.version, ["glibc"]]);
  }
});

test("the package of a platform has the addon and the core, and nothing else", () => {
  const names = pack(PLATFORM).files.map((file) => file.path);
  const needed = ["libportcall.so", "libportcall_graph.so", "libportcall_ir.so", "package.json", "portcall.node"];
  assert.deepEqual(names.filter((name) => name !== "LICENSE").sort(), needed);
  assert(!readFileSync(`${PLATFORM}portcall.node`).includes(fileURLToPath(ROOT)), "it tells a path of this machine");
});

test("npm installs what the package is developed with, without an option", () => {
  const words = ["install", "--dry-run", "--offline", "--no-package-lock", "--no-audit", "--no-fund"];
  execFileSync("npm", words, { cwd: HERE, stdio: "pipe" }); // throws where npm refuses
});

test("the packed packages work in an empty folder", () => {
  const folder = mkdtempSync(join(tmpdir(), "portcall-installed-"));
  try {
    const words = ["--ignore-scripts", "--silent", "--pack-destination", folder];
    const packed = execFileSync("npm", ["pack", ...words, HERE, PLATFORM])
      .toString()
      .trim()
      .split("\n");
    writeFileSync(join(folder, "package.json"), "{}");
    const install = ["install", "--offline", "--no-audit", "--no-fund", ...packed.map((name) => join(folder, name))];
    execFileSync("npm", install, { cwd: folder, stdio: "pipe" });
    writeFileSync(
      join(folder, "first.mjs"),
      'import { load } from "portcall"; const core = await load({ backend: "native" });' +
        'core.registerFunc("demo.add", (a, b) => a + b); console.log(core.getGlobalFunc("demo.add")(1, 2));',
    );
    assert.equal(execFileSync(process.execPath, ["first.mjs"], { cwd: folder }).toString(), "3\n");
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a server without core.wasm says that it needs it", () => {
  const folder = mkdtempSync(join(tmpdir(), "portcall-coreless-"));
  try {
    cpSync(`${HERE}build/src`, join(folder, "build/src"), { recursive: true });
    writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
    for (const where of ["--address=127.0.0.1:0", "--proxy=127.0.0.1:1"]) {
      const words = [join(folder, "build/src/cli.js"), "serve", where];
      const { status, stderr } = spawnSync(process.execPath, words, { encoding: "utf8", timeout: 60_000 });
      assert.deepEqual([status, stderr.includes("make wasm")], [1, true], stderr);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a core that is not there is a ModuleLoadError, and a source of another kind a TypeError", async () => {
  await assert.rejects(load(new URL("js/nonesuch.wasm", ROOT)), ModuleLoadError);
  await assert.rejects(load(HERE), ModuleLoadError); // a folder
  await assert.rejects(load(new Uint8Array([1, 2, 3])), ModuleLoadError);
  const wrong = [{}, { backend: "wsm" }, { backend: "native", core: 1 }, null, 5, new Map()];
  for (const source of wrong) await assert.rejects(load(source as never), TypeError, String(source));
});
