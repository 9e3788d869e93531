// SPDX-License-Identifier: Apache-2.0
// Kernels of apache-tvm for WebGPU in Chromium, whose SwiftShader is a GPU on every machine: in a page, and sent to a tab.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";

const HERE = fileURLToPath(new URL("js/", ROOT));

describe("WebGPU in Chromium", () => {
  let proxy: Awaited<ReturnType<typeof start>>;
  let site: string;
  let port: string;
  let folder: string;
  let browser: Browser;
  let page: Page;

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "portcall-webgpu-"));
    await ended((await start(PYTHON, [`${HERE}test/wasm/gpu_kernels.py`, folder])).process);
    proxy = await start(PYTHON, [`${HERE}test/tvm_proxy.py`, HERE]);
    const [tcp, web] = proxy.line.split(" ");
    port = tcp!;
    site = `http://127.0.0.1:${web}`;
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
    });
    page = await browser.newPage();
  });
  after(async () => {
    await browser?.close();
    proxy.process.stdin!.end();
    await ended(proxy.process);
    rmSync(folder, { recursive: true });
  });

  test("a page runs kernels, and sees what the compiler says", async () => {
    await page.goto(`${site}/page/device.html?key=own`);
    const results = await page.evaluate(
      async (library: string) => {
        const { load, openWebGpu } = await import(`${location.origin}/build/src/index.js`);
        const core = await load();
        const gpu = await openWebGpu(core);
        const bytes = (text: string) => Uint8Array.from(text, (unit) => unit.charCodeAt(0));
        const kernels = core.loadModuleSync(bytes(library));
        const n = 150_001; // groups, more than one axis takes
        const [x, y] = [gpu.tensor(new Float32Array(n).map((_, i) => i)), gpu.tensor(new Float32Array(n).fill(1))];
        const z = gpu.empty([n]);
        kernels.get("scale_add")(x, y, z, 0.5, 0);
        kernels.get("negate")(z, y);
        const values: number[] = await gpu.read(y);
        core.loadModuleSync(bytes(library.replace("fma(", "fmx("))).get("scale_add")(x, x, z, 0.5, 0);
        const error = await gpu.wait().catch((error: Error) => error);
        await gpu.wait();
        return [values.every((value, i) => value === -(i / 2 + 1)), error.name, error.message.split("\n")] as const;
      },
      readFileSync(join(folder, "gpu.wasm")).toString("latin1"),
    );
    const [same, name, [head, line, source]] = results;
    assert.deepEqual([same, name], [true, "CompileError"]);
    assert.match(head!, /'scale_add_kernel'/);
    assert.match(line!, /^line 2\d: .*fmx/);
    assert.match(source!, /fmx\(/);
  });

  for (const who of ["portcall", "tvm"]) {
    test(`a tab runs and times kernels that a client of ${who} sends`, async () => {
      await page.goto("about:blank");
      await page.goto(`${site}/page/device.html?key=gpu`);
      await page.waitForSelector(`body[data-state="waiting"]`);
      assert.equal(await page.locator("#kernels").textContent(), "WebAssembly, WebGPU");
      const client = await start(PYTHON, [`${HERE}test/wasm/gpu_client.py`, who, port, "gpu", folder]);
      assert.equal(client.line, "done");
      await ended(client.process);
    });
  }
});
