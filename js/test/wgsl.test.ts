// SPDX-License-Identifier: Apache-2.0
// Reads the modules of kernels for WebGPU that TVM's compiler embeds in libraries.

import assert from "node:assert/strict";
import { test } from "node:test";
import { readKernels } from "../src/core/wgsl.js";
import { ModuleLoadError } from "../src/index.js";

const number = (value: number) => [value, ...new Array(7).fill(0)];
const text = (value: string) => [...number(value.length), ...Buffer.from(value)];
const list = (items: number[][]) => [...number(items.length), ...items.flat()];

const POINTER = [3, 64, 1, 0];
const FLOAT = [2, 32, 1, 0];
const PARAMETERS = ["blockIdx.y", "blockIdx.x", "threadIdx.x", "paramWriteAccess:[0,1]"];
const TAGS = {
  none: [],
  empty: list([]),
  "one an argument": list([
    [0, 0, 0, 0],
    [0, 0, 0, 0],
    [0, 0, 0, 0],
  ]),
};

function payload(tags: number[], types = [POINTER, FLOAT, POINTER], parameters = PARAMETERS, source = "k"): Uint8Array {
  const info = [...text("k"), ...list(types), ...list(parameters.map(text)), ...tags];
  return new Uint8Array([...list([[...text("k"), ...info]]), ...list([[...text(source), ...text("code")]])]);
}

for (const [name, tags] of Object.entries(TAGS)) {
  test(`a kernel is read, with tags: ${name}`, () => {
    const args = ["buffer", "float32", "buffer"];
    const kernel = { name: "k", code: "code", args, extents: [1, 0, 3], writes: [false, true] };
    assert.deepEqual(readKernels(payload(tags)), [kernel]);
  });
}

test("damaged modules are refused", () => {
  const whole = payload(TAGS.empty);
  for (let size = 0; size < whole.length; ++size)
    assert.throws(() => readKernels(whole.slice(0, size)), ModuleLoadError);
  for (let at = 0; at < whole.length; ++at) {
    const damaged = whole.with(at, 255);
    try {
      readKernels(damaged); // a name may have been damaged
    } catch (error) {
      assert(error instanceof ModuleLoadError);
    }
  }
});

test("kernels that cannot be launched are refused", () => {
  assert.throws(() => readKernels(payload([], [POINTER, [0, 64, 1, 0]])), ModuleLoadError);
  assert.throws(() => readKernels(payload([], [[2, 32, 4, 0]])), ModuleLoadError);
  for (const parameter of ["blockIdx.w", "tirx.use_dyn_shared_memory", "paramWriteAccess:(1)"]) {
    assert.throws(() => readKernels(payload([], [POINTER], [parameter])), ModuleLoadError);
  }
  assert.throws(() => readKernels(payload([], [POINTER], [], "other")), ModuleLoadError);
});
