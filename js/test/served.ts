// SPDX-License-Identifier: Apache-2.0
// What the servers of the tests offer.

import { Tensor } from "../src/index.js";
import { Float, type Functions, type ServedFunction } from "../src/rpc/index.js";

class TimeoutError extends Error {
  override name = "TimeoutError";
}

export const SERVED: Functions = {
  "demo.add": (a: number, b: number) => a + b,
  "demo.adder": (n: number) => (x: number) => x + n,
  "demo.later": async (text: string) => {
    await new Promise((resolve) => setTimeout(resolve));
    return `${text}, later`;
  },
  "demo.sum": (x: Tensor<Float32Array>) => new Float(x.data.reduce((sum, value) => sum + value, 0)),
  "demo.double": (x: Tensor<Float32Array>) => {
    x.data.forEach((value, i) => {
      x.data[i] = 2 * value;
    });
  },
  "demo.iota": (n: number) => new Float32Array(n).map((_, i) => i),
  "demo.matrix": () => new Tensor(new Int32Array([1, 2, 3, 4]), [2, 2]),
  "demo.list": () => [3, 4, 5],
  "demo.length": (items: unknown[]) => items.length,
  "demo.fail": (text: string) => {
    throw new RangeError(text);
  },
  "demo.failLater": async (text: string) => {
    throw new TimeoutError(text);
  },
  "demo.throwText": (text: string) => {
    throw text;
  },
  "demo.failOddly": (text: string) => {
    throw Object.assign(new Error(text), { name: "MyErr" });
  },
  "demo.huge": () => 2n ** 70n,
  "demo.hugeLater": async () => [2n ** 70n][0],
  "demo.apply": (f: ServedFunction, x: unknown) => f(x),
  "demo.memory": (bytes: Uint8Array) => bytes.length,
  "demo.symbol": () => Symbol("s"),
  "demo.never": () => new Promise(() => {}),
};
