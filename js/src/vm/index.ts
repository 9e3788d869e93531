// SPDX-License-Identifier: Apache-2.0
// Executables of TVM's Relax VM, and language models.

export { type GenerateOptions, type LanguageModel, type LanguageOptions, language } from "./language.js";
export { create, type MachineOptions, type VirtualMachine } from "./machine.js";
export type { Sampling } from "./sampling.js";
export { loadWeights, type Progress, type WeightsOptions } from "./weights.js";
