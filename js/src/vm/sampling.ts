// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen from logits.

import { checkCallback } from "../check.js";
import { PortcallError } from "../errors.js";

export interface Sampling {
  /** 0, the default, takes the most likely id. */
  readonly temperature?: number | undefined;
  /** Draws among the most likely ids that have this share of the probability together; 1. */
  readonly topP?: number | undefined;
  /** Returns numbers from 0 to 1; Math.random. */
  readonly random?: (() => number) | undefined;
}

/** Check what is given.
 * @throws RangeError A negative or infinite temperature, or a share outside of 0 to 1.
 * @throws TypeError `random` is no function. */
export function checkSampling({ temperature = 0, topP = 1, random }: Sampling): void {
  if (!(Number.isFinite(temperature) && temperature >= 0 && Number.isFinite(topP) && topP > 0 && topP <= 1)) {
    throw new RangeError(`temperature ${temperature} (must be at least 0), topP ${topP} (must be above 0, at most 1)`);
  }
  checkCallback(random, "random");
}

/** Return an id: the most likely one, or one drawn from the most likely that have `topP` of the probability.
 * @throws PortcallError The logits are no numbers. */
export function pick(logits: Float32Array, { temperature = 0, topP = 1, random = Math.random }: Sampling): number {
  const likely = logits.reduce((best, value, i) => (value > logits[best]! ? i : best), 0);
  const most = logits[likely]!;
  const wrong = Number.isFinite(most) ? logits.find(Number.isNaN) : most;
  if (wrong !== undefined) {
    throw new PortcallError(`the logits are no numbers (${wrong}): are the weights those of this library, and whole?`);
  }
  if (temperature === 0) return likely;
  const chances = Float64Array.from(logits, (value) => Math.exp((value - most) / temperature));
  const order = Array.from(chances.keys()).sort((a, b) => chances[b]! - chances[a]!);
  const share = topP * chances.reduce((sum, chance) => sum + chance, 0);
  let kept = 0;
  let sum = 0;
  while (kept < order.length && sum < share) sum += chances[order[kept++]!]!;
  const drawn = random() * sum;
  let passed = 0;
  for (const id of order.slice(0, kept)) {
    passed += chances[id]!;
    if (drawn < passed) return id;
  }
  return likely;
}
