// SPDX-License-Identifier: Apache-2.0
// The first bytes of a connection (docs/wire.md, sections 1 and 8): both sides name themselves, and prove that they know a
// token. No I/O here.

import { checkNumber, checkText } from "../../check.js";
import { AuthenticationError, KeyMismatchError, RemoteProtocolError } from "../../errors.js";
import { encodeText } from "../../text.js";
import { decodeLeniently } from "./bytes.js";
import {
  BLANKS,
  DUPLICATE,
  type Feature,
  MAGIC,
  MAX_KEY_BYTES,
  MISMATCH,
  MOST_SECONDS,
  NOTICE,
  EXTENSION_VERSION as VERSION,
} from "./facts.js";

/** The version of the extensions, as a word of a hello. */
export const EXTENSION_VERSION = String(VERSION);
const HEAD = 8;
const BLANK = new RegExp(`[${BLANKS}]+`);

export type Role = "client" | "server";

/** What a peer says of itself: its key, and options. */
export interface Greeting {
  readonly key: string;
  readonly options: ReadonlyMap<string, string>;
}

/** Return a key as it may travel.
 * @throws TypeError It has whitespace in it, or is too long. */
export function checkKey(key: string): string {
  if (BLANK.test(checkText(key, "key"))) throw new TypeError(`invalid key '${key}': keys have no whitespace`);
  if (encodeText(key).length > MAX_KEY_BYTES / 2) throw new TypeError("the key is too long");
  return key;
}

/** Return a token, in Node that of the environment variable PORTCALL_TOKEN unless it is given; empty for none.
 * @throws TypeError It is blank. */
export function tokenOf(given: string | undefined): string {
  const token = checkText(given ?? globalThis.process?.env?.PORTCALL_TOKEN ?? "", "token");
  if (token && !token.trim()) throw new TypeError("the token is blank");
  return token;
}

/** Return a number of seconds.
 * @throws RangeError It is negative, no number, or more than the protocol allows. */
export function checkSeconds(seconds: number, name: string): number {
  if (!(checkNumber(seconds, name) >= 0 && seconds <= MOST_SECONDS)) {
    throw new RangeError(`invalid ${name} ${seconds} (must be 0-${MOST_SECONDS} seconds)`);
  }
  return seconds;
}

function message(code: number, text: string): Uint8Array {
  const bytes = encodeText(text);
  const whole = new Uint8Array(HEAD + bytes.length);
  const view = new DataView(whole.buffer);
  view.setInt32(0, code, true);
  view.setInt32(4, bytes.length, true);
  whole.set(bytes, HEAD);
  return whole;
}

/** Return what a peer opens with, or answers: its role, key and options. */
export function greeting(role: Role, key: string, options: Iterable<readonly [string, string]> = []): Uint8Array {
  const words = [`${role}:${key}`];
  for (const [name, value] of options) words.push(`-${name}=${value}`);
  return message(MAGIC, words.join(" "));
}

/** Return what refuses a peer. */
export function refusal(code: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setInt32(0, code, true);
  return bytes;
}

/** Return what tells a portcall client why it waits. */
export function notice(text: string): Uint8Array {
  return message(NOTICE, text);
}

/** Return a value that was never used before. */
export function newNonce(): string {
  return toHex(crypto.getRandomValues(new Uint8Array(16)));
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the bytes of hexadecimal digits; none where the text is something else. */
export function fromHex(text: string): Uint8Array {
  if (text.length % 2 || /[^0-9a-fA-F]/.test(text)) return new Uint8Array(0);
  return Uint8Array.from({ length: text.length / 2 }, (_, i) => Number.parseInt(text.slice(2 * i, 2 * i + 2), 16));
}

/** Return what proves that a side knows the token: HMAC-SHA256 over its role and all that was said before.
 * @throws AuthenticationError This page has no WebCrypto. */
export async function proof(token: string, role: Role, transcript: readonly Uint8Array[]): Promise<Uint8Array> {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) {
    throw new AuthenticationError("a token needs WebCrypto, which a page has only over https or from localhost", {
      reason: "no-webcrypto",
    });
  }
  const hash = { name: "HMAC", hash: "SHA-256" };
  const key = await subtle.importKey("raw", joined([encodeText(token)]), hash, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", key, joined([encodeText(`${role}\0`), ...transcript])));
}

export function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Compare in a time that does not depend on where the bytes differ. */
export function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; ++i) difference |= a[i]! ^ (b[i] ?? 0);
  return difference === 0;
}

