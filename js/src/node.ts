// SPDX-License-Identifier: Apache-2.0
// What only Node has. Bundles for pages leave it out, and the other files of its kind: package.json lists them as `browser`.

import { readFileSync } from "node:fs";

export { readFile } from "node:fs/promises";
export { loadavg } from "node:os";

/** Return the nanoseconds for which this thread was on a core, and ready without one; nothing where Linux does not tell. */
export function accountOfThread(): number[] {
  try {
    return readFileSync("/proc/thread-self/schedstat", "latin1").split(" ").map(Number);
  } catch {
    return [];
  }
}
