// SPDX-License-Identifier: Apache-2.0
// The native core and threads: asynchronous calls, workers, and the end of each.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { before, describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";
import { type CoreTensor, load, type Module, type Runtime } from "../../src/index.js";
import { compile } from "./libraries.js";

const run = promisify(execFile);
const EMULATOR = process.env.PORTCALL_TEST_EMULATOR?.split(" ") ?? []; // runs this machine's Node, such as qemu
const PROGRAM = fileURLToPath(new URL("./ending.js", import.meta.url));

let core: Runtime;
let library: string;
let threads: Module;
before(async () => {
  core = await load({ backend: "native" });
  library = compile("threads");
  threads = await core.loadModule(library);
});

describe("f.async()", () => {
  test("frees the event loop, and shares memory with it", async () => {
    const flag = core.tensor(new Int32Array([0]));
    const result = threads.get("wait_for").async(flag);
    await setImmediate();
    flag.data[0] = 5;
    assert.equal(await result, 5);
  });

  test("works for several calls at once, and after the function was disposed of", async () => {
    const flags = [1, 2, 3].map(() => core.tensor(new Int32Array([0])));
    const wait = threads.get("wait_for");
    const results = flags.map((flag) => wait.async(flag));
    wait.dispose();
    for (const [i, flag] of flags.entries()) flag.data[0] = i + 1;
    assert.deepEqual(await Promise.all(results), [1, 2, 3]);
    assert.throws(() => wait.async(1), TypeError);
  });

  test("calls functions of JavaScript in their own thread, which is free", async () => {
    const thrown = new RangeError("thrown");
    const call = threads.get("call");
    assert.equal(await call.async((a: number, b: number) => a + b, 1, 2), 3);
    assert.deepEqual(await call.async((list: unknown[]) => [...list, "more"], ["a", 1n]), ["a", 1, "more"]);
    const fail = () => {
      throw thrown;
    };
    await assert.rejects(call.async(fail), (error) => error === thrown);
    await assert.rejects(core.getGlobalFunc("testing.test_raise_error").async("TypeError", "no"), TypeError);
  });

  test("refuses what cannot be passed", async () => {
    const nop = core.getGlobalFunc("testing.nop");
    assert.throws(() => nop.async(Symbol("s")), TypeError);
    assert.throws(() => nop.async(1, 2n ** 70n), RangeError);
    assert.equal(await nop.async(), null);
  });
});

describe("a function of JavaScript that another thread calls", () => {
  test("is not called: the error says so", async () => {
    let calls = 0;
    const count = () => {
      calls += 1;
    };
    const elsewhere = threads.get("call_elsewhere");
    const refused = { name: "PortcallError", kind: "RuntimeError", message: /another thread/ };
    assert.throws(() => elsewhere(count), refused);
    await assert.rejects(elsewhere.async(count), refused);
    assert.equal(calls, 0);
    assert.equal(threads.get("call")(count), null);
    assert.equal(calls, 1);
  });
});

/** Run a worker of js/test/native/ending.ts, and return what it said. */
function worker(what: string, more: object = {}): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const said: unknown[] = [];
    const thread = new Worker(PROGRAM, { argv: [what], workerData: { library, ...more } });
    thread.on("message", (message) => {
      said.push(message);
      if (message === "terminate") void thread.terminate();
    });
    thread.on("error", reject);
    thread.on("exit", () => resolve(said[0]));
  });
}

describe("workers", () => {
  test("have the same registry and errors of their own", async () => {
    core.registerFunc("test.main", () => 1);
    assert.equal(await worker("calls main"), "RuntimeError");
    assert.deepEqual(await Promise.all([1, 2, 3].map(() => worker("works"))), [499_500, 499_500, 499_500]);
  });

  test("take their functions with them when they end", async () => {
    assert.equal(await worker("registers"), "registered");
    assert.throws(() => core.getGlobalFunc("test.of_worker"), { functionName: "test.of_worker" });
    const held = threads.get("kept")();
    assert.throws(() => held(), { kind: "RuntimeError", message: /has ended/ });
    threads.get("drop_elsewhere")();
  });

  test("may exit in a function that another thread waits for", async () => {
    assert.equal(await worker("exits while another thread waits"), undefined);
  });

  test("pass values with many levels where there is stack for them", async () => {
    assert.equal(await worker("has little stack left"), true);
  });

  test("may be terminated in calls, and in asynchronous ones", async () => {
    assert.equal(await worker("is terminated in a call"), "terminate");
    const flag = new Int32Array(new SharedArrayBuffer(4));
    const ended = worker("is terminated while it waits", { flag });
    while (Atomics.load(flag, 0) === 0) await setImmediate();
    assert.equal(await ended, "terminate");
    assert.equal(core.getGlobalFunc("testing.echo")(3), 3);
  });
});

describe("a process", () => {
  for (const what of [
    "ends in a call",
    "ends with values of each kind",
    "ends while an asynchronous call waits for it",
  ]) {
    test(`that ${what} does so cleanly`, async () => {
      const [program, ...words] = [...EMULATOR, process.execPath, PROGRAM, what, library];
      const { stdout, stderr } = await run(program!, words);
      assert.deepEqual([stdout, stderr], ["bye\n", ""]);
    });
  }
});

test("a tensor over an array that the core keeps stays usable", () => {
  threads.get("keep")(new Int32Array([1, 2, 3]));
  assert.deepEqual((threads.get("kept")() as CoreTensor).data, new Int32Array([1, 2, 3]));
  threads.get("drop_elsewhere")();
});
