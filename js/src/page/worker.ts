// SPDX-License-Identifier: Apache-2.0
// The worker of the device page: serves sessions, so that the page stays alive whatever functions do.

import { loadWasm } from "../core/runtime.js";
import { openWebGpu } from "../core/webgpu.js";
import { type Functions, type JoinState, join } from "../rpc/index.js";
import { page } from "../rpc/server/conditions.js";

/** What the page tells its worker. */
export interface Order {
  readonly proxy: string;
  readonly key: string;
  readonly token: string;
  /** URL of a module that exports `functions`; empty for none. */
  readonly functions: string;
}

/** That the page came into the background, where browsers slow it down, or into the foreground. */
export interface Hidden {
  readonly hidden: boolean;
}

/** What the worker tells the page: what it does, or why it has given up. */
export type Report =
  | JoinState
  | { readonly state: "core"; readonly gpu: boolean }
  | { readonly state: "failed"; readonly message: string };

function report(message: Report): void {
  postMessage(message);
}

async function load(url: string): Promise<Functions> {
  if (!url) return {};
  const { functions } = await import(url);
  if (typeof functions !== "object" || functions === null) throw new TypeError(`${url} does not export functions`);
  return functions;
}

addEventListener("message", async ({ data }: MessageEvent<Order | Hidden>) => {
  if ("hidden" in data) {
    page.hidden = Number(data.hidden);
    return;
  }
  try {
    const functions = await load(data.functions);
    const core = await loadWasm();
    const gpu = await openWebGpu(core).catch(() => undefined); // the browser may have none
    report({ state: "core", gpu: gpu !== undefined });
    await join(data.proxy, { functions, core, key: data.key, token: data.token, onState: report });
  } catch (error) {
    report({ state: "failed", message: (error as Error).message });
  }
});
