// SPDX-License-Identifier: Apache-2.0
// Values that JavaScript has no form for.

/** A whole number that must arrive as a float: `new Float(2)`. */
export class Float {
  constructor(readonly value: number) {}
}
