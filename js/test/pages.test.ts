// SPDX-License-Identifier: Apache-2.0
// The first snippets in JavaScript of README.md and of docs/javascript.md run as they stand.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "./captures.js";
import { portcallServer } from "./servers.js";

for (const page of ["README.md", "docs/javascript.md"]) {
  test(`the first snippet of ${page} runs`, async () => {
    const code = /```js\n(.*?)```/s.exec(readFileSync(new URL(page, ROOT), "utf8"))?.[1] ?? "";
    assert(code.includes('"127.0.0.1:9090"'));
    const server = await portcallServer("--key", "rasp");
    const file = fileURLToPath(new URL(`js/build/${page.replaceAll("/", "-")}.mjs`, ROOT)); // where "portcall" is this package
    try {
      writeFileSync(file, code.replace("127.0.0.1:9090", server.address));
      assert.equal(execFileSync(process.execPath, [file], { timeout: 60_000 }).toString(), "1\n");
    } finally {
      rmSync(file, { force: true });
      await server.stop();
    }
  });
}
