// SPDX-License-Identifier: Apache-2.0
// Every error that portcall raises on its own account, with the names of the Python package:
//
//   PortcallError
//   ├── FunctionNotFoundError    .functionName            nothing has that name
//   ├── ModuleLoadError                                   a library cannot be loaded
//   ├── DeviceError                                       a device is missing, or failed
//   ├── CompileError                                      a kernel cannot be compiled
//   ├── ModelError                                        weights are damaged, or those of another model
//   └── RPCError                 .peer .reason            something between two processes
//       ├── ConnectError                                  no session could be opened
//       │   ├── KeyMismatchError                          the server has another key
//       │   ├── VersionMismatchError                      the two sides speak different versions
//       │   └── AuthenticationError                       a token is wrong or missing
//       ├── SessionClosedError                            we closed the session
//       ├── SessionBrokenError                            the peer or the network went away
//       ├── SessionTimeoutError                           no answer in time, or the time of the session is over
//       ├── RemoteProtocolError                           the peer broke the protocol
//       ├── RemoteError          .kind .remoteMessage     a function of the peer raised
//       └── RemoteCrashError     .signal                  the session of the peer crashed

/** Base of every error that portcall raises on its own account. */
export class PortcallError extends Error {}

/** No function has the name that was asked for. */
export class FunctionNotFoundError extends PortcallError {
  readonly functionName: string;

  constructor(message: string, functionName = "") {
    super(message);
    this.functionName = functionName;
  }
}

/** A library cannot be loaded. */
export class ModuleLoadError extends PortcallError {}

/** A device is missing, or failed. */
export class DeviceError extends PortcallError {}

/** A kernel cannot be compiled. */
export class CompileError extends PortcallError {}

/** Weights are missing, damaged, or those of another model. */
export class ModelError extends PortcallError {}

export interface RPCErrorFacts {
  /** The other side, such as `board.local:9090`. */
  peer?: string;
  /** A word for programs where one class has several causes, such as `refused` or `wrong-token`. */
  reason?: string;
}

/** Something went wrong between two processes. */
export class RPCError extends PortcallError {
  readonly peer: string;
  readonly reason: string;

  constructor(message: string, facts: RPCErrorFacts = {}) {
    super(message);
    this.peer = facts.peer ?? "";
    this.reason = facts.reason ?? "";
  }
}

/** No session could be opened. */
export class ConnectError extends RPCError {}

/** The server has another key than the one asked for. */
export class KeyMismatchError extends ConnectError {}

/** The two sides speak different versions of the protocol. */
export class VersionMismatchError extends ConnectError {}

/** A token was wrong, or is missing. */
export class AuthenticationError extends ConnectError {}

/** The session was closed on this side, and something of it was used afterwards. */
export class SessionClosedError extends RPCError {}

/** The peer or the network went away in the middle of a session. */
export class SessionBrokenError extends RPCError {}

/** No answer came in time, or the time of the session is over. */
export class SessionTimeoutError extends RPCError {}

/** The peer sent something that the protocol does not allow. */
export class RemoteProtocolError extends RPCError {}

/** A function of the peer raised an error. */
export class RemoteError extends RPCError {
  /** The name of the error's class at the peer, such as `ValueError`; empty when the peer did not tell. */
  readonly kind: string;
  /** The text of the error, without its class. */
  readonly remoteMessage: string;
  /** Where it was raised at the peer, as text; empty where the peer does not say. */
  readonly remoteTraceback: string;

  constructor(message: string, facts: RPCErrorFacts & { kind?: string; traceback?: string } = {}) {
    super(facts.kind ? `${facts.kind}: ${message}` : message, facts);
    this.kind = facts.kind ?? "";
    this.remoteMessage = message;
    this.remoteTraceback = facts.traceback ?? "";
  }
}

/** The session at the peer crashed. */
export class RemoteCrashError extends RPCError {
  /** The name of the signal, such as `SIGSEGV`; empty when the process exited. */
  readonly signal: string;

  constructor(message: string, facts: RPCErrorFacts & { signal?: string } = {}) {
    super(message, facts);
    this.signal = facts.signal ?? "";
  }
}

// By name, since tools that make files smaller rename classes.
const CLASSES = {
  PortcallError,
  FunctionNotFoundError,
  ModuleLoadError,
  DeviceError,
  CompileError,
  ModelError,
  RPCError,
  ConnectError,
  KeyMismatchError,
  VersionMismatchError,
  AuthenticationError,
  SessionClosedError,
  SessionBrokenError,
  SessionTimeoutError,
  RemoteProtocolError,
  RemoteError,
  RemoteCrashError,
};
for (const [name, cls] of Object.entries(CLASSES)) {
  Object.defineProperty(cls.prototype, "name", { value: name, configurable: true, writable: true });
}
