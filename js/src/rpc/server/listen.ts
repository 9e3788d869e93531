// SPDX-License-Identifier: Apache-2.0
// A server that listens, in Node.

import { checkCallback, checkFlag, checkText, isNode } from "../../check.js";
import { PortcallError } from "../../errors.js";
import { encodeText } from "../../text.js";
import { HandshakeStream } from "../transport/handshake_stream.js";
import { type Address, addressText, parseAddress, type Transport } from "../transport/transport.js";
import { MISMATCH, UNKNOWN } from "../wire/facts.js";
import {
  commonFeatures,
  EXTENSION_VERSION,
  type Greeting,
  greeting,
  newNonce,
  parseGreeting,
  refusal,
  sameBytes,
  timeoutOf,
} from "../wire/handshake.js";
import { CORE_FEATURES, type Ending } from "./core_endpoint.js";
import { exchangeProofs, type ServeOptions, type Service, serveSession, settingsOf, withCore } from "./serving.js";

export interface ListenOptions extends ServeOptions {
  /** Where to listen: `127.0.0.1:9090` unless given; port 0 takes a free one. `unix:/path` works, too. */
  address?: string | undefined;
  /** Listen at an address for other machines without a token: anybody there can use this server. */
  insecure?: boolean | undefined;
  /** Called when a session has opened, with the address of its client, and when it has ended. */
  onSession?: ((peer: string, ended?: Ending) => void) | undefined;
}

const HANDSHAKE_TIMEOUT = 10_000; // milliseconds
const MOST_CONNECTIONS = 256;
const MOST_ENDINGS = 1000; // that are kept for clients who ask

/** A server that listens. */
export class Server {
  /** Where it listens. */
  readonly address: string;
  readonly #stop: () => Promise<void>;

  /** @internal */
  constructor(address: string, stop: () => Promise<void>) {
    this.address = address;
    this.#stop = stop;
  }

  /** End all sessions, and listen no more. */
  close(): Promise<void> {
    return this.#stop();
  }
}

/** Serve functions of this process to clients of portcall and TVM. Every session shares this process: a function that never
 * returns stops all of them.
 * @throws PortcallError The address is taken, is for other machines and there is no token, or this is a page.
 * @throws ModuleLoadError The core is not there. */
export async function listen(options: ListenOptions): Promise<Server> {
  const settings = settingsOf(options, ["address", "insecure", "onSession"]);
  checkCallback(options.onSession, "onSession");
  const address = addressToListen(options.address ?? "127.0.0.1:9090");
  if (!settings.token && !checkFlag(options.insecure, "insecure") && !isLocal(address)) {
    throw new PortcallError(
      `${addressText(address)} is for other machines, and anybody there could use this server: give a token, ` +
        "set PORTCALL_TOKEN, or say insecure: true",
    );
  }
  if (!isNode()) throw new PortcallError("a page cannot listen: join() a proxy, through which clients reach it");
  const { openListener } = await import("../transport/tcp.js");
  const running = new Set<() => void>();
  const door = new Door(await withCore(settings));
  const listener = await openListener(address, MOST_CONNECTIONS, (transport) => {
    const { peer } = transport;
    let abort = () => transport.abort();
    const end = () => abort();
    running.add(end);
    const begun = (stop: () => void) => {
      abort = stop;
      options.onSession?.(peer);
    };
    door
      .serve(transport, begun)
      .then((ending) => ending && options.onSession?.(peer, ending))
      .catch(() => transport.abort()) // an error of one client ends its connection, and nothing else
      .finally(() => running.delete(end));
  });
  return new Server(addressText(listener.address), async () => {
    const closed = listener.close();
    for (const abort of running) abort();
    await closed;
  });
}

/** @internal Read an address, whose port may be 0.
 * @throws TypeError It is none to listen at. */
