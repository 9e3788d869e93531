// SPDX-License-Identifier: Apache-2.0
// The core in WebAssembly, called from JavaScript. Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import {
  type CoreTensor,
  device,
  FunctionNotFoundError,
  load,
  ModuleLoadError,
  type Runtime,
} from "../../src/index.js";
import { ROOT } from "../captures.js";
import { testCore } from "../core_suite.js";
import { ended, PYTHON, start } from "../servers.js";

const CORE = new URL("js/core.wasm", ROOT);
const MOST_COMPRESSED = 310_000; // bytes; the VM and the caches of language models take 70,000

let core: Runtime;
before(async () => {
  core = await load({ backend: "wasm" });
});

test("the core is small, and tells no path of the machine that built it", () => {
  const bytes = readFileSync(CORE);
  assert(gzipSync(bytes, { level: 9 }).length < MOST_COMPRESSED);
  assert(!bytes.includes(fileURLToPath(ROOT)));
});

let folder: string;
let bytes: Uint8Array; // of a library of kernels
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "portcall-wasm-"));
  const here = (name: string) => fileURLToPath(new URL(`js/test/wasm/${name}`, ROOT));
  const { process } = await start(PYTHON, [here("kernels.py"), here("kernels.c"), folder]);
  await ended(process);
  bytes = new Uint8Array(readFileSync(join(folder, "kernels.wasm")));
});
after(() => rmSync(folder, { recursive: true }));

testCore("wasm", (runtime) => runtime.loadModule(bytes));

describe("promises inside calls", () => {
  const tick = () => new Promise((resolve) => setTimeout(resolve));
  const slowly = async (x: number) => {
    await tick();
    return 2 * x;
  };

  const raise = (error: Error): never => {
    throw error;
  };

  function testWaiting(): void {
    test("are waited for", async () => {
      const apply = core.getGlobalFunc("testing.apply");
      const next = (await core.loadModule(bytes)).get("next")();
      assert.deepEqual([await apply.async(apply, slowly, 4), await next.async(slowly, 4)], [8, 9]);
      const thrown = new RangeError("late");
      const fail = async () => {
        await tick();
        throw thrown;
      };
      await assert.rejects(next.async(fail), (error) => error === thrown);
      const all = [next.async(slowly, 1), next.async(slowly, 2), next.async((x: number) => x, 3)];
      assert.deepEqual(await Promise.all(all), [3, 5, 4]);
    });

    test("may be those of other such calls", async () => {
      const apply = core.getGlobalFunc("testing.apply");
      const outer = async (x: number) => {
        const quick = core.getGlobalFunc("testing.apply").async(slowly, 10);
        return x + ((await apply.async(slowly, x)) as number) + ((await quick) as number);
      };
      assert.equal(await apply.async(outer, 1), 23);
      const fail = async () => raise(new RangeError("late"));
      const all = [
        apply.async(outer, 1),
        apply.async(fail).catch(String),
        apply.async(async () => 5),
        apply.async(outer, 2),
      ];
      assert.deepEqual(await Promise.all(all), [23, "RangeError: late", 5, 26]);
    });

    test("leave room for other calls meanwhile", async () => {
      const apply = core.getGlobalFunc("testing.apply");
      const trap = core.loadModuleSync(bytes).get("trap");
      const tensor = core.tensor(new Float32Array([1, 2]));
      const array = new Float32Array([1, 2]);
      const meanwhile = async (x: CoreTensor, y: CoreTensor) => {
        await tick();
        for (let i = 0; i < 100; ++i) assert.throws(trap, WebAssembly.RuntimeError);
        tensor.dispose();
        apply.dispose();
        const promise = core.getGlobalFunc("testing.echo")(slowly(3)); // passes through as it is
        y.data[0] = x.data[1]!;
        return await promise;
      };
      assert.equal(await apply.async(meanwhile, tensor, array), 6);
      assert.deepEqual(array, new Float32Array([2, 2]));
      const again = core.getGlobalFunc("testing.apply");
      await assert.rejects(again.async(trap), WebAssembly.RuntimeError);
      assert.equal(await again.async(slowly, 5), 10);
    });
  }

  function testRefusing(): void {
    test("are errors that name engines which wait", async () => {
      const next = (await core.loadModule(bytes)).get("next")();
      await assert.rejects(next.async(slowly, 4), { name: "PortcallError", message: /Node 26/ });
      assert.equal(await next.async((x: number) => x, 4), 5);
      assert.equal(await core.getGlobalFunc("testing.apply").async(slowly, 4), 8); // the call itself returned it
    });
  }

  if ("Suspending" in WebAssembly) testWaiting();
  else testRefusing();
});

describe("libraries of kernels", () => {
  test("join the core's memory, and run over tensors and arrays", async () => {
    const module = await core.loadModule(bytes);
    const exp = module.get("exp");
    const [x, y] = [core.tensor(new Float32Array([0, 1])), core.empty([2])];
    exp(x, y);
    assert.deepEqual(y.data, new Float32Array([1, Math.E]));
    const out = new Float32Array(2);
    exp(new Float32Array([1, 0]), out);
    assert.deepEqual(out, new Float32Array([Math.E, 1]));
    assert.throws(() => exp(x), TypeError);
    assert.throws(() => module.get("nothing"), FunctionNotFoundError);
  });

  test("have variables of their own each time they are loaded", () => {
    const [one, two] = [core.loadModuleSync(bytes).get("count"), core.loadModuleSync(bytes).get("count")];
    assert.deepEqual([one(), one(), two()], [1, 2, 1]);
  });

  test("that trap end a call, and the core goes on", () => {
    const trap = core.loadModuleSync(bytes).get("trap");
    // As often as would fill the core's stack with what each leaves there.
    for (let i = 0; i < 20_000; ++i) assert.throws(trap, WebAssembly.RuntimeError);
    assert.equal(core.getGlobalFunc("testing.echo")(5), 5);
  });

  test("may have a graph and its parameters behind them", async () => {
    const bundle = new Uint8Array(readFileSync(join(folder, "bundle.wasm")));
    const x = new Float32Array(100).fill(-1);
    for (const module of [await core.loadModule(bundle), core.loadModuleSync(bundle)]) {
      const executor = module.get("default")(device("cpu"));
      executor.get("set_input")("x", x);
      executor.get("run")();
      const y: CoreTensor = executor.get("get_output")(0);
      assert(Math.abs((y.data[99] as number) - Math.exp(Math.exp(-1))) < 1e-5);
    }
    const damaged = bundle.slice();
    damaged.fill(255, -20, -8);
    assert.throws(() => core.loadModuleSync(damaged), ModuleLoadError);
  });

  test("that are invalid are refused", async () => {
    await assert.rejects(core.loadModule(new Uint8Array(10)), ModuleLoadError);
    const empty = new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);
    assert.throws(() => core.loadModuleSync(empty), ModuleLoadError);
  });
});
