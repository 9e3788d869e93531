// SPDX-License-Identifier: Apache-2.0
// TCP and Unix sockets, in Node.

import { createConnection, type Socket } from "node:net";
import { ConnectError } from "../../errors.js";
import { type Address, addressText, Inbox, type Receiver, type Transport } from "./transport.js";

const KEEP_ALIVE = 20_000; // milliseconds of silence after which a dead peer is looked for

/** A connection over a socket that is open. */
export class SocketTransport implements Transport {
  readonly peer: string;
  readonly #socket: Socket;
  readonly #inbox = new Inbox();

  constructor(socket: Socket, peer: string) {
    this.peer = peer;
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE);
    let failure: Error | undefined;
    socket.on("data", (data: Buffer) => {
      this.#inbox.data(new Uint8Array(data.buffer, data.byteOffset, data.length));
    });
    socket.on("error", (error) => {
      failure = error;
    });
    socket.on("end", () => socket.end());
    socket.on("close", () => this.#inbox.closed(failure));
  }

  get waiting(): number {
    return this.#socket.writableLength;
  }
  send(bytes: Uint8Array): void {
    if (this.#socket.writable) this.#socket.write(bytes);
  }
  drained(): Promise<void> {
    if (!this.#socket.writableNeedDrain) return Promise.resolve();
    return new Promise((resolve) => {
      this.#socket.once("drain", resolve);
      this.#socket.once("close", () => resolve());
    });
  }
  close(): void {
    this.#socket.end(() => this.#socket.destroy());
  }
  abort(): void {
    this.#socket.destroy();
  }
  receive(receiver: Receiver): void {
    this.#inbox.receive(receiver);
  }
}

/** Connect to a server.
 * @throws ConnectError Nobody listens there, or the host is not known. */
export async function openSocket(
  address: Exclude<Address, { kind: "websocket" }>,
  signal: AbortSignal,
): Promise<Transport> {
  const peer = addressText(address);
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const socket = createConnection(
      address.kind === "unix" ? { path: address.path } : { host: address.host, port: address.port },
    );
    const abandon = () => {
      socket.destroy();
      reject(signal.reason);
    };
    const fail = (error: NodeJS.ErrnoException) => {
      signal.removeEventListener("abort", abandon);
      reject(asConnectError(error, address, peer));
    };
    signal.addEventListener("abort", abandon, { once: true });
    socket.once("error", fail);
    socket.once("connect", () => {
      signal.removeEventListener("abort", abandon);
      socket.off("error", fail);
      resolve(new SocketTransport(socket, peer));
    });
  });
}

function asConnectError(error: NodeJS.ErrnoException, address: Address, peer: string): ConnectError {
  if (error.code === "ENOTFOUND" || error.code === "EAI_AGAIN") {
    return new ConnectError(`cannot connect to ${peer}: the host name is not known`, { peer, reason: "unknown-host" });
  }
  const serve = address.kind === "tcp" ? `--port ${address.port}` : `--unix ${peer.slice("unix:".length)}`;
  const why = error.code === "ECONNREFUSED" || error.code === "ENOENT" ? "nobody listens there" : error.message;
  return new ConnectError(`cannot connect to ${peer}: ${why}; start a server with: portcall serve ${serve}`, {
    peer,
    reason: "refused",
  });
}
