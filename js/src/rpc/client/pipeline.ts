// SPDX-License-Identifier: Apache-2.0
// Requests and their answers over one connection. Requests leave in the order in which they are made, without waiting for
// answers, and answers come in the same order.

import {
  RemoteError,
  RemoteProtocolError,
  type RPCError,
  SessionBrokenError,
  SessionClosedError,
  SessionTimeoutError,
} from "../../errors.js";
import type { Transport } from "../transport/transport.js";
import { decodeLeniently, Reader, Writer } from "../wire/bytes.js";
import { CLIENT_HANDLES, Code } from "../wire/facts.js";
import { type FrameHandler, FrameReader, writeFrame, writePosted } from "../wire/frames.js";
import { printable } from "../wire/handshake.js";
import { readSequence } from "../wire/values.js";
import { remoteError, saysExpired } from "./remote_error.js";

interface Pending {
  readonly resolve: (value: any) => void;
  readonly reject: (error: Error) => void;
  /** Reads the answer; undefined where it is a copy. */
  readonly read: ((reader: Reader) => unknown) | undefined;
  /** Where the bytes of a copy are put. */
  readonly into: Uint8Array | undefined;
}

const MANY = 4096; // answered requests after which the list of them is cut

const none = (reader: Reader): null => {
  expectValues(reader, 1);
  return null;
};

/** Read the values of an answer.
 * @throws RemoteProtocolError There are fewer than asked for. */
export function expectValues(reader: Reader, count: number) {
  const values = readSequence(reader);
  reader.expectEnd();
  if (values.length < count) {
    throw new RemoteProtocolError(`an answer has ${values.length} values, fewer than ${count}`);
  }
  return values;
}

/** Takes what the server's code printed: text, mostly whole lines, and of which stream it is. */
export type OnOutput = (text: string, stream: "stdout" | "stderr") => void;

/** Raise an error of the peer with the stack of who waits for it: it was made when its answer came. */
export function raiseLocated(error: unknown): never {
  if (error instanceof RemoteError) Error.captureStackTrace?.(error, raiseLocated);
  throw error;
}

async function located<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    return raiseLocated(error);
  }
}

export interface PipelineOptions {
  /** Seconds that the peer may take for its next answer; 0 for no limit. */
  callTimeout: number;
  /** Asked once when the peer went away: why. */
  explain?: () => Promise<RPCError | undefined>;
  /** The extensions that the session uses (docs/wire.md, section 8). */
  features?: ReadonlySet<string>;
  onOutput?: OnOutput;
}

export class Pipeline implements FrameHandler {
  readonly #transport: Transport;
  readonly #options: PipelineOptions;
  readonly #frames = new FrameReader(this);
  #pending: (Pending | undefined)[] = []; // from #next on; what is before has been answered
  #next = 0;
  #output: Writer | undefined; // frames that leave at the end of this turn of the event loop
  #frees: ((writer: Writer) => void)[] = [];
  #handle = CLIENT_HANDLES; // for the next posted request
  #timer: ReturnType<typeof setTimeout> | undefined;
  #ended: Promise<RPCError> | undefined;

  constructor(transport: Transport, options: PipelineOptions) {
    this.#transport = transport;
    this.#options = options;
  }

  get peer(): string {
    return this.#transport.peer;
  }
  /** Whether the session uses an extension. */
  has(feature: string): boolean {
    return this.#options.features?.has(feature) ?? false;
  }
  get closed(): boolean {
    return this.#ended !== undefined;
  }

