// SPDX-License-Identifier: Apache-2.0
// A WebGPU device that records what is asked of it, and does it later, as a GPU does. What a kernel computes is a function of
// JavaScript, by the name of its entry point.

/** Groups of a dispatch, buffers in order; the last one has the numbers. */
export type FakeKernel = (groups: readonly number[], buffers: readonly DataView[]) => void;

interface Binding {
  readonly buffer: FakeBuffer;
  readonly offset?: number;
  readonly size?: number;
}

class FakeBuffer {
  readonly bytes: Uint8Array;
  destroyed = false;
  constructor(readonly size: number) {
    this.bytes = new Uint8Array(size);
  }
  destroy(): void {
    this.destroyed = true;
  }
}

export class FakeGpu {
  readonly buffers: FakeBuffer[] = [];
  submissions = 0;
  readonly dispatches: { entry: string; groups: number[]; layout: string[] }[] = [];
  readonly kernels: Record<string, FakeKernel>;
  readonly features = new Set<string>();
  readonly limits: Record<string, number>;
  readonly adapterInfo = { description: "fake" };
  readonly lost: Promise<{ reason: string; message: string }>;
  #lose!: (info: { reason: string; message: string }) => void;
  readonly #scopes: { filter: string; message?: string }[] = [];
  #waiting: (() => void)[] = [];

  constructor(kernels: Record<string, FakeKernel> = {}, maxBufferSize = 1 << 20) {
    this.kernels = kernels;
    this.limits = { maxBufferSize, maxComputeInvocationsPerWorkgroup: 256, maxComputeWorkgroupStorageSize: 16384 };
    this.lost = new Promise((resolve) => {
      this.#lose = resolve;
    });
  }

  get gpu(): GPUDevice {
    return this as unknown as GPUDevice;
  }
  get alive(): number {
    return this.buffers.filter((buffer) => !buffer.destroyed).length;
  }
  lose(message: string): void {
    this.#lose({ reason: "unknown", message });
  }

  /** What a real device finds wrong: those errors are told later. */
  #check(valid: boolean, message: string): boolean {
    const scope = this.#scopes.at(-1)!;
    if (!valid) scope.message ??= message;
    return valid;
  }
  async #finish(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve));
    for (const work of this.#waiting.splice(0)) work();
  }

  pushErrorScope(filter: string): void {
    this.#scopes.push({ filter });
  }
  async popErrorScope(): Promise<{ message: string } | null> {
    const { message } = this.#scopes.pop()!;
    await new Promise((resolve) => setTimeout(resolve));
    return message === undefined ? null : { message };
  }

  createBuffer({ size }: { size: number }): FakeBuffer {
    const buffer = Object.assign(new FakeBuffer(size), {
      mapAsync: () => this.#finish(),
      getMappedRange: () => buffer.bytes.buffer,
    });
    this.buffers.push(buffer);
    return buffer;
  }
  createShaderModule({ code }: { code: string }): object {
    const wrong = code.split("\n").findIndex((line) => line.includes("fmx("));
    const messages = [{ type: "error", lineNum: wrong + 1, linePos: 3, message: "unresolved call target 'fmx'" }];
    this.#check(wrong < 0, "invalid shader");
    return { wrong: wrong >= 0, getCompilationInfo: async () => ({ messages: wrong < 0 ? [] : messages }) };
  }
  createBindGroupLayout({ entries }: { entries: { buffer: { type: string } }[] }): object {
    return { types: entries.map((entry) => entry.buffer.type) };
  }
  createPipelineLayout({ bindGroupLayouts }: { bindGroupLayouts: object[] }): object {
    return bindGroupLayouts[0]!;
  }
  createComputePipeline({ layout, compute }: any): object {
    return { entry: compute.module.wrong ? "" : compute.entryPoint, layout: layout.types };
  }
  createBindGroup({ entries }: { entries: { resource: Binding }[] }): DataView[] {
    return entries.map(({ resource: { buffer, offset = 0, size = buffer.size } }) => {
      this.#check(!buffer.destroyed && offset % 256 === 0 && offset + size <= buffer.size, "invalid binding");
      return new DataView(buffer.bytes.buffer, offset, size);
    });
  }

  createCommandEncoder(): object {
    const commands: (() => void)[] = [];
    const copyBufferToBuffer = (from: FakeBuffer, start: number, to: FakeBuffer, at: number, size: number) => {
      this.#check([start, at, size].every((n) => n % 4 === 0) && start + size <= from.size, "invalid copy");
      commands.push(() => to.bytes.set(from.bytes.subarray(start, start + size), at));
    };
    return { copyBufferToBuffer, beginComputePass: () => this.#pass(commands), finish: () => commands };
  }
  #pass(commands: (() => void)[]): object {
    let pipeline!: { entry: string; layout: string[] };
    let views: DataView[] = [];
    return {
      setPipeline: (value: typeof pipeline) => {
        pipeline = value;
      },
      setBindGroup: (_: number, value: DataView[]) => {
        views = value;
      },
      dispatchWorkgroups: (...groups: number[]) => {
        if (!this.#check(pipeline.entry !== "" && groups.every((n) => n < 65536), "invalid dispatch")) return;
        this.dispatches.push({ ...pipeline, groups });
        const [kernel, given] = [this.kernels[pipeline.entry], views];
        commands.push(() => kernel?.(groups, given));
      },
      end: () => undefined,
    };
  }

  readonly queue = {
    writeBuffer: (buffer: FakeBuffer, at: number, from: ArrayBuffer | Uint8Array, start = 0, size?: number) => {
      const bytes = from instanceof Uint8Array ? from : new Uint8Array(from, start, size);
      if (bytes.length % 4) throw new RangeError("a part of a word");
      const copy = bytes.slice(); // what is written is taken at once
      this.#waiting.push(() => buffer.bytes.set(copy, at));
    },
    submit: (lists: (() => void)[][]) => {
      this.submissions += 1;
      this.#waiting.push(...lists.flat());
    },
    onSubmittedWorkDone: () => this.#finish(),
  };
}
