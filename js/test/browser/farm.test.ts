// SPDX-License-Identifier: Apache-2.0
// The page of a farm in Chromium, on a wide screen and on a phone: a lease appears, and goes, while one looks.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Browser, chromium } from "playwright-core";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";

const SCREENS = fileURLToPath(new URL("js/build/screens/", ROOT));
type Program = Awaited<ReturnType<typeof start>>;

let farm: Program;
let board: Program;
let address: string;
let browser: Browser;

describe("the farm's page", () => {
  before(async () => {
    mkdirSync(SCREENS, { recursive: true });
    farm = await start(PYTHON, ["-m", "portcall", "farm", "--port", "0", "--store", ":memory:", "--silent"]);
    address = farm.line.split(" ").at(-1)!;
    const place = ["--place", "rasp-3", "--key", "rasp4", "--tag", "gpu=mali", "--silent"];
    board = await start(PYTHON, ["-m", "portcall", "serve", "--farm", address, ...place]);
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox"],
    });
  });
  after(async () => {
    await browser?.close();
    for (const program of [board, farm]) {
      program.process.kill();
      await ended(program.process);
    }
  });

  for (const width of [1280, 400]) {
    test(`at ${width} px a lease appears and goes, without a reload`, async () => {
      const page = await browser.newPage({ viewport: { width, height: 800 } });
      const problems: string[] = [];
      page.on("pageerror", (error) => problems.push(String(error)));
      await page.goto(`http://${address}/`);
      await page.getByText("nobody has a place").waitFor();
      const reserve = ["-m", "portcall", "farm", "reserve", "rasp4", "--", "sh", "-c", "echo mine; cat"];
      const holder = await start(PYTHON, reserve, { PORTCALL_FARM: address, LOGNAME: "ann" });
      const leases = page.locator("h2:has-text('Leases') + table");
      await leases.getByText("ann").waitFor();
      await page.locator("b.leased").waitFor();
      await page.screenshot({ path: `${SCREENS}farm-${width}.png`, fullPage: true });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(wide <= 0, `the page is ${wide} px wider than the screen`);
      holder.process.stdin!.end();
      await ended(holder.process);
      await page.getByText("nobody has a place").waitFor();
      await page.locator("b.idle").waitFor();
      await page.getByRole("link", { name: "rasp-3" }).click();
      await page.getByText("mali", { exact: true }).waitFor(); // of the tag gpu, whose name a phone shows beside it
      await page.screenshot({ path: `${SCREENS}place-${width}.png`, fullPage: true });
      assert.deepEqual(problems, []);
      await page.close();
    });
  }
});
