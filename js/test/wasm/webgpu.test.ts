// SPDX-License-Identifier: Apache-2.0
// Kernels of apache-tvm for WebGPU, on a device that is written for these tests. Chromium runs the same ones
// (test/browser/webgpu.test.ts). Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import {
  CompileError,
  type CoreTensor,
  DeviceError,
  device,
  load,
  type Module,
  openWebGpu,
  type Runtime,
  rpc,
  type WebGpu,
} from "../../src/index.js";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";
import { FakeGpu, type FakeKernel } from "./fake_gpu.js";

const float = (view: DataView, i: number) => view.getFloat32(4 * i, true);
const KERNELS: Record<string, FakeKernel> = {
  scale_add_kernel: ([x], [a, b, c, numbers]) => {
    const [factor, first, n] = [float(numbers!, 0), numbers!.getInt32(4, true), numbers!.getInt32(8, true)];
    for (let i = first; i < Math.min(n, 64 * x!); ++i) c!.setFloat32(4 * i, float(a!, i) * factor + float(b!, i), true);
  },
  double_add_kernel: ([x], [a, b, c]) => {
    for (let i = 0; i < x!; ++i) c!.setFloat32(4 * i, 2 * float(a!, i) + float(b!, i), true);
  },
  negate_kernel: ([x, , z], [a, b, numbers]) => {
    const last = numbers!.getUint32(4, true); // behind n; the source compares with >
    for (let i = 0; i < x! * z! && i <= last; ++i) b!.setFloat32(4 * i, -float(a!, i), true);
  },
};

let folder: string;
let library: Uint8Array;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "portcall-webgpu-"));
  await ended((await start(PYTHON, [fileURLToPath(new URL("js/test/wasm/gpu_kernels.py", ROOT)), folder])).process);
  library = new Uint8Array(readFileSync(join(folder, "gpu.wasm")));
});
after(() => rmSync(folder, { recursive: true }));

async function open(
  fake = new FakeGpu(KERNELS),
): Promise<{ core: Runtime; fake: FakeGpu; gpu: WebGpu; kernels: Module }> {
  const core = await load({ backend: "wasm" });
  const gpu = await openWebGpu(core, fake.gpu);
  return { core, fake, gpu, kernels: core.loadModuleSync(library) };
}

const iota = (n: number) => new Float32Array(n).map((_, i) => i);

