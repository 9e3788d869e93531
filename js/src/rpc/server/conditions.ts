// SPDX-License-Identifier: Apache-2.0
// The state of the machine and of this thread, which clients ask for between the windows of a measurement: portcall.bench
// knows what the fields mean. What cannot be read is left out.

import { isNode } from "../../check.js";
import type { ServedFunction } from "./functions.js";

const LINKS = 62_500; // of the chain of multiplications whose time is told
const STEPS = 50; // of the clock that a chain lasts at least, since tabs have coarse ones
const TRIES = 3; // the best of so many is told
const WARM = 20; // chains until the engine has compiled the loop

/** What a page tells its worker of itself: 1 for a tab in the background. */
export const page: { hidden?: number } = {};

let sink = 1;

/** Return how many milliseconds multiplications take that wait for each other. */
function chain(links: number): number {
  const start = performance.now();
  let value = sink;
  for (let link = 0; link < links; ++link) value = (Math.imul(value, 1664525) + 1013904223) | 0;
  sink = value;
  return performance.now() - start;
}

/** Return the smallest step of the clock that is seen, in milliseconds. */
function clockStep(): number {
  let least = Number.POSITIVE_INFINITY;
  for (let seen = 0; seen < 20; ++seen) {
    const before = performance.now();
    let now = before;
    while (now === before) now = performance.now();
    least = Math.min(least, now - before);
  }
  return least;
}

let measured: { step: number; links: number } | undefined;

function probe(): { clock_step_ns: number; probe_ns: number } {
  if (!measured) {
    for (let i = 0; i < WARM; ++i) chain(LINKS);
    const step = clockStep();
    measured = { step, links: LINKS * Math.ceil((STEPS * step) / Math.max(chain(LINKS), step)) };
  }
  const { step, links } = measured;
  const least = Math.min(...Array.from({ length: TRIES }, () => chain(links)));
  return { clock_step_ns: nanoseconds(step), probe_ns: nanoseconds((least * LINKS) / links) };
}

function nanoseconds(milliseconds: number): number {
  return Math.round(milliseconds * 1e6);
}

/** What Node tells: the account of the thread, and the load. */
async function ofNode(): Promise<Record<string, number>> {
  const { accountOfThread, loadavg } = await import("../../node.js");
  const [onCpu, waited] = accountOfThread();
  const { user, system } = process.cpuUsage();
  return {
    ...(waited === undefined ? {} : { on_cpu_ns: onCpu!, waited_ns: waited }),
    process_ns: (user + system) * 1000,
    rss_bytes: process.memoryUsage.rss(),
    load1: loadavg()[0]!,
  };
}

/** `portcall.rpc.conditions`: the state as JSON, with the time of the chain where it is asked for. */
export const conditions: ServedFunction = async (timed = false) => {
  const state = {
    cpus: globalThis.navigator?.hardwareConcurrency,
    ...page,
    ...(timed ? probe() : {}),
    ...(isNode() ? await ofNode() : {}),
    time_ns: nanoseconds(performance.now()),
  };
  return JSON.stringify(state);
};
