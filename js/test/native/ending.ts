// SPDX-License-Identifier: Apache-2.0
// Threads and processes of the tests that end in different ways: `ending.js WHAT [LIBRARY]`, or a worker.

import { parentPort, workerData } from "node:worker_threads";
import { type CoreTensor, load } from "../../src/index.js";

const [, , what, library] = process.argv;
const core = await load({ backend: "native" });
const threads = await core.loadModule(workerData?.library ?? library);
const say = (message: unknown) => parentPort?.postMessage(message);

const programs: Record<string, () => unknown> = {
  "calls main"() {
    try {
      core.getGlobalFunc("test.main")();
    } catch (error) {
      say((error as { kind?: string }).kind);
    }
  },
  works() {
    const sum = (list: number[]) => list.reduce((a, b) => a + b, 0);
    const numbers = Array.from({ length: 1000 }, (_, i) => i);
    say(threads.get("call")(sum, numbers));
    core.tensor(new Float32Array(10)).data[0] = 1;
  },
  registers() {
    core.registerFunc("test.of_worker", () => 1);
    threads.get("keep")(() => 1);
    say("registered");
  },
  "is terminated in a call"() {
    threads.get("call")(() => {
      say("terminate");
      for (;;);
    });
  },
  // The pool's thread calls a function of JavaScript that is about to lose its thread.
  async "is terminated while it waits"() {
    const result = threads.get("call").async(() => {
      Atomics.store(workerData.flag, 0, 1);
      say("terminate");
      for (;;);
    });
    await result;
  },
  // The exit lets the pool's thread go, and with it the tensor that the function got.
  async "exits while another thread waits"() {
    const flag = core.tensor(new Int32Array([0]));
    process.on("exit", () => {
      while (flag.data[0] === 0);
    });
    const change = (lent: CoreTensor) => {
      lent.data[0] = 7;
      process.exit();
    };
    await threads.get("lend").async(change, flag);
  },
  "has little stack left"() {
    let list: unknown[] = [];
    for (let i = 0; i < 450; ++i) list = [list];
    const echo = core.getGlobalFunc("testing.echo");
    const down = (): unknown => {
      try {
        return down();
      } catch {
        return echo(list);
      }
    };
    say(JSON.stringify(down()) === JSON.stringify(list));
  },
  "ends in a call"() {
    threads.get("call")(() => {
      console.log("bye");
      process.exit(0);
    });
  },
  "ends with values of each kind"() {
    core.registerFunc("test.kept", () => 1);
    threads.get("keep")([new Float32Array(10), () => 2, new Date(), core.empty([3])]);
    (globalThis as { kept?: unknown }).kept = [core.tensor(new Int32Array(3)).data, threads.get("kept")()];
    console.log("bye");
  },
  "ends while an asynchronous call waits for it"() {
    void threads.get("call").async(() => {
      console.log("bye");
      process.exit(0);
    });
  },
};
await programs[what!]!();
