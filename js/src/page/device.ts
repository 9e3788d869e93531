// SPDX-License-Identifier: Apache-2.0
// The device page: this tab is a device that clients reach through a proxy. Its address says which:
//
//   device.html?key=tab                            the proxy of the page's own host
//   device.html?key=tab&proxy=ws://lab:9190/ws     another one, where that lets pages of other hosts in
//   device.html?key=tab&import=functions.js        with functions of a module on the page's own host
//   device.html?key=tab#token                      with a token, which browsers do not send to hosts

import type { Hidden, Order, Report } from "./worker.js";

const MOST_EVENTS = 50;

function element(id: string): HTMLElement {
  return document.getElementById(id)!;
}

/** Read what the page's address asks for.
 * @throws TypeError The functions are on another host, whose code this page does not run. */
function orderFrom(location: Location): Order {
  const asked = new URLSearchParams(location.search);
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const proxy = asked.get("proxy") ?? `${scheme}//${location.host}/ws`;
  const module = asked.get("import");
  const functions = module ? new URL(module, location.href) : undefined;
  if (functions && functions.origin !== location.origin) {
    throw new TypeError(`the functions are on ${functions.host}; they must be on ${location.host}, as this page is`);
  }
  const token = decodeURIComponent(location.hash.slice(1));
  return { proxy, key: asked.get("key") ?? "tab", token, functions: functions?.href ?? "" };
}

/** What the page says of a state. */
function describe(report: Exclude<Report, { state: "core" | "progress" }>): string {
  switch (report.state) {
    case "connecting":
      return "Connecting to the proxy";
    case "waiting":
      return "Waiting for a client";
    case "serving":
      return "Serving a client";
    case "ended":
      return `The session ended: ${report.ending}`;
    case "pausing":
      return `${report.error.message}. Trying again in ${report.seconds} s`;
    case "failed":
      return `Stopped: ${report.message}`;
  }
}

function sizeText(nbytes: number): string {
  if (nbytes < 1024) return `${nbytes} bytes`;
  const [size, unit] = nbytes < 1 << 20 ? [nbytes / 1024, "KiB"] : [nbytes / (1 << 20), "MiB"];
  return `${size.toFixed(size < 10 ? 1 : 0)} ${unit}`;
}

class Page {
  #sessions = 0;
  #worker: Worker | undefined;
  readonly #order: Order;

  constructor(order: Order) {
    this.#order = order;
    element("key").textContent = order.key;
    element("proxy").textContent = order.proxy;
    element("switch").addEventListener("click", () => (this.#worker ? this.stop() : this.start()));
    document.addEventListener("visibilitychange", () => this.#tellHidden());
  }

  #tellHidden(): void {
    this.#worker?.postMessage({ hidden: document.hidden } satisfies Hidden);
  }

  start(): void {
    this.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    this.#worker.addEventListener("message", ({ data }: MessageEvent<Report>) => this.#show(data));
    this.#worker.addEventListener("error", ({ message }) => this.#show({ state: "failed", message }));
    this.#tellHidden();
    this.#worker.postMessage(this.#order);
    element("switch").textContent = "Stop";
  }

  stop(): void {
    this.#worker?.terminate();
    this.#worker = undefined;
    element("switch").textContent = "Start";
    show("stopped", "Stopped");
  }

  #show(report: Report): void {
    if (report.state === "core") {
      element("kernels").textContent = report.gpu ? "WebAssembly, WebGPU" : "WebAssembly";
      return;
    }
    if (report.state === "progress") {
      element("traffic").textContent = `${sizeText(report.received)} received, ${sizeText(report.sent)} sent`;
      return;
    }
    if (report.state === "serving") {
      this.#sessions += 1;
      element("sessions").textContent = String(this.#sessions);
    }
    show(report.state, describe(report));
    if (report.state === "failed") element("switch").hidden = true;
  }
}

function show(state: string, text: string): void {
  document.body.dataset.state = state;
  element("state").textContent = text;
  const line = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  line.append(time, ` ${text}`);
  const events = element("events");
  events.prepend(line);
  while (events.childElementCount > MOST_EVENTS) events.lastElementChild?.remove();
}

try {
  new Page(orderFrom(location)).start();
} catch (error) {
  show("failed", `Stopped: ${(error as Error).message}`);
  element("switch").hidden = true;
}