/** Return the time that a client asks for its session, in seconds; 0 when it does not.
 * @throws RemoteProtocolError It is not a number of seconds. */
export function timeoutOf(hello: Greeting): number {
  const text = hello.options.get("seconds") || (hello.options.get("timeout") ?? "0");
  const seconds = /^\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text) ? Number(text) : Number.NaN;
  if (!(seconds >= 0 && seconds <= MOST_SECONDS)) {
    throw new RemoteProtocolError(`the option -timeout=${text.slice(0, 40)} is not a number of seconds`);
  }
  return seconds;
}

/** Return those of the features that a peer has, too. */
export function commonFeatures<F extends Feature>(peer: Greeting, ours: readonly F[]): F[] {
  const theirs = peer.options.get("features")?.split(",") ?? [];
  return ours.filter((name) => theirs.includes(name));
}

/** One message of a handshake. `text` is empty for a refusal. */
export interface HandshakeMessage {
  readonly code: number;
  readonly text: Uint8Array;
  /** All bytes of the message, for proofs. */
  readonly bytes: Uint8Array;
}

/** Reads the messages of a handshake in any split. What comes after them stays in `rest`. */
export class HandshakeReader {
  rest: Uint8Array = new Uint8Array(0);

  feed(data: Uint8Array): void {
    this.rest = this.rest.length ? joined([this.rest, data]) : data;
  }

  /** Return the next message, and undefined while it is not complete.
   * @throws RemoteProtocolError The peer does not speak this protocol. */
  next(): HandshakeMessage | undefined {
    if (this.rest.length < 4) return undefined;
    const view = new DataView(this.rest.buffer, this.rest.byteOffset, this.rest.length);
    const code = view.getInt32(0, true);
    if (code === MISMATCH || code === DUPLICATE) return this.#cut(code, 4, 4);
    if (code !== MAGIC && code !== NOTICE) {
      throw new RemoteProtocolError("the peer does not speak the RPC protocol (wrong magic number)");
    }
    if (this.rest.length < HEAD) return undefined;
    const size = view.getInt32(4, true);
    if (size < 1 || size > MAX_KEY_BYTES) throw new RemoteProtocolError(`the peer's key has a length of ${size}`);
    return this.rest.length < HEAD + size ? undefined : this.#cut(code, HEAD, HEAD + size);
  }

  /** Return that many bytes, and undefined while they are not there. */
  take(size: number): Uint8Array | undefined {
    return this.rest.length < size ? undefined : this.#cut(0, 0, size).text;
  }

  #cut(code: number, start: number, end: number): HandshakeMessage {
    const bytes = this.rest.slice(0, end);
    this.rest = this.rest.subarray(end);
    return { code, text: bytes.subarray(start), bytes };
  }
}

/** Read a key and its options.
 * @throws RemoteProtocolError Not UTF-8, or not of that role. */
export function parseGreeting(text: Uint8Array, role: Role): Greeting {
  const words = decodeLeniently(text).split(BLANK).filter(Boolean);
  const first = words[0] ?? "";
  if (!first.startsWith(`${role}:`) || first.includes("\ufffd")) {
    throw new RemoteProtocolError(`the peer is not a ${role}: it said '${printable(words.join(" ").slice(0, 80))}'`);
  }
  const options = new Map<string, string>();
  for (const word of words.slice(1)) {
    const [, name = "", value = ""] = /^-?([^=]*)=?(.*)$/s.exec(word) ?? [];
    options.set(name, value);
  }
  return { key: first.slice(role.length + 1), options };
}

/** Throw for a code that refuses a client. */
export function checkAccepted(code: number, key: string): void {
  if (code === MISMATCH) {
    const asked = key ? `does not have the key '${key}'` : "has a key, and none was given";
    throw new KeyMismatchError(`the server ${asked}`, { reason: "key-mismatch" });
  }
  if (code === DUPLICATE) {
    throw new KeyMismatchError(`another client waits for a server with the key '${key}' already`, {
      reason: "duplicate",
    });
  }
}

/** Return a peer's text without what a terminal would obey; lines and tabs stay. */
export function printable(text: string): string {
  const escapes =
    /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
  return text.replace(escapes, "");
}
