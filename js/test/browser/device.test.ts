// SPDX-License-Identifier: Apache-2.0
// The package in a browser: a page that is a device, and a page that is a client. Needs Chromium, which `make test-js` installs.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { rpc } from "../../src/index.js";
import { ROOT } from "../captures.js";
import { SERVED } from "../served.js";
import { ended, PYTHON, start } from "../servers.js";

const HERE = fileURLToPath(new URL("js/", ROOT));
const SCREENS = `${HERE}build/screens/`;
const TOKEN = "correct horse battery";

let proxy: Awaited<ReturnType<typeof start>>;
let port: string;
let site: string;
let browser: Browser;
let page: Page;
const problems: string[] = [];

describe("in Chromium", () => {
  before(async () => {
    mkdirSync(SCREENS, { recursive: true });
    proxy = await start(PYTHON, [`${HERE}test/tvm_proxy.py`, HERE]);
    const [tcp, web] = proxy.line.split(" ");
    port = tcp!;
    site = `127.0.0.1:${web}`;
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox"],
    });
    page = await browser.newPage({ viewport: { width: 390, height: 780 } });
    page.on("pageerror", (error) => problems.push(String(error)));
  });
  after(async () => {
    await browser?.close();
    proxy.process.stdin!.end();
    await ended(proxy.process);
    assert.deepEqual(problems, []);
  });

  async function open(query: string): Promise<void> {
    await page.goto("about:blank"); // so that a change behind `#` is a new page, too
    await page.goto(`http://${site}/page/device.html?${query}`);
  }

  function state(name: string): Promise<unknown> {
    return page.waitForSelector(`body[data-state="${name}"]`);
  }

  async function runPythonClient(who: string, key: string, env: Record<string, string> = {}): Promise<void> {
    const client = await start(PYTHON, [`${HERE}test/python_client.py`, who, "127.0.0.1", port, key], env);
    assert.equal(client.line, "done");
    await ended(client.process);
  }

  test("a tab serves clients of portcall and apache-tvm, one session after the other, and after a reload", async () => {
    await open("key=tab&import=/build/test/browser/functions.js");
    await state("waiting");
    await runPythonClient("portcall", "tab");
    await runPythonClient("tvm", "tab");
    await page.waitForFunction(() => document.getElementById("sessions")?.textContent === "2");
    await page.reload();
    await state("waiting");
    const session = await rpc.connect(`127.0.0.1:${port}`, { key: "tab" });
    await state("serving");
    assert.equal(await page.getByRole("status").textContent(), "Serving a client");
    await session.upload("large", new Uint8Array(3 << 20));
    await page.getByText("3.0 MiB received").waitFor();
    await page.screenshot({ path: `${SCREENS}serving.png` });
    await assert.rejects((await session.getFunction("demo.fail"))("boom"), { kind: "ValueError" });
    session.close();
    await state("waiting");
  });

  test("a client sees that its tab was closed, and the next one waits for another tab", async () => {
    await open("key=gone&import=/build/test/browser/functions.js");
    await state("waiting");
    const session = await rpc.connect(`127.0.0.1:${port}`, { key: "gone" });
    const never = (await session.getFunction("demo.never"))();
    const lost = assert.rejects(never, { name: "SessionBrokenError" });
    await page.goto("about:blank");
    await lost;
  });

  test("a tab proves its token through the proxy", async () => {
    await open(`key=proven&import=/build/test/browser/functions.js#${encodeURIComponent(TOKEN)}`);
    await state("waiting");
    await runPythonClient("portcall", "proven", { PORTCALL_TOKEN: TOKEN });
  });

  async function sendKernels(to: string, key: string, ...clients: string[]): Promise<void> {
    const folder = mkdtempSync(join(tmpdir(), "portcall-tab-"));
    const sources = [`${HERE}test/wasm/kernels.py`, `${HERE}test/wasm/kernels.c`];
    await ended((await start(PYTHON, [...sources, folder])).process);
    for (const who of clients) {
      const words = [`${HERE}test/wasm/kernel_client.py`, who, "127.0.0.1", to, key, folder];
      const client = await start(PYTHON, words);
      assert.equal(client.line, "done");
      await ended(client.process);
    }
    rmSync(folder, { recursive: true });
  }

  test("a tab runs kernels that clients of portcall and apache-tvm send", async () => {
    await open("key=kernels");
    await state("waiting");
    await sendKernels(port, "kernels", "portcall", "tvm");
  });

  test("a farm serves the page, and its clients use the tab", async () => {
    const words = ["-m", "portcall", "farm", "--port", "0", "--store", ":memory:", "--silent", "--npm-package", HERE];
    const farm = await start(PYTHON, words);
    const address = farm.line.split(" ").at(-1)!; // listening on ADDRESS
    await page.goto(`http://${address}/device?key=of-farm`);
    await state("waiting");
    assert(await page.evaluate(() => crossOriginIsolated)); // kernels are timed by a fine clock
    await sendKernels(address.split(":")[1]!, "of-farm", "farm", "tvm");
    await page.reload();
    await state("waiting");
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.screenshot({ path: `${SCREENS}farm-1280.png` });
    await page.setViewportSize({ width: 400, height: 780 });
    await page.screenshot({ path: `${SCREENS}farm-400.png` });
    await page.goto("about:blank");
    farm.process.kill("SIGTERM");
    await ended(farm.process);
  });

  test("the button stops and starts", async () => {
    await open("key=button");
    await state("waiting");
    await page.getByRole("button", { name: "Stop" }).click();
    await state("stopped");
    await page.getByRole("button", { name: "Start" }).click();
    await state("waiting");
  });

  test("the page reports what it cannot do", async () => {
    await open("key=k&import=http://elsewhere.invalid/functions.js");
    await state("failed");
    assert.match((await page.getByRole("status").textContent()) ?? "", /elsewhere\.invalid/);
    await open("key=k&import=/build/test/browser/missing.js");
    await state("failed");
    await page.route("**/core.wasm", (route) => route.abort());
    await open("key=k");
    await state("failed");
    assert.match((await page.getByRole("status").textContent()) ?? "", /core\.wasm/);
    await page.unroute("**/core.wasm");
    await open(`key=k&proxy=${encodeURIComponent("ws://127.0.0.1:1/ws")}`);
    await state("pausing");
    await page.screenshot({ path: `${SCREENS}pausing.png` });
  });

  test("a page waits for promises inside calls of the core, and has objects of it", async () => {
    await page.goto(`http://${site}/page/device.html?key=core`);
    const results = await page.evaluate(async () => {
      const { load } = await import(`${location.origin}/build/src/index.js`);
      const core = await load();
      const apply = core.getGlobalFunc("testing.apply");
      const slowly = async (x: number) => {
        await new Promise((resolve) => setTimeout(resolve));
        return 2 * x;
      };
      return [await apply.async(apply, slowly, 4), core.loadJson(core.saveJson(core.list([1, [0.1]]))).at(1)];
    });
    assert.deepEqual(results, [8, [0.1]]);
    await page.goto("about:blank");
  });

  test("a page is a client, over a WebSocket", async () => {
    const leave = new AbortController();
    const joined = rpc.join(`127.0.0.1:${port}`, { functions: SERVED, key: "node", signal: leave.signal });
    await page.goto(`http://${site}/page/device.html?key=client`);
    const results = await page.evaluate(async (address: string) => {
      const { rpc } = await import(`${location.origin}/build/src/index.js`);
      const session = await rpc.connect(address, { key: "node" });
      const add = await session.getFunction("demo.add");
      const tensor = await session.tensor(new Float32Array([1, 2, 3]));
      await (await session.getFunction("demo.double"))(tensor);
      const large = await session.tensor(new Uint8Array(3_000_000).fill(7));
      const found = [
        await add(1, 2),
        [...(await tensor.data())],
        (await large.data()).every((byte: number) => byte === 7),
      ];
      session.close();
      return found;
    }, `ws://${site}/ws`);
    assert.deepEqual(results, [3, [2, 4, 6], true]);
    await page.goto("about:blank");
    leave.abort();
    await joined;
  });
});
