// SPDX-License-Identifier: Apache-2.0
// A session served by the core's own endpoint (core/web/server.cc): bytes of a client in, bytes for it out. No I/O here.

import type { CoreMemory } from "./memory.js";
import type { WasmRuntime } from "./runtime.js";

/** Why the endpoint stopped: all that came is served; the output is full; the session is over; a promise is waited for. */
export type Stop = "bytes" | "full" | "closed" | "promise";

const STOPS: readonly Stop[] = ["bytes", "full", "closed", "promise"]; // core/web/web.h
const MOST_FRAME = 2 ** 30; // bytes of a message

export class CoreServer {
  readonly #runtime: WasmRuntime;
  readonly #memory: CoreMemory;
  readonly #place: number; // of a TVMFFIByteArray that the core fills
  readonly #waitingServe: ((server: number) => Promise<number>) | undefined;
  #server = 0;
  #promise: Promise<unknown> | undefined;
  #settled: (() => unknown) | undefined;

  /** Offer the functions of a runtime whose names match one of the patterns, in which `*` is any text. The runtime is the
   * session's own. `features` are the extensions that both sides have. */
  constructor(runtime: WasmRuntime, patterns: readonly string[], features: readonly string[]) {
    this.#runtime = runtime;
    this.#memory = runtime.memory;
    this.#waitingServe = runtime.waitingExport("PortcallWebServerServe");
    this.#place = this.#memory.allocate(8);
    runtime.registerFunc("portcall.web.IsPromise", (value) => {
      this.#promise = value instanceof Promise ? value : undefined;
      return this.#promise !== undefined;
    });
    runtime.registerFunc("portcall.web.Settled", () => this.#settled?.());
    const texts = [...patterns, "portcall.web.*", features.join(",")].map((text) => this.#memory.byteArray(text));
    const list = this.#memory.allocate(8 * texts.length);
    const { words } = this.#memory;
    for (const [i, text] of texts.entries()) words.copyWithin((list >> 2) + 2 * i, text >> 2, (text >> 2) + 2);
    const create = this.#memory.exports.PortcallWebServerCreate;
    const status = create(list, texts.length - 1, texts.at(-1), BigInt(MOST_FRAME), this.#place);
    for (const address of [...texts, list]) this.#memory.free(address);
    runtime.check(status);
    this.#server = this.#memory.words[this.#place >> 2]!;
  }

  /** Take bytes of the client, as many as fit, and return how many. */
  fill(bytes: Uint8Array): number {
    const { exports } = this.#memory;
    this.#runtime.check(exports.PortcallWebServerSpace(this.#server, this.#place));
    const [start, room] = this.#shown();
    const size = Math.min(room, bytes.length);
    this.#memory.bytes.set(bytes.subarray(0, size), start);
    this.#runtime.check(exports.PortcallWebServerFilled(this.#server, size));
    return size;
  }

  /** Serve what has come, until something stops that. Promises inside of calls are waited for, where the engine can suspend
   * them; elsewhere those alone that the called functions return. */
  async serve(): Promise<Stop> {
    try {
      const serve = this.#waitingServe ?? this.#memory.exports.PortcallWebServerServe;
      const stop: number = await serve(this.#server);
      this.#runtime.check(Math.min(stop, 0));
      return STOPS[stop]!;
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError || error instanceof RangeError)) throw error;
      this.#runtime.forgetFrames(); // of a kernel that trapped, or called itself without end
      this.fail("RuntimeError", error.message);
      return "full";
    }
  }

  /** Wait for the promise that `serve` stopped for, and answer with its value or error. */
  async settle(): Promise<void> {
    const promise = this.#promise;
    this.#promise = undefined;
    try {
      const value = await promise;
      this.#settled = () => value;
    } catch (thrown) {
      this.#settled = () => {
        throw thrown;
      };
    }
    this.#runtime.check(this.#memory.exports.PortcallWebServerSettled(this.#server));
    this.#settled = undefined;
  }

  /** Answer the request that is served with an error. */
  fail(kind: string, message: string): void {
    const texts = [kind, message.toWellFormed()].map((text) => this.#memory.byteArray(text));
    const status: number = this.#memory.exports.PortcallWebServerFailed(this.#server, ...texts);
    for (const text of texts) this.#memory.free(text);
    this.#runtime.check(status);
  }

  /** Give all bytes for the client to `send`. */
  flush(send: (bytes: Uint8Array) => void): void {
    for (;;) {
      this.#runtime.check(this.#memory.exports.PortcallWebServerOutput(this.#server, this.#place));
      const [start, size] = this.#shown();
      if (!size) return;
      send(this.#memory.bytes.slice(start, start + size));
      this.#runtime.check(this.#memory.exports.PortcallWebServerSent(this.#server, size));
    }
  }

  /** The client is gone. Return whether that was between two messages. */
  lost(): boolean {
    return this.#memory.exports.PortcallWebServerLost(this.#server) === 1;
  }

  #shown(): [number, number] {
    const { words } = this.#memory;
    return [words[this.#place >> 2]! >>> 0, words[(this.#place >> 2) + 1]! >>> 0];
  }
}
