// SPDX-License-Identifier: Apache-2.0
// The native core, by the addon. Needs js/platform, which `make addon` fills.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { before, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import {
  CoreTensor,
  FunctionNotFoundError,
  load,
  type Module,
  ModuleLoadError,
  type Runtime,
  Tensor,
} from "../../src/index.js";
import { testCore } from "../core_suite.js";
import { compile } from "./libraries.js";

setFlagsFromString("--expose-gc");
const collect: () => void = runInNewContext("gc");

let core: Runtime;
before(async () => {
  core = await load();
});

/** Collect garbage until a condition holds, or for a hundred rounds of the event loop. What the condition looks at through a
 * WeakRef stays alive for one round. */
async function collectUntil(holds: () => boolean): Promise<boolean> {
  for (let i = 0; i < 100; ++i) {
    await setImmediate();
    collect();
    await setImmediate();
    if (holds()) return true;
  }
  return false;
}

testCore("native", (runtime) => runtime.loadModule(compile("threads")));

test("load gives the native core, the same one each time", async () => {
  assert.equal(core.backend, "native");
  assert.equal(await load({ backend: "native" }), core);
  assert.match(core.version, /^\d/);
});

test("graphs are run by a library beside the core, which the first call opens", () => {
  assert.throws(() => core.getGlobalFunc("portcall.graph.create")(new Uint8Array(10)), TypeError);
});

describe("values", () => {
  test("that contain themselves are refused", () => {
    const list: unknown[] = [];
    list.push(list);
    const map = new Map<string, unknown>();
    map.set("map", map);
    const echo = core.getGlobalFunc("testing.echo");
    for (const value of [list, map]) assert.throws(() => echo(value), RangeError);
  });

  test("may be many", () => {
    core.registerFunc("test.sum", (...args: number[]) => args.reduce((a, b) => a + b, 0));
    const numbers = Array.from({ length: 1000 }, (_, i) => i);
    assert.equal(core.getGlobalFunc("test.sum")(...numbers), 499_500);
    assert.deepEqual(core.getGlobalFunc("testing.echo")(numbers), numbers);
    const text = "tëxt ".repeat(100_000);
    assert.equal(core.getGlobalFunc("testing.echo")(text), text);
  });

  test("of other addons and prototypes are told from those of the core", () => {
    const echo = core.getGlobalFunc("testing.echo");
    const made = Object.create(CoreTensor.prototype);
    assert.equal(echo(made), made);
    assert.throws(() => made.data, TypeError);
    assert.throws(() => Object.getPrototypeOf(echo).async.call({}), TypeError);
  });
});

