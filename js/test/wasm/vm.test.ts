// SPDX-License-Identifier: Apache-2.0
// The Relax VM and language models in the core for WebAssembly, on the host. Chromium runs them on WebGPU
// (test/browser/language.test.ts). Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { FunctionNotFoundError, load, ModelError, type Module, openWebGpu, type Runtime, vm } from "../../src/index.js";
import { checkSampling, pick } from "../../src/vm/sampling.js";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";
import { FakeGpu } from "./fake_gpu.js";

const PROMPT = [1, 2, 3, 4, 5];

let folder: string;
let core: Runtime;
let library: Module;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "portcall-vm-"));
  await ended((await start(PYTHON, [fileURLToPath(new URL("js/test/wasm/vm_models.py", ROOT)), folder])).process);
  core = await load({ backend: "wasm" });
  library = read("language.wasm");
});
after(() => rmSync(folder, { recursive: true }));

const read = (name: string) => core.loadModuleSync(new Uint8Array(readFileSync(join(folder, name))));

async function collect(ids: AsyncIterable<number>): Promise<number[]> {
  const all: number[] = [];
  for await (const id of ids) all.push(id);
  return all;
}

describe("machines", () => {
  test("run models whose sizes are open", () => {
    const machine = vm.create(core, read("rows.wasm"));
    assert.deepEqual(machine.functions, ["main"]);
    for (const n of [1, 5]) {
      const z = machine.get("main")(machine.tensor(new Float32Array(8 * n).fill(1), [n, 8]));
      assert.deepEqual(
        [z.shape, Array.from(z.data.slice(0, 4))],
        [
          [n, 4],
          [0, 0, 0, 8],
        ],
      );
    }
    assert.throws(() => machine.get("main")(machine.tensor(new Float32Array(7), [1, 7])), /8/);
    assert.throws(() => machine.get("other"), FunctionNotFoundError);
    machine.dispose();
  });

  test("refuse what is no executable", () => {
    assert.throws(() => vm.create(core, 5 as any), TypeError);
    assert.throws(() => vm.create(core, library, { gpu: {} as any }), TypeError);
    const kernels = core.getGlobalFunc("portcall.ModuleOfFunctions")(new Map([["f", () => 1]]));
    assert.throws(() => vm.create(core, kernels), { name: "TypeError", message: /no executable/ });
  });
});

