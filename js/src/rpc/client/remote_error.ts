// SPDX-License-Identifier: Apache-2.0
// The errors that a peer's text becomes (docs/wire.md, section 5).

import { RemoteCrashError, RemoteError, type RPCError, SessionTimeoutError } from "../../errors.js";
import { TIMEOUT_PREFIX } from "../wire/facts.js";
import { printable } from "../wire/handshake.js";

// What each hop of a chain of sessions puts in front.
const HOPS = /^(?:RPCError: Error caught from RPC call:\n|RemoteError: )+/;
const KIND =
  /^(?!Error:)((?:[A-Za-z_]\w*)?(?:Error|Exception|ExceptionGroup|Warning|Interrupt|Exit|Iteration)): (.*)$/s;
const SIGNAL = /\bSIG[A-Z0-9]+\b/;

/** Whether the text says that the session's time is over, after which the server closes. */
export function saysExpired(text: string): boolean {
  return text.startsWith(TIMEOUT_PREFIX);
}

/** Return the error for the texts of an Exception. */
export function remoteError(text: string, peer: string, traceback = ""): RPCError {
  if (saysExpired(text)) {
    return new SessionTimeoutError(printable(text.slice(TIMEOUT_PREFIX.length)), { peer, reason: "expired" });
  }
  const clean = printable(text).replace(HOPS, "");
  const [, kind = "", message = clean] = KIND.exec(clean) ?? [];
  if (kind === "RemoteCrashError") {
    return new RemoteCrashError(`${peer}: ${message}`, { peer, signal: SIGNAL.exec(message)?.[0] ?? "" });
  }
  return new RemoteError(message, { peer, kind, traceback: printable(traceback) });
}
