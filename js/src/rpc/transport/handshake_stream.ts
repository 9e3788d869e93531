// SPDX-License-Identifier: Apache-2.0
// The messages of a handshake, as a connection brings them.

import { type HandshakeMessage, HandshakeReader } from "../wire/handshake.js";
import type { Transport } from "./transport.js";

/** Reads the messages of a handshake from a transport. What comes after them is kept in `rest`, until the transport gets
 * another receiver. */
export class HandshakeStream {
  readonly #reader = new HandshakeReader();
  #wake: (() => void) | undefined;
  #closed = false;

  constructor(transport: Transport) {
    transport.receive({
      data: (bytes) => {
        this.#reader.feed(bytes);
        this.#wake?.();
      },
      closed: () => {
        this.#closed = true;
        this.#wake?.();
      },
    });
  }

  /** Return the next message; undefined when the peer closes instead.
   * @throws RemoteProtocolError The peer does not speak this protocol. */
  next(): Promise<HandshakeMessage | undefined> {
    return this.#until(() => this.#reader.next());
  }

  /** Return that many bytes; undefined when the peer closes instead. */
  take(size: number): Promise<Uint8Array | undefined> {
    return this.#until(() => this.#reader.take(size));
  }

  async #until<T>(read: () => T | undefined): Promise<T | undefined> {
    for (;;) {
      const found = read();
      if (found || this.#closed) return found;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  get rest(): Uint8Array {
    return this.#reader.rest;
  }
}
