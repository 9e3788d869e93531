// SPDX-License-Identifier: Apache-2.0
// Sessions with servers of portcall and TVM, in JavaScript alone.

export { type ConnectOptions, connect } from "./client/connect.js";
export type { Progress } from "./client/files.js";
export { type RemoteFunction, RemoteModule, RemoteObject, RemoteTensor, type RemoteValue } from "./client/remote.js";
export { Session } from "./client/session.js";
export { type TimeEvaluator, Timing, type TimingOptions } from "./client/timing.js";
export { Float, Pointer } from "./wire/values.js";
