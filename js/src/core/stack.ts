// SPDX-License-Identifier: Apache-2.0
// The stacks of core.wasm: that of cells, where calls put their arguments and results, and that of its own frames.

import { CELL } from "./layout.js";
import type { CoreMemory } from "./memory.js";

const SIZE = 1 << 16; // bytes of cells for calls within calls

export class Stack {
  /** Where the next call puts its cells. Between calls it is a place for what the core writes. */
  top: number;
  readonly end: number;
  /** The pointer to the core's frames, outside of all calls but one that waits. */
  pointer: number;
  readonly #memory: CoreMemory;

  constructor(memory: CoreMemory) {
    this.#memory = memory;
    this.top = memory.allocate(SIZE + CELL);
    this.end = this.top + SIZE;
    this.pointer = memory.exports.__stack_pointer.value;
  }

  /** Take back the frames that a trap left without an end. Nothing of the core may be running. */
  forgetFrames(): void {
    this.#memory.exports.__stack_pointer.value = this.pointer;
  }
}
