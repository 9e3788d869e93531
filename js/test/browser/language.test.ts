// SPDX-License-Identifier: Apache-2.0
// A language model on WebGPU in Chromium, whose SwiftShader is a GPU on every machine: the same tokens as on the machine that
// compiled it.

import assert from "node:assert/strict";
import { createReadStream, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";

const HERE = fileURLToPath(new URL("js/", ROOT));
const TYPES: Record<string, string> = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };
const PROMPT = [1, 2, 3, 4, 5];

describe("language models in Chromium", () => {
  let folder: string;
  let expected: { ids: number[]; logits: number[] };
  let server: Server;
  let site: string;
  let missing = ""; // a file that the site does not have now
  let asked: string[] = [];
  let browser: Browser;
  let context: BrowserContext;
  let page: Page;

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "portcall-language-"));
    await ended((await start(PYTHON, [`${HERE}test/wasm/vm_models.py`, folder, "webgpu"])).process);
    expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
    server = createServer(({ url }, answer) => {
      const path = new URL(url!, site).pathname;
      asked.push(path);
      const file = path.startsWith("/model/") ? join(folder, path.slice(7)) : join(HERE, path);
      const fail = () => answer.writeHead(404).end();
      if (missing && path.endsWith(missing)) return void fail();
      answer.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream");
      createReadStream(file).on("error", fail).pipe(answer);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    site = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
    });
    context = await browser.newContext();
    page = await context.newPage();
  });
  after(async () => {
    await browser?.close();
    server?.close();
    rmSync(folder, { recursive: true });
  });

  const address = () =>
    `${site}/page/language.html?library=/model/language.wasm&weights=/model/weights/&prompt=1 2 3 4 5`;
  const state = (name: string) => page.waitForSelector(`body[data-state="${name}"]`, { timeout: 120_000 });

  test("the page says which shard is missing, and keeps those that came", async () => {
    missing = "params_shard_1.bin";
    await page.goto(`${address()}&tokens=12`);
    await page.click("#generate");
    await state("failed");
    assert.match((await page.textContent("#state"))!, /^ModelError: .*params_shard_1\.bin.*404/);
    missing = "";
  });

  test("the page gives the tokens of the machine that compiled the model", async () => {
    await page.click("#generate");
    await state("done");
    assert.equal((await page.textContent("#ids"))!.trim(), expected.ids.join(" "));
    assert.match((await page.textContent("#decode"))!, /^\d+\.\d tokens\/s$/);
    const shards = asked.filter((path) => path.endsWith("params_shard_0.bin"));
    assert.equal(shards.length, 1); // the second time it was in the browser's cache
    if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT });
    await page.fill("#library", "/model/none.wasm");
    await page.click("#generate");
    await state("failed");
    for (const id of ["#ids", "#prefill", "#decode"]) assert.equal(await page.textContent(id), ""); // not those from before
  });

  test("logits are those of the machine, another tab takes the same shards, and a lost device is an error", async () => {
    asked = [];
    page = await context.newPage();
    await page.goto(`${site}/page/language.html`);
    const [logits, kinds, error] = await page.evaluate(async (prompt) => {
      const { load, openWebGpu, vm } = await import(`${location.origin}/build/src/index.js`);
      const core = await load();
      const gpu = await openWebGpu(core);
      const kernels = await core.loadModule(`${location.origin}/model/language.wasm`);
      const cached: boolean[] = [];
      const onProgress = (progress: { cached: boolean }) => cached.push(progress.cached);
      const model = await vm.language(core, kernels, `${location.origin}/model/weights`, {
        gpu,
        tokens: 64,
        onProgress,
      });
      const logits: number[] = [...(await model.logits(prompt))];
      gpu.device.destroy();
      await gpu.device.lost;
      const error: string = await model.logits(prompt).catch((error: Error) => error.name);
      return [logits, cached, error] as const;
    }, PROMPT);
    assert(logits.every((value, i) => Math.abs(value - expected.logits[i]!) < 1e-3));
    assert.equal(logits.length, expected.logits.length);
    assert(kinds.length > 1 && kinds.every(Boolean));
    assert(!asked.some((path) => path.endsWith(".bin")));
    assert.equal(error, "DeviceError");
  });
});
