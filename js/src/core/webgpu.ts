// SPDX-License-Identifier: Apache-2.0
// WebGPU as a device of the core in WebAssembly: memory, copies, and the kernels of modules of WGSL.

import { device } from "../device.js";
import { bytesOf, type DataType, dtypeOf, type TypedArray } from "../dtype.js";
import { CompileError, DeviceError } from "../errors.js";
import { Batch } from "./batch.js";
import type { Runtime } from "./interface.js";
import { bytesIn, type CoreTensor, checkFills, type Module } from "./objects.js";
import { WasmRuntime } from "./runtime.js";
import { type Kernel, readKernels } from "./wgsl.js";

/** A GPUDevice, where the program that uses these types knows that. */
export type GpuDevice = typeof globalThis extends { GPUDevice: { prototype: infer Device } } ? Device : any;

const WEBGPU = device("webgpu");
const ALIGNMENT = 64; // of the numbers of buffers: compiled code takes them for addresses
const MOST_GROUPS = 65535; // on an axis
// Flags of WebGPU. The standard's own names for them are where the browser has it alone.
const MAP_READ = 1;
const COPY_SRC = 4;
const COPY_DST = 8;
const STORAGE = 128;
const READ = 1;
const COMPUTE = 4;
const FEATURES: GPUFeatureName[] = ["shader-f16", "subgroups"]; // those that kernels may use
const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupSizeZ",
] as const;
const EXISTS = 0; // an attribute, by its number in core/include/portcall/c_api.h
const ATTRIBUTES: Record<number, (gpu: GPUDevice) => unknown> = {
  [EXISTS]: () => true,
  1: ({ limits }) => limits.maxComputeInvocationsPerWorkgroup,
  3: ({ limits }) => limits.maxComputeWorkgroupStorageSize,
  5: ({ adapterInfo }) => adapterInfo?.description || adapterInfo?.vendor || "WebGPU",
};

const opened = new WeakMap<Runtime, WebGpu>();
const opening = new WeakMap<Runtime, Promise<WebGpu>>();

/** Give the core in WebAssembly the device `webgpu:0`: the browser's, or one that is given, which has to have the features
 * and limits that kernels use. Sessions that are served by this core have it, too.
 * @throws DeviceError There is no WebGPU here. */
export async function openWebGpu(core: Runtime, gpu?: GpuDevice): Promise<WebGpu> {
  if (!(core instanceof WasmRuntime))
    throw new TypeError("WebGPU needs the core in WebAssembly: load({ backend: 'wasm' })");
  const begun = opening.get(core) ?? begin(core, gpu).finally(() => opening.delete(core));
  opening.set(core, begun);
  return begun;
}

async function begin(core: WasmRuntime, gpu: GpuDevice | undefined): Promise<WebGpu> {
  return opened.get(core) ?? new WebGpu(core, gpu ?? (await requestDevice()));
}

/** @internal The same device for the core of a session, with a limit of bytes; undefined where it was not opened. */
export function shareWebGpu(core: Runtime, session: WasmRuntime, limit: number): WebGpu | undefined {
  const gpu = opened.get(core);
  return gpu && new WebGpu(session, gpu.device, limit);
}

async function requestDevice(): Promise<GPUDevice> {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) {
    throw new DeviceError(
      "there is no WebGPU here (navigator.gpu): open the page over https or from localhost, in Chromium 113, Safari 26 or " +
        "later, on a machine with a GPU that the browser supports; or give openWebGpu a GPUDevice",
    );
  }
  return adapter.requestDevice({
    requiredFeatures: FEATURES.filter((name) => adapter.features.has(name)),
    requiredLimits: Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]])),
  });
}

interface Memory {
  readonly buffer: GPUBuffer;
  readonly nbytes: number;
}

interface Built {
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
  /** Bytes of the arguments that are numbers. */
  readonly size: number;
  /** What is taken off the number of groups, since the source compares with `>` where it means `>=`. */
  readonly excess: number;
}

/** The device `webgpu:0` of a core. */
export class WebGpu {
  readonly device: GpuDevice;
  readonly #runtime: WasmRuntime;
  readonly #limit: number;
  readonly #memory = new Map<number, Memory>();
  readonly #batch: Batch;
  #last = 0;
  #used = 0;
  #lost: DeviceError | undefined;
  // The first failure of what was asked for, which WebGPU tells later; whoever waits gets it.
  #failure: Error | undefined;
  #told: Promise<void> = Promise.resolve();

