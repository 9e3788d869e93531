// SPDX-License-Identifier: Apache-2.0
// What moves the bytes of a connection, and addresses.

import { checkText } from "../../check.js";

/** Takes what a connection brings. */
export interface Receiver {
  data(bytes: Uint8Array): void;
  /** The connection is over, by either side. Called once. */
  closed(error?: Error): void;
}

/** A connection. */
export interface Transport {
  /** The other side, for messages. */
  readonly peer: string;
  /** Bytes that were given to `send` and have not left yet. */
  readonly waiting: number;
  /** Send bytes, which must not change before they have left. */
  send(bytes: Uint8Array): void;
  /** Wait until most of what was sent has left. */
  drained(): Promise<void>;
  /** Close once all that was sent has left. */
  close(): void;
  /** Close at once. */
  abort(): void;
  /** Give what comes to a receiver, from now on. */
  receive(receiver: Receiver): void;
}

/** Keeps what comes before a receiver is there, and tells the end once. */
export class Inbox {
  #receiver: Receiver | undefined;
  #early: Uint8Array[] = [];
  #closed: { error?: Error } | undefined;

  data(bytes: Uint8Array): void {
    if (this.#closed) return;
    if (this.#receiver) this.#receiver.data(bytes);
    else this.#early.push(bytes);
  }

  closed(error?: Error): void {
    if (this.#closed) return;
    this.#closed = error ? { error } : {};
    this.#receiver?.closed(error);
  }

  receive(receiver: Receiver): void {
    this.#receiver = receiver;
    for (const bytes of this.#early.splice(0)) receiver.data(bytes);
    if (this.#closed) receiver.closed(this.#closed.error);
  }
}

/** How to check a server, and how to show who we are; all are files (PEM) for Node. */
export interface TLSOptions {
  /** Certificates to trust; those that Node comes with unless given. */
  ca?: string | undefined;
  /** Our own certificate, where the server asks for one, and its key, where that is not in the same file. */
  certificate?: string | undefined;
  key?: string | undefined;
  /** The name to expect in the server's certificate; the host's unless given. */
  serverName?: string | undefined;
}

export type Address =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number; readonly tls?: TLSOptions }
  | { readonly kind: "unix"; readonly path: string }
  | { readonly kind: "websocket"; readonly url: string };

const DEFAULT_PORT = 9090;

/** Read an address: `host:port`, `[v6]:port`, `unix:/path`, `ws://…` or `wss://…`; the port is 9090 if it is left out.
 * @throws TypeError The text has none of these forms. */
export function parseAddress(text: string): Address {
  if (/^wss?:\/\//.test(checkText(text, "the address"))) return { kind: "websocket", url: text };
  if (text.startsWith("unix:") && text.length > 5) return { kind: "unix", path: text.slice(5) };
  const match = /^(?:tcp:\/\/)?(?:\[([0-9a-fA-F:.%\w]+)\]|([^:[\]/\s]+))(?::(\d+))?$/.exec(text);
  if (!match) {
    throw new TypeError(`invalid address '${text}' (must be host:port, [v6]:port, unix:/path, ws://… or wss://…)`);
  }
  const port = match[3] === undefined ? DEFAULT_PORT : Number(match[3]);
  if (port < 1 || port > 65535) throw new TypeError(`invalid port ${port} in the address '${text}' (must be 1-65535)`);
  return { kind: "tcp", host: match[1] ?? match[2]!, port };
}

/** Return an address to which connections speak TLS.
 * @throws TypeError It is that of a WebSocket, or of this machine. */
export function withTls(address: Address, tls: boolean | TLSOptions): Address {
  if (!tls) return address;
  if (address.kind === "tcp") return { ...address, tls: tls === true ? {} : tls };
  const why = address.kind === "unix" ? "has no TLS" : "begins with wss:// for TLS";
  throw new TypeError(`the address '${addressText(address)}' ${why}; leave out tls`);
}

export function addressText(address: Address): string {
  if (address.kind === "websocket") return address.url;
  if (address.kind === "unix") return `unix:${address.path}`;
  return address.host.includes(":") ? `[${address.host}]:${address.port}` : `${address.host}:${address.port}`;
}
