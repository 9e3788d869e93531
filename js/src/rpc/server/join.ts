// SPDX-License-Identifier: Apache-2.0
// A server that joins a proxy, in Node and in browsers: clients find it there under its key.

import { checkCallback, checkSignal } from "../../check.js";
import { RPCError } from "../../errors.js";
import { HandshakeStream } from "../transport/handshake_stream.js";
import { openTransport } from "../transport/open.js";
import { type Address, parseAddress, type Transport } from "../transport/transport.js";
import { MISMATCH } from "../wire/facts.js";
import {
  checkAccepted,
  commonFeatures,
  EXTENSION_VERSION,
  type Greeting,
  greeting,
  newNonce,
  parseGreeting,
  timeoutOf,
} from "../wire/handshake.js";
import { CORE_FEATURES, type Ending } from "./core_endpoint.js";
import { exchangeProofs, type ServeOptions, type Service, serveSession, settingsOf, withCore } from "./serving.js";

/** What a server at a proxy does. */
export type JoinState =
  | { readonly state: "connecting" | "waiting" }
  | { readonly state: "serving"; readonly client: string }
  /** Bytes of the session so far; told a few times a second while they change. */
  | { readonly state: "progress"; readonly received: number; readonly sent: number }
  | { readonly state: "ended"; readonly client: string; readonly ending: Ending }
  /** It tries again after that many seconds. */
  | { readonly state: "pausing"; readonly seconds: number; readonly error: Error };

export interface JoinOptions extends ServeOptions {
  /** Leaves the proxy, and ends the session. */
  signal?: AbortSignal | undefined;
  /** Called when what the server does changes. */
  onState?: ((state: JoinState) => void) | undefined;
}

const FIRST_PAUSE = 0.5; // seconds
const LONGEST_PAUSE = 30;
const AT_ONCE = 500; // milliseconds: a proxy that has no client refuses after seconds
const PROGRESS_PAUSE = 250; // milliseconds

/** Serve functions of this process through a proxy of portcall or TVM, one session after the other, until the signal.
 * Connections that fail are tried again after growing pauses.
 * @param address of the proxy: `ws://lab:9190/ws`, or `lab:9190` in Node.
 * @throws ModuleLoadError The core is not there. */
export async function join(address: string, options: JoinOptions): Promise<void> {
  const target = parseAddress(address);
  const settings = settingsOf(options, ["signal", "onState"]);
  checkCallback(options.onState, "onState");
  const signal = checkSignal(options.signal, "signal") ?? new AbortController().signal;
  const service = await withCore(settings);
  const tell = options.onState ?? (() => {});
  let pause = FIRST_PAUSE;
  while (!signal.aborted) {
    try {
      if (await serveOnce(target, service, signal, tell)) pause = FIRST_PAUSE;
    } catch (error) {
      if (signal.aborted) break;
      tell({ state: "pausing", seconds: pause, error: error as Error });
      await sleep(pause, signal);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }
}

/** Wait for a client and serve it; false when none came in the proxy's time. */
async function serveOnce(
  target: Address,
  service: Service,
  signal: AbortSignal,
  tell: (state: JoinState) => void,
): Promise<boolean> {
  tell({ state: "connecting" });
  const transport = await openTransport(target, signal);
  const abort = () => transport.abort();
  signal.addEventListener("abort", abort);
  try {
    signal.throwIfAborted();
    const ours = greeting("server", service.key, wordsFor(service));
    const stream = new HandshakeStream(transport);
    transport.send(ours);
    const begin = performance.now();
    tell({ state: "waiting" });
    const message = await stream.next();
    if (!message) throw new RPCError(`${transport.peer} closed the connection`, { peer: transport.peer });
    if (message.code === MISMATCH) {
      if (performance.now() - begin > AT_ONCE) return false;
      throw new RPCError(
        `${transport.peer} refused at once, as a server does: give the address of a proxy, such as portcall farm`,
        { peer: transport.peer, reason: "not-a-proxy" },
      );
    }
    checkAccepted(message.code, service.key);
    const hello = parseGreeting(message.text, "client");
    const features = commonFeatures(hello, CORE_FEATURES);
    if (service.token && !(await prove(transport, stream, service, [message.bytes, ours], features))) return true;
    tell({ state: "serving", client: hello.key });
    const counted = counting(transport, (received, sent) => tell({ state: "progress", received, sent }));
    const ending = await serveSession(counted.transport, service, readable(hello), stream.rest, features);
    counted.stop();
    tell({ state: "ended", client: hello.key, ending });
    return true;
  } finally {
    signal.removeEventListener("abort", abort);
    transport.abort();
  }
}

/** What the server says before it knows its client: a session uses those of its features that the client has, too. */
function wordsFor(service: Service): [string, string][] {
  const version: [string, string] = ["portcall", EXTENSION_VERSION];
  if (service.token) return [version, ["auth", "token"], ["nonce", newNonce()]];
  return [version, ["features", CORE_FEATURES.join(",")]];
}

/** A transport that tells how many bytes it has moved, a few times a second. */
function counting(
  transport: Transport,
  tell: (received: number, sent: number) => void,
): { transport: Transport; stop: () => void } {
  let [received, sent, timer] = [0, 0, undefined as ReturnType<typeof setTimeout> | undefined];
  const later = () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      tell(received, sent);
    }, PROGRESS_PAUSE);
  };
  const stop = () => {
    if (timer) tell(received, sent);
    clearTimeout(timer);
  };
  const counted: Transport = {
    peer: transport.peer,
    get waiting() {
      return transport.waiting;
    },
    send: (bytes) => {
      sent += bytes.length;
      later();
      transport.send(bytes);
    },
    drained: () => transport.drained(),
    close: () => transport.close(),
    abort: () => transport.abort(),
    receive: (receiver) =>
      transport.receive({
        data: (bytes) => {
          received += bytes.length;
          later();
          receiver.data(bytes);
        },
        closed: (error) => receiver.closed(error),
      }),
  };
  return { transport: counted, stop };
}

/** A client's greeting without a time that cannot be read: the proxy has let it in already. */
function readable(hello: Greeting): Greeting {
  try {
    timeoutOf(hello);
    return hello;
  } catch {
    return { ...hello, options: new Map() };
  }
}

/** Ask the client for its proof and show ours. The proxy carries both, and cannot make them. */
async function prove(
  transport: Transport,
  stream: HandshakeStream,
  service: Service,
  transcript: Uint8Array[],
  features: readonly string[],
): Promise<boolean> {
  const proven = await exchangeProofs(stream, service.token, transcript);
  const words: [string, string][] = [["portcall", EXTENSION_VERSION]];
  if (features.length) words.push(["features", features.join(",")]);
  if (proven) transport.send(greeting("server", service.key, [...words, proven]));
  return proven !== undefined;
}

function sleep(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", done);
  });
}