  /** @internal `openWebGpu` makes it. */
  constructor(runtime: WasmRuntime, gpu: GpuDevice, limit = Number.POSITIVE_INFINITY) {
    this.#runtime = runtime;
    this.device = gpu;
    this.#limit = limit;
    this.#batch = new Batch(gpu, (what, failed) => {
      if (this.#lost) return; // whoever waits hears of it
      const explain = (message: string) => new DeviceError(`${failed} on ${WEBGPU}: ${message}`);
      try {
        this.#ask(what, explain);
      } catch (error) {
        this.#failure ??= explain((error as Error).message); // at once, such as of a grid that is no number of WebGPU
      }
    });
    gpu.lost.then(({ reason, message }) => {
      const why = [reason, message].filter(Boolean).join(": ");
      this.#lost = new DeviceError(`the WebGPU device was lost (${why}), with all its tensors: reload the page`);
    });
    // In the order of core/web/devices.cc.
    const commands: ((...numbers: number[]) => unknown)[] = [
      (index, name) => (index ? name !== EXISTS && null : ATTRIBUTES[name!]?.(gpu)),
      (index, nbytes) => this.#alloc(index!, nbytes!),
      (_, data) => this.#free(data!),
      (...place) => this.copy(...(place as Parameters<WebGpu["copy"]>)),
      (_, needed) => (needed || runtime.canWait ? this.#waitInside() : undefined),
    ];
    const ask = (command: number, ...rest: number[]) => commands[command]!(...rest);
    runtime.call("portcall.AddJSDevice", WEBGPU.type, ask);
    runtime.registerFunc("ffi.Module.load_from_bytes.webgpu", (bytes) => this.#load(bytes));
    opened.set(runtime, this);
  }

  /** Bytes of the device's memory that tensors have. */
  get used(): number {
    return this.#used;
  }

  /** Return a tensor on the device, uninitialised. */
  empty(shape: readonly number[], dtype: string | DataType = "float32"): CoreTensor {
    return this.#runtime.empty(shape, dtype, WEBGPU);
  }

  /** Return a tensor on the device with the elements of an array. */
  tensor(
    data: TypedArray,
    shape: readonly number[] = [data.length],
    dtype: string | DataType = dtypeOf(data),
  ): CoreTensor {
    const tensor = this.empty(shape, dtype);
    checkFills(data, tensor);
    this.#write(this.#runtime.placeOf(tensor).data, 0, bytesOf(data));
    return tensor;
  }

  /** Return the elements of a tensor on the device, when all that was asked for before is done.
   * @throws CompileError A kernel of that could not be compiled.
   * @throws DeviceError Something of that failed, or the device was lost. */
  async read(tensor: CoreTensor): Promise<TypedArray> {
    const place = this.#runtime.placeOf(tensor);
    if (place.device.type !== WEBGPU.type) throw new TypeError(`the tensor is on ${place.device}, not on ${WEBGPU}`);
    const Class = tensor.dtype.arrayClass;
    return new Class((await this.#read(place.data, place.offset, bytesIn(tensor))).buffer as ArrayBuffer);
  }

  /** Wait until all that was asked for is done.
   * @throws CompileError A kernel could not be compiled.
   * @throws DeviceError Something of that failed, or the device was lost. */
  async wait(): Promise<void> {
    this.#batch.submit();
    await this.device.queue.onSubmittedWorkDone();
    await this.#told;
    this.#checkAlive();
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure) throw failure;
  }

  /** @internal Free all memory: the session is over. */
  close(): void {
    for (const data of [...this.#memory.keys()]) this.#free(data);
    this.#batch.close();
  }

  // ---- Failures, which come later ----

  #checkAlive(): void {
    if (this.#lost) throw this.#lost;
  }

  /** Ask for something; `explain` makes an error of what WebGPU says of it later. */
  #ask<T>(
    what: () => T,
    explain: (message: string) => Error | Promise<Error>,
    filter: GPUErrorFilter = "validation",
  ): T {
    this.#checkAlive();
    this.device.pushErrorScope(filter);
    try {
      return what();
    } finally {
      const error = this.device.popErrorScope().catch(() => null); // the device was lost
      const tell = async () => {
        const { message } = (await error) ?? {};
        if (message !== undefined) this.#failure ??= await explain(message);
      };
      this.#told = this.#told.then(tell).catch(() => undefined);
    }
  }

  /** For a call of the core, which waits for the promise. */
  #waitInside(): Promise<void> {
    this.#checkCanWait();
    return this.wait();
  }

  #checkCanWait(): void {
    if (this.#runtime.canWait) return;
    throw new DeviceError(
      `the call has to wait for ${WEBGPU}: call it as await f.async(…), where the engine has JavaScript Promise Integration ` +
        "(Chromium 137), or read tensors by await gpu.read(tensor)",
    );
  }

  // ---- Memory ----

  #alloc(index: number, nbytes: number): number {
    if (index) throw new DeviceError(`there is no device webgpu:${index}, there is ${WEBGPU}`);
    const size = wholeWords(Math.max(nbytes, 4));
    const most = Math.min(this.device.limits.maxBufferSize, this.#limit - this.#used);
    if (size > most) throw withName("MemoryError", `${WEBGPU} has no memory for ${nbytes} bytes: at most ${most}`);
    const descriptor = { size, usage: STORAGE | COPY_SRC | COPY_DST };
    const explain = (message: string) =>
      withName("MemoryError", `${WEBGPU} has no memory for ${nbytes} bytes: ${message}`);
    const buffer = this.#ask(() => this.device.createBuffer(descriptor), explain, "out-of-memory");
    this.#last += ALIGNMENT;
    this.#memory.set(this.#last, { buffer, nbytes });
    this.#used += size;
    return this.#last;
  }

  #free(data: number): void {
    const memory = this.#memory.get(data);
    if (!memory) return;
    this.#memory.delete(data);
    this.#used -= memory.buffer.size;
    this.#batch.free(memory.buffer);
  }

  #memoryOf(data: number | null): Memory {
    this.#checkAlive();
    const memory = this.#memory.get(data ?? 0);
    if (!memory) throw new DeviceError(`${data} is not memory of ${WEBGPU}`);
    return memory;
  }

