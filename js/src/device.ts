// SPDX-License-Identifier: Apache-2.0
// Devices by kind and index, such as `cpu:0`, with the numbers of DLPack.

import { checkText } from "./check.js";

const KINDS: Record<string, number> = {
  cpu: 1,
  cuda: 2,
  cuda_host: 3,
  opencl: 4,
  vulkan: 7,
  metal: 8,
  vpi: 9,
  rocm: 10,
  rocm_host: 11,
  ext_dev: 12,
  cuda_managed: 13,
  oneapi: 14,
  webgpu: 15,
  hexagon: 16,
  maia: 17,
  trn: 18,
};

/** A device: the number of its kind and an index. */
export class Device {
  constructor(
    readonly type: number,
    readonly index = 0,
  ) {}

  /** The name of the kind, such as `cuda`. */
  get kind(): string {
    return Object.keys(KINDS).find((name) => KINDS[name] === this.type) ?? `device(${this.type})`;
  }

  toString(): string {
    return `${this.kind}:${this.index}`;
  }
}

/** Return the device of a name, such as `cpu` or `cuda:1`.
 * @throws TypeError The text names no device. */
export function device(name: string | Device): Device {
  if (name instanceof Device) return name;
  const [, kind = "", index = "0"] = /^([a-z_]+)(?::(\d{1,9}))?$/.exec(checkText(name, "a device")) ?? [];
  const type = KINDS[kind];
  if (type === undefined) throw new TypeError(`invalid device '${name}' (such as cpu, cuda:0)`);
  return new Device(type, Number(index));
}