describe("WebGPU", () => {
  test("runs kernels over tensors of the device", async () => {
    const { fake, gpu, kernels } = await open();
    const [x, y, z] = [gpu.tensor(iota(100)), gpu.tensor(new Float32Array(100).fill(1)), gpu.empty([100])];
    kernels.get("scale_add")(x, y, z, 0.5, 2);
    kernels.get("scale_add")(x, z, y, 1, 98);
    assert.deepEqual(
      await gpu.read(z),
      iota(100).map((i) => (i < 2 ? 0 : i / 2 + 1)),
    );
    assert.deepEqual((await gpu.read(y)).slice(97), new Float32Array([1, 98 + 50, 99 + 50.5]));
    const layout = ["read-only-storage", "read-only-storage", "storage", "uniform"];
    assert.deepEqual(fake.dispatches[0], { entry: "scale_add_kernel", groups: [2, 1, 1], layout });
  });

  test("is given kernels together, each with its numbers, and in order with what is written and freed", async () => {
    const { fake, gpu, kernels } = await open();
    const [x, y, z] = [gpu.tensor(iota(4)), gpu.tensor(new Float32Array(4)), gpu.empty([4])];
    const [scale, negate] = [kernels.get("scale_add"), kernels.get("negate")];
    scale(x, y, z, 2, 0);
    scale(z, x, y, 10, 0);
    negate(y, z);
    await gpu.wait();
    assert.equal(fake.submissions, 1);
    assert.deepEqual(await gpu.read(z), new Float32Array([-0, -21, -42, -63]));
    const before = fake.submissions;
    negate(x, z);
    gpu.tensor(new Float32Array([1])); // of no kernel of these
    assert.equal(fake.submissions, before);
    x.dispose(); // while the kernel has not begun
    assert.deepEqual(await gpu.read(z), new Float32Array([-0, -1, -2, -3]));
  });

  test("takes more kernels than a batch has room for, and begins without being waited for", async () => {
    const { fake, gpu, kernels } = await open();
    const [x, y] = [gpu.tensor(new Float32Array(4).fill(1)), gpu.tensor(new Float32Array(4))];
    const add = kernels.get("scale_add");
    for (let i = 0; i < 600; ++i) add(x, y, y, 1, 0);
    assert.equal(fake.submissions, 2);
    await undefined;
    assert.equal(fake.submissions, 3);
    assert.deepEqual(await gpu.read(y), new Float32Array(4).fill(600));
  });

  test("goes on after a batch that could not be given to it", async () => {
    const { fake, gpu, kernels } = await open();
    const [x, y] = [gpu.tensor(iota(4)), gpu.empty([4])];
    const make = fake.createBindGroup;
    fake.createBindGroup = () => {
      fake.createBindGroup = make;
      throw new TypeError("outside of its range");
    };
    kernels.get("negate")(x, y);
    await undefined; // whoever waits hears of it
    await assert.rejects(gpu.wait(), { name: "DeviceError", message: /negate_kernel.*outside of its range/ });
    kernels.get("negate")(x, y);
    assert.deepEqual(await gpu.read(y), new Float32Array([-0, -1, -2, -3]));
  });

  test("is opened once, also by two at the same time", async () => {
    const core = await load({ backend: "wasm" });
    const [one, other] = await Promise.all([1, 2].map(() => openWebGpu(core, new FakeGpu(KERNELS).gpu)));
    assert.equal(one, other);
    assert.deepEqual(await other!.read(one!.tensor(iota(4))), iota(4));
  });

  test("spreads long grids over two axes", async () => {
    const { fake, gpu, kernels } = await open();
    const n = 150_001;
    const [x, y] = [gpu.tensor(iota(n)), gpu.empty([n])];
    kernels.get("negate")(x, y);
    assert.deepEqual(
      await gpu.read(y),
      iota(n).map((i) => -i),
    );
    assert.deepEqual(fake.dispatches[0]!.groups, [50_001, 1, 3]);
  });

  test("has tensors of bytes, and frees them", async () => {
    const { fake, gpu } = await open();
    const bytes = new Uint8Array([1, 2, 3, 4, 5, 6, 7]);
    const tensor = gpu.tensor(bytes);
    assert.deepEqual(await gpu.read(tensor), bytes);
    assert.deepEqual([gpu.used, fake.alive], [8, 1]);
    tensor.dispose();
    assert.deepEqual([gpu.used, fake.alive], [0, 0]);
    assert.throws(() => gpu.tensor(bytes, [3]), RangeError);
    assert.throws(() => gpu.empty([1 << 20]), { name: "MemoryError" });
  });

  test("has no elements in place", async () => {
    const { core, gpu } = await open();
    assert.throws(() => gpu.empty([2]).data, TypeError);
    await assert.rejects(gpu.read(core.empty([2])), TypeError);
  });

  test("runs graphs, whose copies to the host wait", async () => {
    const { core, gpu } = await open();
    const model = core.loadModuleSync(new Uint8Array(readFileSync(join(folder, "gpu_bundle.wasm"))));
    const executor = model.get("default")(device("webgpu"));
    executor.get("set_input")("x", new Float32Array(100).fill(1));
    executor.get("run")();
    const y: CoreTensor = executor.get("get_output")(0);
    assert.deepEqual((await gpu.read(y))[0], -1);
    const copy = core.empty([100]);
    assert.throws(() => executor.get("get_output")(0, copy), DeviceError);
    const waits = executor.get("get_output").async(0, copy);
    if (!("Suspending" in WebAssembly)) return assert.rejects(waits, DeviceError);
    await waits;
    assert.equal(copy.data[99], -2);
  });

  test("tells whoever waits what the compiler says, once", async () => {
    const { core, gpu } = await open();
    const wrong = Buffer.from(library).toString("latin1").replace("fma(", "fmx(");
    const kernels = core.loadModuleSync(new Uint8Array(Buffer.from(wrong, "latin1")));
    const tensors = [gpu.tensor(iota(4)), gpu.tensor(iota(4)), gpu.empty([4])];
    kernels.get("scale_add")(...tensors, 1, 0);
    await assert.rejects(gpu.read(tensors[2]!), (error) => {
      assert(error instanceof CompileError);
      const lines = error.message.split("\n");
      assert.match(lines[0]!, /'scale_add_kernel'/);
      assert.match(lines[1]!, /^line 2\d: unresolved call target 'fmx'$/);
      assert.match(lines[2]!, /C_ptr\[.*fmx\(/);
      return true;
    });
    await gpu.wait();
  });

  test("that was lost is an error of all that follows", async () => {
    const { fake, gpu, kernels } = await open();
    const [x, y] = [gpu.tensor(iota(4)), gpu.empty([4])];
    const read = assert.rejects(gpu.read(x), { name: "DeviceError", message: /was lost.*gone/ });
    fake.lose("gone");
    await read;
    assert.throws(() => kernels.get("negate")(x, y), DeviceError);
    assert.throws(() => gpu.empty([4]), DeviceError);
    await assert.rejects(gpu.wait(), DeviceError);
  });

  test("that is not there is an error that tells where it is", async () => {
    const core = await load({ backend: "wasm" });
    assert.throws(() => core.getGlobalFunc("__tvm_set_device")(device("webgpu").type, 0), /openWebGpu/);
    await assert.rejects(openWebGpu(core), { name: "DeviceError", message: /navigator\.gpu.*https/ });
  });
});

describe("sessions with WebGPU", () => {
  async function served(t: TestContext, fake: FakeGpu, memoryLimit = 1 << 20): Promise<[rpc.Server, rpc.Session]> {
    const { core } = await open(fake);
    const server = await rpc.listen({ functions: {}, core, address: "127.0.0.1:0", memoryLimit });
    t.after(() => server.close());
    return [server, await rpc.connect(server.address)];
  }

  test("run kernels that clients send", async (t) => {
    const fake = new FakeGpu(KERNELS);
    const [server, session] = await served(t, fake);
    assert(await session.hasDevice("webgpu"));
    assert(!(await session.hasDevice("webgpu:1")));
    await session.upload("k.wasm", library);
    const kernels = await session.loadModule("k.wasm");
    const [x, y] = [
      await session.tensor(iota(8), [8], "float32", "webgpu"),
      await session.empty([8], "float32", "webgpu"),
    ];
    await (await kernels.get("negate"))(x, y);
    if ("Suspending" in WebAssembly) {
      assert.deepEqual(
        await y.data(),
        iota(8).map((i) => -i),
      );
      const evaluate = await kernels.timeEvaluator("negate", { device: "webgpu", number: 2, repeat: 3 });
      assert.equal((await evaluate(x, y)).results.length, 3);
    } else {
      await assert.rejects(y.data(), { kind: "DeviceError" });
    }
    assert.equal(fake.dispatches[0]!.entry, "negate_kernel");
    session.close();
    await server.close();
    assert.equal(fake.alive, 0);
  });

  test("share no memory, and have the limit of all memory of a session", async (t) => {
    const [server, session] = await served(t, new FakeGpu(KERNELS), 1 << 16);
    const tensor = await session.empty([3 << 13], "int8", "webgpu");
    await assert.rejects(session.empty([6 << 13], "int8", "webgpu"), { kind: "MemoryError" });
    tensor.dispose();
    await session.empty([6 << 13], "int8", "webgpu");
    await using other = await rpc.connect(server.address);
    await other.empty([6 << 13], "int8", "webgpu");
    session.close();
  });
});

if ("Suspending" in WebAssembly) {
  test("sessions wait for promises inside of calls of the core", async (t) => {
    const core = await load({ backend: "wasm" });
    const later = async (x: number) => {
      await new Promise((resolve) => setTimeout(resolve));
      if (x < 0) throw new RangeError("negative");
      return 2 * x;
    };
    const functions = { "demo.maker": () => later };
    const server = await rpc.listen({ functions, core, address: "127.0.0.1:0" });
    t.after(() => server.close());
    await using session = await rpc.connect(server.address);
    const apply = await session.getFunction("testing.apply");
    const made = await (await session.getFunction("demo.maker"))();
    assert.deepEqual(await Promise.all([apply(made, 4), apply(made, 5)]), [8, 10]);
    await assert.rejects(apply(made, -1), { kind: "ValueError" });
  });
}