  /** @internal Copy between the host and the device, or on it; the first of each three is a kind of device. */
  copy(
    fromKind: number,
    from: number,
    fromOffset: number,
    toKind: number,
    to: number,
    toOffset: number,
    nbytes: number,
  ): Promise<void> | undefined {
    const { memory } = this.#runtime;
    if (fromKind !== WEBGPU.type) {
      const start = from + fromOffset;
      this.#write(to, toOffset, memory.bytes.subarray(start, start + nbytes));
      return undefined;
    }
    if (toKind !== WEBGPU.type) {
      this.#checkCanWait();
      return this.#read(from, fromOffset, nbytes).then((bytes) => memory.bytes.set(bytes, to + toOffset));
    }
    const [source, target] = [this.#memoryOf(from), this.#memoryOf(to)];
    checkWords(source, fromOffset, nbytes);
    checkWords(target, toOffset, nbytes);
    this.#batch.copy(source.buffer, fromOffset, target.buffer, toOffset, wholeWords(nbytes));
    return undefined;
  }

  #write(data: number, offset: number, bytes: Uint8Array): void {
    const memory = this.#memoryOf(data);
    checkWords(memory, offset, bytes.length);
    if (this.#batch.uses(memory.buffer)) this.#batch.submit();
    const whole = bytes.length - (bytes.length % 4);
    const { queue } = this.device;
    queue.writeBuffer(memory.buffer, offset, bytes.buffer as ArrayBuffer, bytes.byteOffset, whole);
    if (whole === bytes.length) return;
    const rest = new Uint8Array(4);
    rest.set(bytes.subarray(whole));
    queue.writeBuffer(memory.buffer, offset + whole, rest);
  }

  async #read(data: number, offset: number, nbytes: number): Promise<Uint8Array> {
    const { buffer } = this.#memoryOf(data);
    const start = offset - (offset % 4);
    const size = wholeWords(offset + nbytes) - start;
    const staging = this.device.createBuffer({ size, usage: MAP_READ | COPY_DST });
    try {
      this.#batch.copy(buffer, start, staging, 0, size);
      this.#batch.submit();
      const mapped = staging.mapAsync(READ, 0, size);
      await Promise.allSettled([mapped]); // what failed before says more
      await this.wait();
      await mapped;
      return new Uint8Array(staging.getMappedRange()).slice(offset - start, offset - start + nbytes);
    } finally {
      staging.destroy();
    }
  }