export function addressToListen(text: string): Exclude<Address, { kind: "websocket" }> {
  const anyPort = /^(.*):0$/.exec(checkText(text, "the address"));
  const address = parseAddress(anyPort ? `${anyPort[1]}:1` : text);
  if (address.kind === "websocket") throw new TypeError("this server listens at host:port or unix:/path; see join()");
  return anyPort && address.kind === "tcp" ? { ...address, port: 0 } : address;
}

/** @internal Tell whether only this machine can connect to an address. */
export function isLocal(address: Address): boolean {
  return address.kind !== "tcp" || /^(localhost|127\..*|::1)$/.test(address.host);
}

/** What a client asks with, later, why its session ended; no other client knows the secret. */
interface Credential {
  readonly id: string;
  readonly secret: string;
}

/** Lets clients in. */
class Door {
  readonly #service: Service;
  readonly #ended = new Map<string, { readonly secret: string; readonly how: Ending }>(); // by session
  #last = 0;

  constructor(service: Service) {
    this.#service = service;
  }

  /** Shake hands and serve; undefined for a client that was not let in. */
  async serve(transport: Transport, begun: (abort: () => void) => void): Promise<Ending | undefined> {
    const stream = new HandshakeStream(transport);
    const timer = setTimeout(() => transport.abort(), HANDSHAKE_TIMEOUT);
    let hello: Greeting;
    let session: Credential | undefined;
    try {
      const first = await stream.next(); // throws if the peer is not a client: it gets no answer
      if (!first) return undefined;
      try {
        hello = parseGreeting(first.text, "client");
        if (this.#tell(transport, hello)) return undefined;
        session = await this.#admit(transport, stream, hello, first.bytes);
      } catch {
        transport.send(refusal(MISMATCH));
        transport.close();
        return undefined;
      }
    } finally {
      clearTimeout(timer);
    }
    if (!session) {
      transport.abort();
      return undefined;
    }
    const features = commonFeatures(hello, CORE_FEATURES);
    const ending = await serveSession(transport, this.#service, hello, stream.rest, features, begun);
    this.#ended.set(session.id, { secret: session.secret, how: ending });
    if (this.#ended.size > MOST_ENDINGS) this.#ended.delete(this.#ended.keys().next().value!);
    return ending;
  }

  /** Answer a client that asks how its session ended. */
  #tell(transport: Transport, hello: Greeting): boolean {
    const question = hello.options.get("reason");
    if (question === undefined) return false;
    const [id = "", secret = ""] = question.split(".");
    const known = this.#ended.get(id);
    const ended = known && sameBytes(encodeText(known.secret), encodeText(secret)) ? known.how : UNKNOWN;
    transport.send(
      greeting("server", this.#service.key, [
        ["portcall", EXTENSION_VERSION],
        ["ended", ended],
      ]),
    );
    transport.close();
    return true;
  }

  /** Accept a client, after a proof where there is a token; undefined for a wrong proof.
   * @throws Error It is refused. */
  async #admit(
    transport: Transport,
    stream: HandshakeStream,
    hello: Greeting,
    bytes: Uint8Array,
  ): Promise<Credential | undefined> {
    const { key, token } = this.#service;
    timeoutOf(hello);
    if (hello.key !== key) throw new Error("the client asked for another key");
    const words: [string, string][] = [];
    if (hello.options.has("portcall")) words.push(["portcall", EXTENSION_VERSION]);
    if (token) {
      if (!words.length) throw new Error("a TVM client cannot prove that it knows the token");
      const reply = greeting("server", key, [...words, ["auth", "token"], ["nonce", newNonce()]]);
      transport.send(reply);
      const proven = await exchangeProofs(stream, token, [bytes, reply]);
      if (!proven) return undefined;
      words.push(proven);
    }
    this.#last += 1;
    const session = { id: String(this.#last), secret: newNonce() };
    if (words.length) words.push(["session", session.id], ["secret", session.secret]);
    const features = commonFeatures(hello, CORE_FEATURES);
    if (features.length) words.push(["features", features.join(",")]);
    transport.send(greeting("server", key, words));
    return session;
  }
}
