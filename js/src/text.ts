// SPDX-License-Identifier: Apache-2.0
// Text as UTF-8.

const encoder = new TextEncoder();

/** Return text as UTF-8.
 * @throws TypeError The text has half of a surrogate pair, which UTF-8 cannot carry. */
export function encodeText(text: string): Uint8Array {
  if (!text.isWellFormed()) throw new TypeError("the text has half of a surrogate pair; pass it as bytes");
  return encoder.encode(text);
}
