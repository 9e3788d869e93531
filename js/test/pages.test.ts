// SPDX-License-Identifier: Apache-2.0
// The blocks of JavaScript in README.md, js/README.md and docs/javascript.md are right: the types allow them, and those of
// clients and of the native core run as they stand. What needs core.wasm is in wasm/pages.test.ts.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { blocksOf, blockWith, folderForPrograms, GUIDE, runBlock } from "./blocks.js";
import { ROOT } from "./captures.js";
import { portcallServer } from "./servers.js";

const PAGES = ["README.md", "js/README.md", GUIDE];
let folder: string;
before(() => {
  folder = folderForPrograms();
});
after(() => rmSync(folder, { recursive: true }));

for (const page of ["README.md", GUIDE]) {
  test(`the first snippet of ${page} runs`, async () => {
    const code = blocksOf(page, "js")[0]!;
    assert(code.includes('"127.0.0.1:9090"'));
    const server = await portcallServer("--key", "rasp");
    try {
      assert.equal(runBlock(folder, "", code.replace("127.0.0.1:9090", server.address)), "1\n");
    } finally {
      await server.stop();
    }
  });
}

test("the snippet of the native core runs", () => {
  const slow = "int __tvm_ffi_slow(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) { return 0; }";
  writeFileSync(join(folder, "kernels.c"), `${blockWith("c", "add_one")}\n${slow}\n`);
  const include = fileURLToPath(new URL("core/include", ROOT));
  execFileSync("cc", ["-fPIC", "-shared", `-I${include}`, "kernels.c", "-o", "kernels.so"], { cwd: folder });
  runBlock(folder, "const x = new Float32Array(2);", blockWith("js", 'loadModule("kernels.so")'));
});

// What the blocks have from the text around them, by name.
const FROM_THE_TEXT = {
  bytes: "Uint8Array",
  core: "Runtime",
  f: "rpc.RemoteFunction",
  functions: "rpc.Functions",
  inputs: "number[]",
  module: "rpc.RemoteModule",
  pixels: "Float32Array",
  session: "rpc.Session",
  shapes: "Uint8Array",
  x: "any",
  y: "any",
};
const EXPORTED = ["device", "dtype", "Float", "load", "openWebGpu", "rpc", "Tensor", "vm"];

/** Return a block as a module of TypeScript that has all names. */
function typed(code: string): string {
  const imported = [...code.matchAll(/^import (.*) from/gm)].map(([, names]) => names).join();
  const made = [...code.matchAll(/(?:const|using) (\[[^\]]*\]|\w+)/g)].map(([, names]) => names).join();
  const has = (names: string, name: string) => new RegExp(`\\b${name}\\b`).test(names);
  const missing = EXPORTED.filter((name) => !has(imported, name));
  const declared = Object.entries(FROM_THE_TEXT)
    .filter(([name]) => !has(`${imported},${made}`, name))
    .map(([name, type]) => `declare const ${name}: ${type};`);
  return `import { ${["type Runtime", ...missing].join(", ")} } from "portcall";\n${declared.join("\n")}\n${code}\nexport {};\n`;
}

test("the types allow all blocks", () => {
  const ambient = join(folder, "bundler.d.ts");
  writeFileSync(ambient, 'declare module "portcall/core.wasm?url" {\n  const url: string;\n  export default url;\n}\n');
  const programs = PAGES.flatMap((page) =>
    blocksOf(page, "js").map((code, i) => {
      const path = join(folder, `${page.replaceAll("/", "-")}-${i}.mts`);
      writeFileSync(path, typed(code));
      return path;
    }),
  );
  assert(programs.length > 15);
  const strict = ["--ignoreConfig", "--noEmit", "--strict", "--noImplicitAny", "false", "--module", "nodenext"];
  const words = [...strict, "--target", "es2022", "--lib", "es2022,esnext.disposable,dom", "--types", "node"];
  const tsc = fileURLToPath(new URL("js/node_modules/typescript/bin/tsc", ROOT));
  const run = spawnSync(process.execPath, [tsc, ...words, ambient, ...programs]);
  assert.equal(String(run.stdout), "");
});
