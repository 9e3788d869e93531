// SPDX-License-Identifier: Apache-2.0
// The command, as users start it. Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { rpc } from "../../src/index.js";
import { ROOT } from "../captures.js";
import { ended, start } from "../servers.js";

const CLI = fileURLToPath(new URL("js/build/src/cli.js", ROOT));
let folder: string;
let functions: string;
before(() => {
  folder = mkdtempSync(join(tmpdir(), "portcall-js-"));
  functions = join(folder, "functions.mjs");
  writeFileSync(functions, `export const functions = { "demo.add": (a, b) => a + b };`);
});
after(() => rmSync(folder, { recursive: true }));

test("serve says where it listens, serves the functions of a file, and reports sessions", async () => {
  const { process: server, line } = await start(process.execPath, [
    ...[CLI, "serve", "--json", "--import", functions, "--address", "127.0.0.1:0", "--key", "k"],
    ...["--session-timeout", "1.5h", "--memory-limit", "64MiB"],
  ]);
  const { event, address, key } = JSON.parse(line);
  assert.deepEqual([event, key], ["ready", "k"]);
  await using session = await rpc.connect(address, { key: "k" });
  assert.equal(await (await session.getFunction("demo.add"))(1, 2), 3);
  server.kill();
  await ended(server);
});

test("serve goes on where a proxy is not there", async () => {
  const { process: server, line } = await start(process.execPath, [CLI, "serve", "--json", "--proxy", "127.0.0.1:1"]);
  assert.equal(JSON.parse(line).event, "connecting");
  server.kill();
  await ended(server);
});
