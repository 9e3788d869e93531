// SPDX-License-Identifier: Apache-2.0
// What a device of WebGPU is to do, recorded and given to it together: at the end of the code that asks for it, or when
// somebody waits. A token of a language model is some hundreds of kernels; each alone would be a submission of its own.

const SLOTS = 256; // places for the numbers of kernels, of a batch
const SLOT = 256; // bytes: what WebGPU aligns them to, on all devices
const UNIFORM = 64;
const COPY_DST = 8;

/** A kernel with its arguments. */
export interface Launch {
  readonly name: string;
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
  readonly buffers: readonly GPUBuffer[];
  /** The arguments that are numbers: what is bound after the buffers. */
  readonly numbers: ArrayBuffer;
  readonly groups: readonly [number, number, number];
}

/** Makes a call of WebGPU; `failed` says in words what did, if it does. */
type Ask = (what: () => void, failed: string) => void;
type Encode = (encoder: GPUCommandEncoder) => void;

export class Batch {
  readonly #gpu: GPUDevice;
  readonly #ask: Ask;
  #records: Encode[] = [];
  #kernels: string[] = []; // by their names
  #slot = 0; // the next that is free
  readonly #content = new Uint8Array(SLOTS * SLOT);
  #numbers: GPUBuffer | undefined;
  #pass: GPUComputePassEncoder | undefined; // that is open while the batch is encoded
  readonly #used = new Set<GPUBuffer>();
  #freed: GPUBuffer[] = []; // that it uses

  constructor(gpu: GPUDevice, ask: Ask) {
    this.#gpu = gpu;
    this.#ask = ask;
  }

  /** Whether it has something to do with a buffer. */
  uses(buffer: GPUBuffer): boolean {
    return this.#used.has(buffer);
  }

  /** Free a buffer, when what was recorded is done with it. */
  free(buffer: GPUBuffer): void {
    if (this.uses(buffer)) this.#freed.push(buffer);
    else buffer.destroy();
  }

  launch(launch: Launch): void {
    const size = launch.numbers.byteLength;
    const slots = Math.ceil(size / SLOT);
    if (this.#slot + slots > SLOTS) this.submit();
    const offset = this.#slot * SLOT;
    this.#slot += slots;
    this.#content.set(new Uint8Array(launch.numbers), offset);
    this.#kernels.push(launch.name);
    this.#record(launch.buffers, (encoder) => {
      const resources = [...launch.buffers.map((buffer) => ({ buffer })), { buffer: this.#room(), offset, size }];
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      this.#pass ??= encoder.beginComputePass();
      this.#pass.setPipeline(launch.pipeline);
      const group = this.#gpu.createBindGroup({ label: launch.name, layout: launch.layout, entries });
      this.#pass.setBindGroup(0, group);
      this.#pass.dispatchWorkgroups(...launch.groups);
    });
  }

  copy(from: GPUBuffer, fromOffset: number, to: GPUBuffer, toOffset: number, nbytes: number): void {
    this.#record([from, to], (encoder) => {
      this.#endPass();
      encoder.copyBufferToBuffer(from, fromOffset, to, toOffset, nbytes);
    });
  }

  #record(buffers: readonly GPUBuffer[], encode: Encode): void {
    if (!this.#records.length) queueMicrotask(() => this.submit());
    this.#records.push(encode);
    for (const buffer of buffers) this.#used.add(buffer);
  }

  #endPass(): void {
    this.#pass?.end();
    this.#pass = undefined;
  }

  /** Give the device what was recorded. */
  submit(): void {
    const [records, freed, names] = [this.#records, this.#freed, this.#kernels];
    if (!records.length) return;
    const nbytes = this.#slot * SLOT;
    this.#forget();
    this.#ask(() => {
      const { queue } = this.#gpu;
      if (nbytes) queue.writeBuffer(this.#room(), 0, this.#content.buffer, 0, nbytes);
      const encoder = this.#gpu.createCommandEncoder();
      this.#pass = undefined; // of a batch that could not be encoded
      for (const encode of records) encode(encoder);
      this.#endPass();
      queue.submit([encoder.finish()]);
    }, wordsOf(names));
    for (const buffer of freed) buffer.destroy();
  }

  #room(): GPUBuffer {
    this.#numbers ??= this.#gpu.createBuffer({ size: SLOTS * SLOT, usage: UNIFORM | COPY_DST });
    return this.#numbers;
  }

  #forget(): void {
    this.#records = [];
    this.#freed = [];
    this.#kernels = [];
    this.#slot = 0;
    this.#used.clear();
  }

  /** Forget what was not given to the device, and free what it has. */
  close(): void {
    for (const buffer of this.#freed) buffer.destroy();
    this.#forget();
    this.#numbers?.destroy();
    this.#numbers = undefined;
  }
}

function wordsOf(kernels: readonly string[]): string {
  const different = [...new Set(kernels)];
  if (!different.length) return "a copy failed";
  if (different.length === 1) return `the kernel '${different[0]}' failed`;
  const more = different.length > 3 ? `, ${different.length - 3} more` : "";
  return `one of the kernels ${different.slice(0, 3).join(", ")}${more} failed`;
}
