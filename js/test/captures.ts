// SPDX-License-Identifier: Apache-2.0
// What apache-tvm's two ends said on the wire: the recordings that the Python tests read, too.

import { readFileSync } from "node:fs";

export const ROOT = new URL("../../../", import.meta.url); // of the repository

export interface Capture {
  readonly section: string;
  readonly fromClient: boolean;
  readonly data: Uint8Array;
}

/** All recordings, in order. */
export function readCaptures(): Capture[] {
  const captures: Capture[] = [];
  let section = "";
  for (const line of readFileSync(new URL("tests/rpc/captures.txt", ROOT), "utf8").split("\n")) {
    if (line.startsWith("== ")) section = line.slice(3);
    const [, direction, hex] = /^([<>]) ([0-9a-f]+)(?: |$)/.exec(line) ?? [];
    if (hex) captures.push({ section, fromClient: direction === ">", data: new Uint8Array(Buffer.from(hex, "hex")) });
  }
  return captures;
}

/** The recordings of the section that starts with some words. */
export function section(start: string): Capture[] {
  const found = readCaptures().filter((capture) => capture.section.startsWith(start));
  if (!found.length) throw new Error(`no recording starts with '${start}'`);
  return found;
}

/** Whether the bytes are a whole frame, rather than a part of a handshake. */
export function isFrame(data: Uint8Array): boolean {
  if (data.length < 12) return false;
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  return Number(view.getBigUint64(0, true)) === data.length - 8;
}
