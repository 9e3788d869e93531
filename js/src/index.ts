// SPDX-License-Identifier: Apache-2.0
// portcall: the same calls in Node and in the browser.

export { CoreDict, CoreList, CoreShape } from "./core/containers.js";
export type { Runtime } from "./core/interface.js";
export {
  CoreObject,
  CoreTensor,
  type FieldDescription,
  Module,
  type ObjectClass,
  type PackedFunc,
} from "./core/objects.js";
export { openWebGpu, type WebGpu } from "./core/webgpu.js";
export { Device, device } from "./device.js";
export { DataType, dtype, type TypedArray } from "./dtype.js";
export * from "./errors.js";
export { type CoreSource, load } from "./load.js";
export * as rpc from "./rpc/index.js";
export { Tensor } from "./tensor.js";
export { Float } from "./values.js";
export * as vm from "./vm/index.js";