describe("language models", () => {
  test("give the tokens and logits of the machine that compiled them", async () => {
    const expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
    const seen: vm.Progress[] = [];
    const options = { tokens: 64, onProgress: (progress: vm.Progress) => seen.push(progress) };
    using model = await vm.language(core, library, join(folder, "weights"), options);
    assert.deepEqual(await collect(model.generate(PROMPT, { tokens: 12 })), expected.ids);
    const logits = await model.logits(PROMPT);
    assert.equal(logits.length, model.vocabulary);
    assert(logits.every((value, i) => Math.abs(value - expected.logits[i]) < 1e-4));
    assert(seen.length > 1);
    assert.equal(seen.at(-1)!.loaded, seen[0]!.total);
    assert.deepEqual(await collect(model.generate(PROMPT, { stop: [expected.ids[2]] })), expected.ids.slice(0, 2));
    const turns = await Promise.all([1, 2].map(() => collect(model.generate(PROMPT, { tokens: 5 }))));
    assert.deepEqual(turns, [expected.ids.slice(0, 5), expected.ids.slice(0, 5)]);
  });

  test("name what is wrong, and go on", async () => {
    using model = await vm.language(core, library, join(folder, "weights"), { tokens: 64, chunk: 16 });
    for (const ids of [[], [1.5], [-1], [128]]) await assert.rejects(model.logits(ids), RangeError);
    const wrong = [{ tokens: -1 }, { tokens: 1.5 }, { tokens: Number.NaN }, { temperature: -1 }, { topP: 2 }];
    for (const options of wrong) await assert.rejects(collect(model.generate(PROMPT, options)), RangeError);
    for (const options of [{ stop: 5 }, { random: 5 }]) {
      await assert.rejects(collect(model.generate(PROMPT, options as any)), TypeError);
    }
    for (const ids of [undefined, "12", 5]) await assert.rejects(model.logits(ids as any), TypeError);
    const drawn = collect(model.generate(new Set(PROMPT) as any, { tokens: 1, temperature: 1e6, random: () => 0 }));
    assert.equal((await drawn).length, 1);
    await assert.rejects(collect(model.generate(PROMPT)), /the cache is full/);
    await assert.rejects(model.logits(new Array(100).fill(1)), /the cache is full/);
    assert.equal((await model.logits(PROMPT)).length, 128);
    await assert.rejects(vm.language(core, library, folder, { chunk: 0 }), RangeError);
    await assert.rejects(vm.language(core, library, folder, { pages: 4 } as any), TypeError);
    await assert.rejects(vm.language(core, read("rows.wasm"), folder), { name: "TypeError", message: /embed/ });
  });

  test("give all of their memory back, also when they cannot be made, and end what is generated", async () => {
    const gpu = await openWebGpu(core, new FakeGpu().gpu);
    const left: number[] = [];
    for (let i = 0; i < 2; ++i) {
      await assert.rejects(vm.language(core, library, join(folder, "weights"), { gpu, tokens: 64 }), /expected cpu/);
      left.push(gpu.used);
    }
    assert.equal(left[0], left[1]); // what the core keeps for the next machine
    assert(left[0]! <= 4096);

    const open = () => vm.language(core, library, join(folder, "weights"), { tokens: 64 });
    const disposed = { name: "TypeError", message: /model was disposed of/ };
    const model = await open();
    for await (const _ of model.generate(PROMPT)) {
      model.dispose();
      break; // which is no error
    }
    await assert.rejects(model.logits(PROMPT), disposed);
    const other = await open();
    const computing = collect(other.generate(PROMPT));
    other.dispose();
    other.dispose();
    await assert.rejects(computing, disposed);
  });

  test("tell which weights are missing or damaged", async () => {
    const change = async (what: (weights: string) => void, message: RegExp) => {
      const weights = join(folder, "damaged");
      cpSync(join(folder, "weights"), weights, { recursive: true });
      what(weights);
      await assert.rejects(vm.language(core, library, weights, { tokens: 64 }), (error: Error) => {
        assert(error instanceof ModelError);
        assert.match(error.message, message);
        return true;
      });
      rmSync(weights, { recursive: true });
    };
    const list = (edit: (records: any[]) => void) => (weights: string) => {
      const file = join(weights, "tensor-cache.json");
      const found = JSON.parse(readFileSync(file, "utf8"));
      edit(found.records);
      writeFileSync(file, JSON.stringify(found));
    };
    await change((weights) => rmSync(join(weights, "tensor-cache.json")), /no weights.*tensor-cache/);
    await change((weights) => writeFileSync(join(weights, "tensor-cache.json"), "[]"), /no list/);
    await change((weights) => rmSync(join(weights, "params_shard_1.bin")), /params_shard_1/);
    await change((weights) => truncateSync(join(weights, "params_shard_1.bin"), 100), /params_shard_1.*has 100/);
    await change(
      list((records) => records.pop()),
      /not the weights/,
    );
    await change(
      list(([shard]) => (shard.dataPath = "../weights/params_shard_0.bin")),
      /no list/,
    );
    await change(
      list(([shard]) => (shard.records[0].byteOffset = 1e9)),
      /no list/,
    );
    await change(
      list(([shard]) => (shard.records[0].format = "zip")),
      /zip/,
    );
    await change(
      list(([shard]) => (shard.records[0].dtype = "float99")),
      /float99/,
    );
    await change(
      list(([shard]) => (shard.records[0].shape = [3])),
      /\[3\]/,
    );
    const edits: [(shard: any) => void, RegExp][] = [
      [(shard) => (shard.records[0] = null), /no list/],
      [(shard) => (shard.records[0].shape = new Array(1_000_000).fill(1)), /no list/],
      [(shard) => (shard.records[0].shape = [2 ** 53 - 1, 2 ** 53 - 1]), /too large/],
      [(shard) => (shard.records[0].shape = [2 ** 40]), /32768 bytes/],
      [(shard) => (shard.records[0].dtype = "__proto__"), /invalid data type/],
      [(shard) => (shard.records[0].name = "__proto__"), /not the weights/],
      [(shard) => Object.assign(shard.records[0], { format: "f32-to-bf16", nbytes: 3 }), /no halves/],
      [(shard) => (shard.dataPath = "\ud800"), /no list/],
    ];
    for (const [edit, message] of edits) {
      await change(
        list(([shard]) => edit(shard)),
        message,
      );
    }
    await change(
      list((records) => (records[0] = null)),
      /no list/,
    );
  });

  test("take weights from folders and files with any names", async () => {
    const weights = join(folder, "of a model");
    cpSync(join(folder, "weights"), weights, { recursive: true });
    const text = readFileSync(join(weights, "tensor-cache.json"), "utf8");
    writeFileSync(join(weights, "tensor-cache.json"), text.replace("params_shard_0.bin", "first of 2, 50%20.bin"));
    cpSync(join(weights, "params_shard_0.bin"), join(weights, "first of 2, 50%20.bin"));
    for (const where of [weights, pathToFileURL(weights), pathToFileURL(weights).href]) {
      (await vm.language(core, library, where, { tokens: 64 })).dispose();
    }
    await assert.rejects(vm.language(core, library, 5 as any), TypeError);
    for (const options of [{ onProgress: 5 }, { signal: 5 }, { cache: "no" }]) {
      await assert.rejects(vm.loadWeights({} as any, weights, options as any), TypeError);
    }
  });
});

test("sampling takes the most likely, or draws among them", () => {
  const logits = new Float32Array([0, 2, 1, -Infinity]);
  assert.equal(pick(logits, {}), 1);
  const drawn = [0, 0.2, 0.5, 0.7, 0.95].map((x) => pick(logits, { temperature: 1, random: () => x }));
  assert.deepEqual(drawn, [1, 1, 1, 2, 0]);
  assert.equal(pick(logits, { temperature: 1, topP: 0.6, random: () => 0.999 }), 1);
  assert.equal(pick(logits, { temperature: 1e-30, random: () => 0.999 }), 1);
  for (const wrong of [[Number.NaN], [1, Number.NaN], [-Infinity], [0, Infinity]]) {
    assert.throws(() => pick(new Float32Array(wrong), { temperature: 1 }), /no numbers/);
  }
  for (const options of [{ topP: 0 }, { temperature: Infinity }, { temperature: Number.NaN }]) {
    assert.throws(() => checkSampling(options), RangeError);
  }
});
