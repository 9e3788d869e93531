// SPDX-License-Identifier: Apache-2.0
// TCP, with TLS or without, and Unix sockets, in Node.

import { readFile } from "node:fs/promises";
import { type AddressInfo, createConnection, createServer, isIP, type Socket } from "node:net";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { AuthenticationError, ConnectError, PortcallError } from "../../errors.js";
import { type Address, addressText, Inbox, type Receiver, type TLSOptions, type Transport } from "./transport.js";

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
  const secure = address.kind === "tcp" && address.tls ? await secureOptions(address.tls) : undefined;
  signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const socket = begin(address, secure);
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
    socket.once(secure ? "secureConnect" : "connect", () => {
      signal.removeEventListener("abort", abandon);
      socket.off("error", fail);
      resolve(new SocketTransport(socket, peer));
    });
  });
}

/** Listen at an address, and give connections to `serve`. Return where it listens, and what ends that.
 * @throws Error The address is taken, or is not this machine's. */
export async function openListener(
  address: Exclude<Address, { kind: "websocket" }>,
  mostConnections: number,
  serve: (transport: Transport) => void,
): Promise<{ address: Address; close(): Promise<void> }> {
  const listener = createServer((socket) => {
    const peer = socket.remoteAddress ? `${socket.remoteAddress}:${socket.remotePort}` : "a local process";
    serve(new SocketTransport(socket, peer));
  });
  listener.maxConnections = mostConnections;
  await new Promise<void>((resolve, reject) => {
    listener.once("error", (error: NodeJS.ErrnoException) => reject(asListenError(error, address)));
    const where = address.kind === "unix" ? { path: address.path } : { host: address.host, port: address.port };
    listener.listen(where, resolve);
  });
  const bound = address.kind === "tcp" ? { ...address, port: (listener.address() as AddressInfo).port } : address;
  return { address: bound, close: () => new Promise((resolve) => listener.close(() => resolve())) };
}

function asListenError(error: NodeJS.ErrnoException, address: Address): PortcallError {
  const reasons: Record<string, string> = {
    EADDRINUSE: "something listens there already; end that, or take another port (0 takes a free one)",
    EADDRNOTAVAIL: "this machine does not have that address",
    EACCES: "this user may not listen there",
    ENOTFOUND: "the host name is not known",
  };
  const why = reasons[error.code ?? ""] ?? error.message;
  return new PortcallError(`cannot listen at ${addressText(address)}: ${why}`, { cause: error });
}

function begin(address: Exclude<Address, { kind: "websocket" }>, secure: ConnectionOptions | undefined): Socket {
  if (address.kind === "unix") return createConnection({ path: address.path });
  const place = { host: address.host, port: address.port };
  if (!secure) return createConnection(place);
  const name = isIP(address.host) ? {} : { servername: address.host };
  return connectTls({ ...place, ...name, ...secure });
}

async function secureOptions(tls: TLSOptions): Promise<ConnectionOptions> {
  const files = { ca: tls.ca, cert: tls.certificate, key: tls.key ?? tls.certificate };
  const options: ConnectionOptions = { minVersion: "TLSv1.2" };
  for (const [name, path] of Object.entries(files)) {
    if (path) options[name as "ca" | "cert" | "key"] = await readFile(path);
  }
  if (tls.serverName) options.servername = tls.serverName;
  return options;
}

function asConnectError(error: NodeJS.ErrnoException, address: Address, peer: string): ConnectError {
  if (error.code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    const text = `the certificate of ${peer} has another name: ${error.message}; tls: { serverName } has the name to expect`;
    return new AuthenticationError(text, { peer, reason: "certificate-name" });
  }
  if (/CERT|SIGNATURE/.test(error.code ?? "")) {
    const text = `the certificate of ${peer} is not to be trusted: ${error.message}; tls: { ca } is the file of its authority`;
    return new AuthenticationError(text, { peer, reason: "certificate" });
  }
  if (address.kind === "tcp" && address.tls && !/^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN)$/.test(error.code ?? "")) {
    return new ConnectError(`TLS with ${peer} failed: ${error.message}; does it speak TLS?`, {
      peer,
      reason: "no-tls",
    });
  }
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
