// SPDX-License-Identifier: Apache-2.0
// What only Node has. Bundles for pages leave it out, and the other files of its kind: package.json lists them as `browser`.

export { readFile } from "node:fs/promises";