describe("memory", () => {
  let kernels: Module;
  let objects: Module;
  before(async () => {
    kernels = core.loadModuleSync(new Uint8Array(readFileSync(compile("kernels"))));
    objects = await core.loadModule(pathToFileURL(compile("threads")));
  });

  test("of an array of JavaScript is a tensor's, in both directions", () => {
    const array = new Float32Array([1, 2, 3]);
    core.registerFunc("test.see", (x: CoreTensor) => {
      x.data[0] = 7;
      return [array[0], x.data[2], x.shape, String(x.dtype)];
    });
    const see = core.getGlobalFunc("test.see");
    assert.deepEqual(see(array), [7, 3, [3], "float32"]);
    array[0] = 0;
    assert.deepEqual(see(new Tensor(array, [1, 3])), [7, 3, [1, 3], "float32"]);
    const kept = core.getGlobalFunc("testing.echo")(array) as CoreTensor;
    kept.data[1] = 9;
    assert.equal(array[1], 9);
  });

  test("of a tensor that changed its array or shape is refused", () => {
    const echo = core.getGlobalFunc("testing.echo");
    const changed = (change: object) => Object.assign(new Tensor(new Float32Array(4), [2, 2]), change);
    for (const change of [
      { shape: [2, 3] },
      { data: new Float32Array(2) },
      { data: new DataView(new ArrayBuffer(16)) },
    ]) {
      assert.throws(() => echo(changed(change)), TypeError);
    }
    for (const shape of [
      [-2, -2],
      [2 ** 40, 2 ** 40, 2],
    ])
      assert.throws(() => echo(changed({ shape })), RangeError);
    const gone = changed({});
    structuredClone(gone.data.buffer, { transfer: [gone.data.buffer] });
    assert.throws(() => echo(gone), TypeError);
  });

  test("that is aligned goes to kernels as it is, other memory as a copy that comes back", () => {
    const array = new Float32Array(64);
    const address = kernels.get("address");
    const places = Array.from({ length: 32 }, (_, i) => address(array.subarray(i)) as number);
    const steps = Array.from({ length: 16 }, (_, i) => places[i + 16]! - places[i]!);
    assert.equal(steps.filter((step) => step === 64).length, 1);
    assert(places.every((place) => place % 64 === 0));
    const addOne = kernels.get("add_one");
    for (let i = 0; i < 16; ++i) {
      const x = array.subarray(i, i + 8);
      addOne(x, x);
    }
    assert.deepEqual(array.subarray(0, 3), new Float32Array([1, 2, 3]));
    const tensor = core.tensor(new Float32Array([1, 2]));
    addOne(tensor, tensor);
    assert.deepEqual(tensor.data, new Float32Array([2, 3]));
    assert.equal(address(tensor), address(tensor));
  });

  test("is freed by dispose, and arrays over it are empty then", () => {
    const tensor = core.tensor(new Float32Array([1, 2]));
    const { data } = tensor;
    const again = core.getGlobalFunc("testing.echo")(tensor) as CoreTensor;
    tensor.dispose();
    assert.equal(data.length, 0);
    assert.deepEqual(again.data, new Float32Array([1, 2]));
    assert.throws(() => core.getGlobalFunc("testing.nop")(tensor), TypeError);
  });

  test("stays while a call uses it, whatever the call disposes of", () => {
    const tensor = core.tensor(new Float32Array([1, 2]));
    const call = objects.get("call");
    const seen = call((x: CoreTensor) => {
      tensor.dispose();
      call.dispose();
      return x.data[1];
    }, tensor);
    assert.equal(seen, 2);
    assert.throws(() => call(), TypeError);
  });

  test("is given back by garbage collection, in whatever thread the core drops the last reference", async () => {
    const live = () => core.getGlobalFunc("portcall.LiveNodes")() as Map<string, number>;
    const count = (key: string) => live().get(key) ?? 0;
    const names = ["ffi.Tensor", "ffi.Error", "ffi.Array", "ffi.String"];
    await collectUntil(() => false);
    const before = names.map(count);
    const echo = core.getGlobalFunc("testing.echo");
    const [keep, drop] = [objects.get("keep"), objects.get("drop_elsewhere")];
    const weak: WeakRef<object>[] = [];
    const use = async (i: number) => {
      const parts = [new Float32Array(100), () => i, new Date(), new Error("thrown")];
      weak.push(...parts.map((part) => new WeakRef<object>(part)));
      const raise = () => {
        throw parts[3];
      };
      echo(core.empty([10]));
      echo([parts, "a longer text", core.tensor(new Int32Array(3)).data]);
      assert.throws(() => core.getGlobalFunc("testing.apply")(raise));
      assert.throws(() => core.getGlobalFunc("testing.test_raise_error")("ValueError", "no"));
      keep(parts);
      drop();
      await objects.get("call").async(() => parts[0], 1);
    };
    for (let i = 0; i < 200; ++i) await use(i);
    assert(await collectUntil(() => weak.every((one) => one.deref() === undefined)));
    assert(await collectUntil(() => names.every((name, i) => count(name) <= before[i]!)), `${[...live()]}`);
  });

  test("of text longer than a cell reaches kernels", () => {
    const size = kernels.get("size");
    assert.deepEqual([size("four"), size("more than seven bytes"), size("")], [4, 21, 0]);
    assert.throws(() => size([1]), TypeError);
  });

  test("errors of libraries name what is wrong", async () => {
    assert.throws(() => kernels.get("nothing"), FunctionNotFoundError);
    assert.throws(() => kernels.get("add_one")(1), TypeError);
    await assert.rejects(core.loadModule(new Uint8Array(10)), ModuleLoadError);
  });
});
