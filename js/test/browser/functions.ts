// SPDX-License-Identifier: Apache-2.0
// What the device page of the tests offers.

export { SERVED as functions } from "../served.js";
