// SPDX-License-Identifier: Apache-2.0
// WebSocket, in browsers and in Node: binary messages, whose boundaries mean nothing.

import { ConnectError } from "../../errors.js";
import { Inbox, type Receiver, type Transport } from "./transport.js";

const MOST = 1 << 20; // bytes of one message: proxies refuse larger ones, of 10 MiB and more

const LOOK_AGAIN = 5; // milliseconds: WebSockets do not tell when bytes have left

class WebSocketTransport implements Transport {
  readonly peer: string;
  readonly #socket: WebSocket;
  readonly #inbox: Inbox;

  constructor(socket: WebSocket, inbox: Inbox, peer: string) {
    this.peer = peer;
    this.#socket = socket;
    this.#inbox = inbox;
  }

  get waiting(): number {
    return this.#socket.bufferedAmount;
  }
  send(bytes: Uint8Array): void {
    if (this.#socket.readyState !== 1) return;
    for (let at = 0; at < bytes.length; at += MOST) {
      this.#socket.send(bytes.subarray(at, at + MOST) as Uint8Array<ArrayBuffer>);
    }
  }
  async drained(): Promise<void> {
    while (this.#socket.readyState === 1 && this.#socket.bufferedAmount > MOST) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
    }
  }
  close(): void {
    this.#socket.close();
  }
  abort(): void {
    this.#socket.close();
    this.#inbox.closed();
  }
  receive(receiver: Receiver): void {
    this.#inbox.receive(receiver);
  }
}

/** Return the class of WebSockets: that of the browser or of Node, or of the package `ws` in Node 20.
 * @throws ConnectError There is none. */
async function webSocketClass(): Promise<typeof WebSocket> {
  if (globalThis.WebSocket) return globalThis.WebSocket;
  try {
    const name = "ws"; // not known to the compiler: the package is optional
    return (await import(name)).WebSocket;
  } catch {
    throw new ConnectError("this version of Node has no WebSocket: npm install ws, or use Node 22 or later", {
      reason: "no-websocket",
    });
  }
}

/** Connect to a WebSocket server.
 * @throws ConnectError Nobody listens there, or it refuses this page. */
export async function openWebSocket(url: string, signal: AbortSignal): Promise<Transport> {
  const Class = await webSocketClass();
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const socket = new Class(url);
    const inbox = new Inbox();
    socket.binaryType = "arraybuffer";
    const abandon = () => {
      socket.close();
      reject(signal.reason);
    };
    signal.addEventListener("abort", abandon, { once: true });
    socket.addEventListener("open", () => {
      signal.removeEventListener("abort", abandon);
      resolve(new WebSocketTransport(socket, inbox, url));
    });
    socket.addEventListener("message", (event) => {
      if (event.data instanceof ArrayBuffer) inbox.data(new Uint8Array(event.data));
      else inbox.closed(new Error("the peer sent a text message instead of a binary one"));
    });
    // Browsers do not tell why, so that pages cannot look into networks. Does nothing once the promise is resolved.
    const fail = () => {
      signal.removeEventListener("abort", abandon);
      const text = `cannot connect to ${url}: nobody listens there, or no proxy does, or it refuses this page`;
      const remedy = "a server of portcall is not reached by ws://, but at host:port from Node, or through a proxy";
      reject(new ConnectError(`${text}; ${remedy}`, { peer: url, reason: "refused" }));
    };
    socket.addEventListener("error", fail);
    socket.addEventListener("close", () => {
      fail();
      inbox.closed();
    });
  });
}
