// SPDX-License-Identifier: Apache-2.0
// How a session that is served ends, whoever serves it.

import type { Transport } from "../transport/transport.js";

/** How a session ended: the client closed it or the server did, its time was over, the connection was lost, or the client sent
 * more than is kept while one of its calls runs. */
export type Ending = "closed" | "expired" | "lost" | "abandoned";

export const MOST_UNREAD = 64 << 20; // bytes of requests that wait behind one that takes long
export const MOST_UNSENT = 16 << 20; // bytes of answers that the client has not taken, after which no request is begun

export abstract class ServedSession {
  protected readonly transport: Transport;
  #resolve!: (ending: Ending) => void;
  #over = false;
  /** How the session ended, once it has. */
  readonly ended = new Promise<Ending>((resolve) => {
    this.#resolve = resolve;
  });

  constructor(transport: Transport) {
    this.transport = transport;
  }

  /** Serve until the session ends; `rest` came with the handshake. */
  abstract start(rest: Uint8Array): void;

  /** End the session, since its time is over, and notify the client. */
  expire(seconds: number): void {
    if (this.#over) return;
    this.notify("RPCSessionTimeoutError", `the session's time of ${seconds} s is over`);
    this.transport.close();
    this.end("expired");
  }

  /** End the session without a word. */
  abort(ending: Ending = "closed"): void {
    this.transport.abort();
    this.end(ending);
  }

  protected get over(): boolean {
    return this.#over;
  }
  protected end(ending: Ending): void {
    if (this.#over) return;
    this.#over = true;
    this.release();
    this.#resolve(ending);
  }
  /** Send an error as the answer to the request that is served. */
  protected abstract notify(kind: string, message: string): void;
  /** Give up what the session has. */
  protected abstract release(): void;
}