  // ---- Kernels ----

  #load(bytes: Uint8Array): Module {
    const functions = readKernels(bytes).map((kernel) => {
      let built: Built | undefined;
      const launch = (...args: (number | null)[]) => {
        built ??= this.#build(kernel);
        this.#launch(kernel, built, args);
      };
      return [kernel.name, launch] as const;
    });
    return this.#runtime.call("portcall.ModuleOfFunctions", new Map(functions));
  }

  #build({ name, code, args, writes }: Kernel): Built {
    const buffers = args.filter((arg) => arg === "buffer").length;
    const entries = Array.from({ length: buffers + 1 }, (_, binding): GPUBindGroupLayoutEntry => {
      const type = binding === buffers ? "uniform" : writes[binding] ? "storage" : "read-only-storage";
      return { binding, visibility: COMPUTE, buffer: { type } };
    });
    let module: GPUShaderModule;
    const make = () => {
      module = this.device.createShaderModule({ code });
      const layout = this.device.createBindGroupLayout({ entries });
      const pipeline = this.device.createComputePipeline({
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: name },
      });
      return {
        pipeline,
        layout,
        size: 4 * (args.length - buffers + 1),
        excess: code.includes("> podArgs.packGridDimX") ? 1 : 0,
      };
    };
    return this.#ask(make, (message) => explainBuild(name, code, module, message));
  }

  #launch({ name, args, extents }: Kernel, { pipeline, layout, size, excess }: Built, values: (number | null)[]): void {
    if (values.length !== args.length + extents.length) {
      throw new TypeError(`${name}() takes ${args.length + extents.length} arguments, got ${values.length}`);
    }
    const groups = [1, 1, 1, 1, 1, 1]; // and the threads of a group, which the source has
    for (const [i, extent] of extents.entries()) groups[extent] = Math.max(Number(values[args.length + i]), 1);
    const [x, y, z] = groups as [number, number, number];
    if (z !== 1) throw new DeviceError(`${name}(): the z of WebGPU's grid is for grids that are long in x`);
    const layers = Math.ceil(x / MOST_GROUPS);
    const buffers: GPUBuffer[] = [];
    const numbers = new DataView(new ArrayBuffer(size));
    let at = 0;
    for (const [i, arg] of args.entries()) {
      const value = values[i]!;
      if (arg === "buffer") {
        buffers.push(this.#memoryOf(value).buffer);
        continue;
      }
      if (arg === "float32") numbers.setFloat32(at, Number(value), true);
      else numbers.setInt32(at, Number(value), true);
      at += 4;
    }
    numbers.setUint32(at, x - excess, true);
    this.#checkAlive();
    const grid = [Math.ceil(x / layers), y, layers] as const;
    this.#batch.launch({ name, pipeline, layout, buffers, numbers: numbers.buffer, groups: grid });
  }
}

function wholeWords(nbytes: number): number {
  return Math.ceil(nbytes / 4) * 4;
}

/** Bytes are copied to words, or to the end of the memory. */
function checkWords({ nbytes }: Memory, offset: number, size: number): void {
  if (offset % 4 === 0 && (size % 4 === 0 || offset + size === nbytes)) return;
  throw new DeviceError(`${WEBGPU} copies whole words of 4 bytes: not ${size} bytes at ${offset}`);
}

function withName(name: string, message: string): DeviceError {
  return Object.assign(new DeviceError(message), { name });
}

/** What the compiler says of a source, with the lines. */
async function explainBuild(name: string, code: string, module: GPUShaderModule, message: string): Promise<Error> {
  const { messages } = await module.getCompilationInfo();
  const lines = code.split("\n");
  const log = messages
    .filter(({ type }) => type === "error")
    .map((each) => `line ${each.lineNum}: ${each.message}\n    ${lines[each.lineNum - 1]?.trim() ?? ""}`);
  return new CompileError(`the browser cannot compile the kernel '${name}':\n${log.join("\n") || message}`);
}
