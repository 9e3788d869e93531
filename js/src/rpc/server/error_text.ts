// SPDX-License-Identifier: Apache-2.0
// The text that an error of JavaScript is for a client (docs/wire.md, section 5): the name of a class of Python, and a
// message.

import { RemoteError } from "../../errors.js";

const NAMES: Record<string, string> = {
  Error: "RuntimeError",
  RangeError: "ValueError",
  ReferenceError: "NameError",
  AggregateError: "RuntimeError",
  AbortError: "RuntimeError",
};
const NAME = /^[A-Za-z_]\w*(Error|Exception|Warning|Interrupt|Exit|Iteration)$/;

/** An error that a client sees under the name of one of Python's classes. */
export class ServedError extends Error {
  constructor(
    override readonly name: string,
    message: string,
  ) {
    super(message);
  }
}

/** Return an error as a client sees it. */
export function asServed(error: unknown): ServedError {
  if (error instanceof ServedError) return error;
  if (!(error instanceof Error)) return new ServedError("RuntimeError", describe(error));
  if (error instanceof RemoteError && error.kind) return new ServedError(error.kind, error.remoteMessage);
  const { kind } = error as { kind?: unknown }; // of an error of the core
  if (typeof kind === "string" && NAME.test(kind)) return new ServedError(kind, error.message);
  const name = NAMES[error.name] ?? (NAME.test(error.name) ? error.name : undefined);
  if (name) return new ServedError(name, error.message);
  return new ServedError("RuntimeError", `${error.name}: ${error.message}`); // no name that the wire has
}

/** Return what was thrown, as text: anything may be. */
function describe(thrown: unknown): string {
  try {
    return String(thrown);
  } catch {
    return "a function raised something that has no text";
  }
}
