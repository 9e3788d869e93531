// SPDX-License-Identifier: Apache-2.0
// Executables of TVM's Relax VM: a machine that runs their functions, on the host or on WebGPU.

import { checkOptions, got } from "../check.js";
import type { CoreShape } from "../core/containers.js";
import type { Runtime } from "../core/interface.js";
import { type CoreObject, type CoreTensor, Module, type PackedFunc, symbolDispose } from "../core/objects.js";
import { WebGpu } from "../core/webgpu.js";
import { device } from "../device.js";
import { type DataType, dtypeOf, type TypedArray } from "../dtype.js";

const HOST = device("cpu");
const WEBGPU = device("webgpu");
const POOLED = 2; // kind of allocator

/** Where a machine's tensors are. */
export interface MachineOptions {
  /** The device that `openWebGpu` gave, for a library whose kernels are for WebGPU; else they run on the host. */
  readonly gpu?: WebGpu | undefined;
}

/** Make a machine of a library that apache-tvm or `portcall compile` made for the VM.
 * @throws TypeError The library has no executable.
 * @throws FunctionNotFoundError The executable calls functions that nobody has. */
export function create(core: Runtime, library: Module, options: MachineOptions = {}): VirtualMachine {
  const { gpu } = checkOptions(options, ["gpu"]);
  if (!(library instanceof Module)) throw new TypeError(`a library is expected, got ${got(library)}`);
  if (gpu !== undefined && !(gpu instanceof WebGpu))
    throw new TypeError(`gpu is what openWebGpu gave, got ${got(gpu)}`);
  checkExecutable(library);
  const machine: Module = callOnce(library, "vm_load_executable");
  const devices = gpu ? [WEBGPU, HOST] : [HOST]; // on the host, too, shapes are computed
  try {
    callOnce(machine, "vm_initialization", ...devices.flatMap(({ type, index }) => [type, index, POOLED]));
    return new VirtualMachine(core, library, machine, gpu);
  } catch (error) {
    machine.dispose();
    throw error;
  }
}

function checkExecutable(library: Module): void {
  try {
    library.get("vm_load_executable").dispose();
  } catch (error) {
    throw new TypeError("the library has no executable of a virtual machine", { cause: error });
  }
}

/** Call a function of a module, which must not keep the module's memory afterwards. */
function callOnce(module: Module, name: string, ...args: unknown[]): any {
  const called = module.get(name);
  try {
    return called(...args);
  } finally {
    called.dispose();
  }
}

/** A machine with the functions of an executable. `create` makes it. */
export class VirtualMachine {
  readonly core: Runtime;
  /** The device on which it runs; undefined for the host. */
  readonly gpu: WebGpu | undefined;
  /** The names of the functions that can be called. */
  readonly functions: readonly string[];
  readonly #module: Module;
  readonly #known = new Map<string, PackedFunc>();

  /** @internal */
  constructor(core: Runtime, library: Module, module: Module, gpu: WebGpu | undefined) {
    this.core = core;
    this.gpu = gpu;
    this.#module = module;
    const facts = JSON.parse(callOnce(library, "describe"));
    this.functions = facts.functions
      .filter(({ kind }: { kind: string }) => kind !== "packed")
      .map(({ name }: { name: string }) => name);
  }

  /** Return a function. It takes tensors of the machine's device, numbers, texts, shapes, and arrays of them, which are
   * tuples; tuples come back as arrays. Where it may wait for the device, call it as `await f.async(…)`.
   * @throws FunctionNotFoundError There is none of that name. */
  get(name: string): PackedFunc {
    return this.#find(name, () => this.#module.get(name));
  }

  /** Return a function of the core.
   * @throws FunctionNotFoundError There is none of that name. */
  builtin(name: string): PackedFunc {
    return this.#find(`vm.builtin.${name}`, () => this.core.getGlobalFunc(`vm.builtin.${name}`));
  }

  #find(name: string, find: () => PackedFunc): PackedFunc {
    const found = this.#known.get(name) ?? find();
    this.#known.set(name, found);
    return found;
  }

  /** Return a shape, which functions take as an argument. */
  shape(extents: readonly number[]): CoreShape {
    return this.#find("ffi.Shape", () => this.core.getGlobalFunc("ffi.Shape"))(...extents);
  }

  /** Return a tensor of the machine's device with the elements of an array. */
  tensor(
    data: TypedArray,
    shape: readonly number[] = [data.length],
    type: string | DataType = dtypeOf(data),
  ): CoreTensor {
    return (this.gpu ?? this.core).tensor(data, shape, type);
  }

  /** Return the elements of a tensor of the machine's device, when all that was asked for before is done. */
  async read(tensor: CoreTensor): Promise<TypedArray> {
    return this.gpu ? this.gpu.read(tensor) : tensor.data.slice();
  }

  /** Give everything back: the machine and its functions. */
  dispose(): void {
    const all: (CoreObject | PackedFunc)[] = [...this.#known.values(), this.#module];
    for (const each of all) each.dispose();
  }
  [symbolDispose](): void {
    this.dispose();
  }
}