  /** Begin to take answers; `rest` came with the handshake. */
  start(rest: Uint8Array): void {
    this.#transport.receive({
      data: (bytes) => this.#feed(bytes),
      closed: (error) => {
        const why = error ? ` (${error.message})` : "";
        const text = `${this.peer} ended the session${why}`;
        this.#end(new SessionBrokenError(text, { peer: this.peer, reason: "lost" }), true);
      },
    });
    if (rest.length) this.#feed(rest);
  }

  #feed(bytes: Uint8Array): void {
    if (this.#ended) return;
    try {
      this.#frames.feed(bytes);
    } catch (error) {
      this.#end(this.#asProtocolError(error));
    }
  }

  #asProtocolError(error: unknown): RPCError {
    const text = error instanceof Error ? error.message : String(error);
    return new RemoteProtocolError(`${this.peer}: ${text}; the session is closed`, { peer: this.peer });
  }

  // ---- Requests ----

  /** Send a request and return its answer. The stack of an error is that of who waits for it.
   * @throws RemoteError The peer answers with an error. */
  request<T>(code: number, body: (writer: Writer) => void, read: (reader: Reader) => T): Promise<T> {
    return located(this.ask(code, body, read));
  }

  /** The same, with the stack of an error left to the caller: most requests are calls, whose functions do that. */
  ask<T>(code: number, body: (writer: Writer) => void, read: (reader: Reader) => T): Promise<T> {
    return this.#send(code, body, { read });
  }

  /** Send a request that is answered with nothing. `payload` follows its body, and must not change before the answer. */
  requestNone(code: number, body: (writer: Writer) => void, payload?: Uint8Array): Promise<null> {
    return located(this.#send(code, body, { read: none, payload }));
  }

  /** Send a request that is answered with bytes, which fill `into`. */
  async requestBytes(code: number, body: (writer: Writer) => void, into: Uint8Array): Promise<void> {
    await located(this.#send(code, body, { into }));
  }

  /** Post a request, and return a handle for what it gives. If it fails, all that uses the handle fails with its error. A
   * request that is answered has to follow soon, so that not too many are on their way. */
  post(code: number, body: (writer: Writer) => void): bigint {
    writePosted(this.#begin(), code, this.#handle, body);
    return this.#handle++;
  }

  /** Send a request that gives something back, in front of the next one. Its answer is ignored. */
  free(code: number, body: (writer: Writer) => void): void {
    if (this.#ended) return;
    this.#frees.push((writer) => {
      if (this.has("post")) return writePosted(writer, code, 0n, body);
      writeFrame(writer, code, body);
      this.#expect({ resolve: () => {}, reject: () => {}, read: none, into: undefined });
    });
  }

  #send<T>(
    code: number,
    body: (writer: Writer) => void,
    how: { read?: (reader: Reader) => T; into?: Uint8Array; payload?: Uint8Array | undefined },
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.#ended) return void this.#ended.then(reject);
      writeFrame(this.#begin(), code, body, how.payload?.length);
      this.#expect({ resolve, reject, read: how.read, into: how.into });
      if (!how.payload) return;
      this.#flush();
      this.#transport.send(how.payload);
    });
  }

  /** Where the next request is written: after the frees that wait for it. */
  #begin(): Writer {
    if (!this.#output) queueMicrotask(() => this.#flush());
    this.#output ??= new Writer();
    for (const write of this.#frees.splice(0)) write(this.#output);
    return this.#output;
  }

  #flush(): void {
    if (!this.#output) return;
    this.#transport.send(this.#output.bytes());
    this.#output = undefined;
  }

  #expect(pending: Pending): void {
    this.#pending.push(pending);
    if (this.#pending.length - this.#next === 1) this.#startTimer();
  }

  #startTimer(): void {
    clearTimeout(this.#timer);
    const limit = this.#options.callTimeout;
    if (!limit || this.#next === this.#pending.length) return;
    this.#timer = setTimeout(() => {
      const text = `${this.peer} did not answer within ${limit} s; the session is closed`;
      this.#end(new SessionTimeoutError(text, { peer: this.peer, reason: "no-answer" }));
    }, limit * 1000);
  }

  // ---- Answers ----

  place(code: number, size: number): Uint8Array | undefined {
    const into = this.#pending[this.#next]?.into;
    return code === Code.CopyAck && into?.length === size ? into : undefined;
  }

  frame(code: number, body: Uint8Array): void {
    if (this.#ended) return;
    const pending = this.#pending[this.#next];
    if (code === Code.Exception) return this.#exception(body, pending);
    if (code === Code.Output && this.#options.onOutput) return this.#printed(new Reader(body), this.#options.onOutput);
    if (!pending || code === Code.Shutdown) {
      const reason =
        code === Code.Shutdown ? "the server gave up the session" : `a message of code ${code} came unasked`;
      throw new RemoteProtocolError(reason);
    }
    if (code !== (pending.into ? Code.CopyAck : Code.Return)) {
      throw new RemoteProtocolError(`an answer has the code ${code}`);
    }
    if (pending.into && pending.into.length !== body.length) {
      throw new RemoteProtocolError(`a copy of ${pending.into.length} bytes was answered with ${body.length}`);
    }
    const value = pending.read?.(new Reader(body));
    this.#shift();
    pending.resolve(value);
  }

  #printed(reader: Reader, onOutput: OnOutput): void {
    const stream = reader.i32() === 2 ? "stderr" : "stdout";
    const dropped = reader.u64();
    const text = printable(decodeLeniently(reader.counted()));
    reader.expectEnd();
    try {
      if (dropped) onOutput(`[${dropped} lines are missing: they came faster than they were read]\n`, stream);
      onOutput(text, stream);
    } catch (error) {
      queueMicrotask(() => {
        throw error; // an error of the listener, not of the session
      });
    }
  }

  #exception(body: Uint8Array, pending: Pending | undefined): void {
    const [text, traceback] = expectValues(new Reader(body), 1);
    if (typeof text !== "string") throw new RemoteProtocolError("an error came without a text");
    const error = remoteError(text, this.peer, typeof traceback === "string" ? traceback : "");
    if (saysExpired(text)) return this.#end(error);
    if (!pending) throw new RemoteProtocolError(`an error came unasked: ${error.message}`);
    this.#shift();
    pending.reject(error);
  }

  #shift(): void {
    this.#pending[this.#next] = undefined; // what it holds may be large
    this.#next += 1;
    if (this.#next === this.#pending.length || this.#next === MANY) {
      this.#pending = this.#pending.slice(this.#next);
      this.#next = 0;
    }
    if (this.#options.callTimeout) this.#startTimer();
  }

  // ---- The end ----

  /** End the session: the peer is told, and requests without an answer fail. */
  close(): void {
    if (this.#ended) return;
    this.#output ??= new Writer();
    writeFrame(this.#output, Code.Shutdown, () => {});
    this.#flush();
    this.#transport.close();
    this.#end(new SessionClosedError(`the session with ${this.peer} is closed`, { peer: this.peer }));
  }

  #end(error: RPCError, ask = false): void {
    if (this.#ended) return;
    clearTimeout(this.#timer);
    if (!(error instanceof SessionClosedError)) this.#transport.abort();
    const explained = (ask && this.#options.explain?.()) || Promise.resolve(undefined);
    this.#ended = explained.catch(() => undefined).then((reason) => reason ?? error);
    const waiting = this.#pending.splice(0).slice(this.#next);
    this.#next = 0;
    this.#frees = [];
    this.#ended.then((reason) => {
      for (const pending of waiting) pending?.reject(reason);
    });
  }
}
