// SPDX-License-Identifier: Apache-2.0
// Timing of functions at the server.

import { type Device, device } from "../../device.js";
import { RemoteProtocolError } from "../../errors.js";
import type { RemoteFunction, RemoteModule, RemoteValue } from "./remote.js";

export interface TimingOptions {
  /** The device to wait for; `cpu` unless given. */
  device?: string | Device;
  /** Calls of a measurement; 10 unless given. */
  number?: number;
  /** Measurements; 1 unless given. */
  repeat?: number;
  /** Milliseconds that a measurement takes at least: it makes more calls until it does. */
  minRepeatMs?: number;
  /** Milliseconds of pause after each measurement. */
  cooldownIntervalMs?: number;
  /** Bytes of memory to move before each measurement, so that caches are cold. */
  cacheFlushBytes?: number;
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

/** Times one call of a function after the other, at the server. */
export type TimeEvaluator = (...args: RemoteValue[]) => Promise<Timing>;

const ZERO_TIMES = 100; // measurements of no time at all after which that is believed

/** Make a function that times another one of a module, or of the server where that is null. */
export async function timeEvaluator(
  make: RemoteFunction,
  module: RemoteModule | null,
  name: string,
  options: TimingOptions,
): Promise<TimeEvaluator> {
  const { number = 10, repeat = 1, minRepeatMs = 0, cooldownIntervalMs = 0, cacheFlushBytes = 0 } = options;
  const where = device(options.device ?? "cpu");
  const evaluate: RemoteFunction = await make(
    module,
    name,
    where.type,
    where.index,
    number,
    repeat,
    minRepeatMs,
    ZERO_TIMES,
    cooldownIntervalMs,
    1, // a pause after every measurement
    cacheFlushBytes,
    "",
  );
  return async (...args) => {
    const bytes: unknown = await evaluate(...args);
    if (!(bytes instanceof Uint8Array) || bytes.length === 0 || bytes.length % 8) {
      throw new RemoteProtocolError("a time evaluator answered with no times");
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    return new Timing(Array.from({ length: bytes.length / 8 }, (_, i) => view.getFloat64(8 * i, true)));
  };
}
