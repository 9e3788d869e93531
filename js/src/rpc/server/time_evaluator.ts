// SPDX-License-Identifier: Apache-2.0
// Times functions of this process: `runtime.RPCTimeEvaluator`, with the rules of the core's.

import { ServedError } from "./error_text.js";
import type { ServedFunction } from "./functions.js";

const GROWTH = 1.618; // of the number of calls, at least, while a measurement is too short
const MOST = 1_000_000; // measurements

/** Return the function that makes time evaluators of functions by name. */
export function timeEvaluators(functions: ReadonlyMap<string, ServedFunction>): ServedFunction {
  const named = (name: unknown): ServedFunction => {
    const found = functions.get(String(name));
    if (!found) throw new ServedError("ValueError", `there is no function '${name}' to time`);
    return found;
  };
  return (
    _module,
    name,
    _type,
    _index,
    number,
    repeat,
    minRepeatMs,
    zeroTimes,
    pauseMs,
    pauseAfter,
    _flush,
    before,
  ) => {
    const timed = named(name);
    const prepare = before ? named(before) : undefined;
    const counts = [number, repeat, minRepeatMs, zeroTimes, pauseMs, pauseAfter].map(Number);
    if (
      !counts.every((count) => Number.isSafeInteger(count) && count >= 0) ||
      number < 1 ||
      repeat < 1 ||
      repeat > MOST
    ) {
      throw new RangeError(`cannot time ${repeat} times ${number} calls`);
    }
    let calls: number = number;
    return async (...args: unknown[]) => {
      await timed(...args); // warms up
      const seconds = new Float64Array(repeat);
      for (let i = 0; i < repeat; ++i) {
        await prepare?.(...args);
        let zeros = 0;
        for (;;) {
          const elapsed = await measure(timed, args, calls);
          seconds[i] = elapsed / 1000 / calls;
          if (elapsed === 0) zeros += 1;
          if (elapsed >= minRepeatMs || zeros >= zeroTimes) break;
          if (elapsed > 0) calls = Math.trunc(Math.max(minRepeatMs / (elapsed / calls) + 1, calls * GROWTH));
        }
        if (pauseMs && pauseAfter && i % pauseAfter === 0) await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
      return littleEndian(seconds);
    };
  };
}

/** Return the milliseconds of that many calls. */
async function measure(timed: ServedFunction, args: unknown[], calls: number): Promise<number> {
  const start = performance.now();
  for (let i = 0; i < calls; ++i) {
    const result = timed(...args);
    if (result instanceof Promise) await result;
  }
  return performance.now() - start;
}

function littleEndian(values: Float64Array): Uint8Array {
  const bytes = new Uint8Array(values.byteLength);
  const view = new DataView(bytes.buffer);
  for (const [i, value] of values.entries()) view.setFloat64(8 * i, value, true);
  return bytes;
}
