// SPDX-License-Identifier: Apache-2.0
// Bundles (docs/graph.md): a library of kernels, then the parameters and the index of a graph, in one file.

import { ModuleLoadError } from "../errors.js";

/** The parts of a bundle. */
export interface Bundle {
  readonly library: Uint8Array;
  /** The file up to its footer. */
  readonly content: Uint8Array;
  readonly indexOffset: number;
  readonly indexSize: number;
}

const MARK = "PCBUNDLE";
const FOOTER = 3 * 8 + MARK.length; // where the library ends, where the index begins, its size

/** Return the parts of a bundle; undefined for other files.
 * @throws ModuleLoadError It is damaged. */
export function readBundle(file: Uint8Array): Bundle | undefined {
  const end = file.length - FOOTER;
  if (end < 0 || new TextDecoder("latin1").decode(file.subarray(-MARK.length)) !== MARK) return undefined;
  const footer = new DataView(file.buffer, file.byteOffset + end, FOOTER);
  const [libraryEnd, indexOffset, indexSize] = [0, 8, 16].map((at) => Number(footer.getBigUint64(at, true)));
  if (!(libraryEnd! <= indexOffset! && indexOffset! + indexSize! === end)) {
    throw new ModuleLoadError("it is a bundle, and its last bytes are damaged");
  }
  return {
    library: file.subarray(0, libraryEnd),
    content: file.subarray(0, end),
    indexOffset: indexOffset!,
    indexSize: indexSize!,
  };
}
