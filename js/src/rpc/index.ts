// SPDX-License-Identifier: Apache-2.0
// Sessions: with servers of portcall and TVM, in JavaScript alone, and as a server of their clients, by the core.

export { Float } from "../values.js";
export { type ConnectOptions, connect } from "./client/connect.js";
export type { Progress } from "./client/files.js";
export type { OnOutput } from "./client/pipeline.js";
export {
  type RemoteFunction,
  RemoteModule,
  RemoteObject,
  RemoteTensor,
  type RemoteValue,
  type TimeEvaluator,
} from "./client/remote.js";
export { Session } from "./client/session.js";
export { Timing, type TimingOptions } from "./client/timing.js";
export type { Ending } from "./server/core_endpoint.js";
export type { Functions, ServedFunction } from "./server/functions.js";
export { type JoinOptions, type JoinState, join } from "./server/join.js";
export { type ListenOptions, listen, type Server } from "./server/listen.js";
export type { ServeOptions } from "./server/serving.js";
export type { TLSOptions } from "./transport/transport.js";
export { DescribedObject, Shape } from "./wire/by_value.js";
export { Pointer } from "./wire/values.js";
