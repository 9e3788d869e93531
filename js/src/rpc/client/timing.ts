// SPDX-License-Identifier: Apache-2.0
// What is asked of a time evaluator, and what it answers. No I/O here.

import { checkNumber, checkOptions } from "../../check.js";
import { type Device, device } from "../../device.js";
import { RemoteProtocolError } from "../../errors.js";

export interface TimingOptions {
  /** The device to wait for; `cpu` unless given. */
  device?: string | Device | undefined;
  /** Calls of a measurement; 10 unless given. */
  number?: number | undefined;
  /** Measurements; 1 unless given. */
  repeat?: number | undefined;
  /** Milliseconds that a measurement takes at least: it makes more calls until it does. */
  minRepeatMs?: number | undefined;
  /** Milliseconds of pause after each measurement. */
  cooldownIntervalMs?: number | undefined;
  /** Bytes of memory to move before each measurement, so that caches are cold. */
  cacheFlushBytes?: number | undefined;
}

/** Seconds of a call, for each measurement. */
export class Timing {
  readonly results: readonly number[];

  constructor(results: readonly number[]) {
    this.results = results;
  }
  get mean(): number {
    return this.results.reduce((sum, value) => sum + value, 0) / this.results.length;
  }
  get min(): number {
    return Math.min(...this.results);
  }
  get median(): number {
    const sorted = [...this.results].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
  }
}

const OPTIONS = ["device", "number", "repeat", "minRepeatMs", "cooldownIntervalMs", "cacheFlushBytes"] as const;
const ZERO_TIMES = 100; // measurements of no time at all after which that is believed

/** Return what `runtime.RPCTimeEvaluator` takes after the module and the name (docs/wire.md, section 6). */
export function timingArguments(options: TimingOptions): (number | string)[] {
  const {
    number = 10,
    repeat = 1,
    minRepeatMs = 0,
    cooldownIntervalMs = 0,
    cacheFlushBytes = 0,
  } = checkOptions(options, OPTIONS);
  const numbers = { number, repeat, minRepeatMs, cooldownIntervalMs, cacheFlushBytes };
  for (const [name, value] of Object.entries(numbers)) checkNumber(value, name);
  const where = device(options.device ?? "cpu");
  const cooldownRepeats = 1; // a pause after every measurement
  const before = ""; // no function to call before each measurement
  return [
    where.type,
    where.index,
    number,
    repeat,
    minRepeatMs,
    ZERO_TIMES,
    cooldownIntervalMs,
    cooldownRepeats,
    cacheFlushBytes,
    before,
  ];
}

/** Read the answer of a time evaluator: float64 seconds, little-endian.
 * @throws RemoteProtocolError It holds no whole number of them. */
export function timingOf(answer: unknown): Timing {
  if (!(answer instanceof Uint8Array) || answer.length === 0 || answer.length % 8) {
    throw new RemoteProtocolError("a time evaluator answered with no times");
  }
  const view = new DataView(answer.buffer, answer.byteOffset, answer.length);
  return new Timing(Array.from({ length: answer.length / 8 }, (_, i) => view.getFloat64(8 * i, true)));
}
