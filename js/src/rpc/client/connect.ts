// SPDX-License-Identifier: Apache-2.0
// Opening a session: connect, shake hands, wait in the server's queue, prove who we are; and ask why a session ended.

import { checkArray, checkCallback, checkOptions, checkSignal } from "../../check.js";
import {
  AuthenticationError,
  ConnectError,
  RemoteCrashError,
  RemoteError,
  RPCError,
  SessionBrokenError,
  SessionTimeoutError,
  VersionMismatchError,
} from "../../errors.js";
import { encodeText } from "../../text.js";
import { HandshakeStream } from "../transport/handshake_stream.js";
import { openTransport } from "../transport/open.js";
import {
  type Address,
  addressText,
  parseAddress,
  type TLSOptions,
  type Transport,
  withTls,
} from "../transport/transport.js";
import { decodeLeniently } from "../wire/bytes.js";
import { Code, ENDINGS, type Feature, NOT_OPENED, NOTICE, PROTOCOL_VERSION, UNKNOWN } from "../wire/facts.js";
import {
  checkAccepted,
  checkKey,
  checkSeconds,
  commonFeatures,
  EXTENSION_VERSION,
  fromHex,
  type Greeting,
  greeting,
  newNonce,
  parseGreeting,
  printable,
  proof,
  sameBytes,
  tokenOf,
} from "../wire/handshake.js";
import { type WireValue, writeSequence } from "../wire/values.js";
import { expectValues, type OnOutput, Pipeline } from "./pipeline.js";
import { askCopyLimit, Session } from "./session.js";

export interface ConnectOptions {
  /** The key that the server was started with. */
  key?: string | undefined;
  /** The server's token; in Node that of the environment variable PORTCALL_TOKEN unless given. With one, a server that
   * does not prove that it knows it is refused. */
  token?: string | undefined;
  /** Speak TLS with `host:port`, in Node; a `wss://` address says so itself. */
  tls?: boolean | TLSOptions | undefined;
  /** Seconds until the session must be open, the time in the server's queue included; 10 unless given, 0 for no limit. */
  timeout?: number | undefined;
  /** Seconds that the session may last, on the server's clock; 0 for the server's own limit. */
  sessionTimeout?: number | undefined;
  /** Seconds that the server may take for an answer; 0 for no limit. */
  callTimeout?: number | undefined;
  /** The name of a session constructor of the server, and its arguments: `["rpc.Connect", host, port, key, false]` goes
   * one hop further. */
  constructorArgs?: readonly WireValue[] | undefined;
  /** Takes what the server's code prints, where the server sends it. */
  onOutput?: OnOutput | undefined;
  /** Gives up opening the session. */
  signal?: AbortSignal | undefined;
  /** Called with what is waited for, such as the server's words on its queue. */
  onWait?: ((what: string) => void) | undefined;
}

const OPTIONS = [
  ...(["key", "token", "tls", "timeout", "sessionTimeout", "callTimeout"] as const),
  ...(["constructorArgs", "onOutput", "signal", "onWait"] as const),
];

/** The extensions that this client has (docs/wire.md, section 8). */
const FEATURES: readonly Feature[] = ["pipeline", "post", "traceback", "values"];

/** What a portcall server gives to ask later why a session ended. */
interface ReasonKey {
  readonly id: string;
  readonly secret: string;
}

/** The time that opening a session may take, and what it waits for. */
class Deadline {
  waitingFor = "the connection";
  readonly signal: AbortSignal;
  readonly #controller = new AbortController();
  readonly #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #onWait: ConnectOptions["onWait"];

  constructor(peer: string, seconds: number, options: Pick<ConnectOptions, "signal" | "onWait">) {
    this.signal = this.#controller.signal;
    this.#onWait = options.onWait;
    const late = () => {
      const text = `${peer}: no session within ${seconds} s; waited for: ${this.waitingFor}`;
      this.#controller.abort(new SessionTimeoutError(text, { peer, reason: "no-session" }));
    };
    if (seconds) this.#timer = setTimeout(late, seconds * 1000);
    const given = options.signal;
    if (given?.aborted) this.#controller.abort(given.reason);
    else given?.addEventListener("abort", () => this.#controller.abort(given.reason), { signal: this.signal });
  }

  waitFor(what: string): void {
    this.waitingFor = what;
    this.#onWait?.(what);
  }

  done(): void {
    clearTimeout(this.#timer);
    if (!this.signal.aborted) this.#controller.abort(); // removes the listener
  }
}

/** Open a session with a server of portcall or of TVM.
 *
 * @param address `board.local:9090`, `[::1]:9090`, `unix:/run/portcall`, `ws://lab:9190/ws` or `wss://…`; browsers know
 *   the last two.
 * @throws ConnectError Nobody listens there.
 * @throws KeyMismatchError, AuthenticationError, VersionMismatchError The server refused, or is not to be trusted.
 * @throws SessionTimeoutError No session in time. */
export async function connect(address: string, options: ConnectOptions = {}): Promise<Session> {
  checkOptions(options, OPTIONS);
  const target = withTls(parseAddress(address), options.tls ?? false);
  const peer = addressText(target);
  const key = checkKey(options.key ?? "");
  const timeout = checkSeconds(options.timeout ?? 10, "timeout");
  const callTimeout = checkSeconds(options.callTimeout ?? 0, "callTimeout");
  const ours: Feature[] = [...FEATURES, ...(options.onOutput ? (["output"] as const) : [])];
  const words = new Map([
    ["portcall", EXTENSION_VERSION],
    ["features", ours.join(",")],
    ["nonce", newNonce()],
  ]);
  const sessionTimeout = checkSeconds(options.sessionTimeout ?? 0, "sessionTimeout");
  const whole = Math.ceil(sessionTimeout);
  if (whole !== sessionTimeout) words.set("seconds", String(sessionTimeout));
  if (whole) words.set("timeout", String(whole)); // digits alone, and last: some servers of TVM read no other form
  const token = tokenOf(options.token);
  const constructorArgs = checkArray(options.constructorArgs ?? [], "constructorArgs");
  checkSignal(options.signal, "signal");
  checkCallback(options.onWait, "onWait");
  checkCallback(options.onOutput, "onOutput");

  const deadline = new Deadline(peer, timeout, options);
  try {
    deadline.waitFor("the connection");
    const transport = await openTransport(target, deadline.signal);
    const abort = () => transport.abort();
    deadline.signal.addEventListener("abort", abort);
    try {
      deadline.signal.throwIfAborted();
      const hello = greeting("client", key, words);
      const { reply, rest } = await shakeHands(transport, hello, key, token, deadline);
      const reasonKey = reasonKeyOf(reply);
      const explain = reasonKey ? { explain: () => whyEnded(target, reasonKey) } : {};
      const features = new Set(commonFeatures(reply, ours));
      const output = options.onOutput ? { onOutput: options.onOutput } : {};
      const pipeline = new Pipeline(transport, { callTimeout, features, ...output, ...explain });
      deadline.waitFor("the session to open");
      return await openSession(pipeline, rest, reasonKey ? "portcall" : "TVM", constructorArgs);
    } catch (error) {
      transport.abort();
      throw deadline.signal.aborted ? deadline.signal.reason : error;
    } finally {
      deadline.signal.removeEventListener("abort", abort);
    }
  } finally {
    deadline.done();
  }
}

/** Open a session over a connection whose handshake is done; `rest` came after it. */
export async function openSession(
  pipeline: Pipeline,
  rest: Uint8Array,
  peerKind: Session["peerKind"],
  constructorArgs: readonly WireValue[] = [],
): Promise<Session> {
  pipeline.start(rest);
  const opened = initServer(pipeline, constructorArgs);
  const copyLimit = askCopyLimit(pipeline);
  copyLimit.catch(() => {}); // an error of InitServer says more
  await opened;
  return new Session(pipeline, peerKind, await copyLimit);
}

function reasonKeyOf(reply: Greeting): ReasonKey | undefined {
  const id = reply.options.get("session");
  return id === undefined ? undefined : { id, secret: reply.options.get("secret") ?? "" };
}

async function initServer(pipeline: Pipeline, args: readonly WireValue[]): Promise<void> {
  try {
    await pipeline.request(
      Code.InitServer,
      (writer) => {
        writer.counted(encodeText(PROTOCOL_VERSION));
        writeSequence(writer, args, "init");
      },
      (reader) => expectValues(reader, 1),
    );
  } catch (error) {
    pipeline.close();
    if (error instanceof RemoteError && error.kind === "VersionMismatchError") {
      throw new VersionMismatchError(`${pipeline.peer}: ${error.remoteMessage}`, { peer: pipeline.peer });
    }
    throw error;
  }
}

// ---- The handshake -------------------------------------------------------------------------------------------------

async function shakeHands(
  transport: Transport,
  hello: Uint8Array,
  key: string,
  token: string,
  deadline: Deadline,
): Promise<{ reply: Greeting; rest: Uint8Array }> {
  const { peer } = transport;
  const handshake = new HandshakeStream(transport);
  let queued = false;
  const nextReply = async () => {
    for (;;) {
      const message = await handshake.next();
      if (message?.code !== NOTICE) return message;
      queued = true;
      deadline.waitFor(printable(decodeLeniently(message.text)));
    }
  };
  const closed = () => {
    const why = queued ? `, while we waited for: ${deadline.waitingFor}` : "; is it an RPC server?";
    const reason = deadline.waitingFor.startsWith(NOT_OPENED) ? "not-opened" : "closed";
    return new ConnectError(`${peer} closed the connection in the handshake${why}`, { peer, reason });
  };
  try {
    deadline.waitFor("the server's answer");
    transport.send(hello);
    const first = await nextReply();
    if (!first) throw closed();
    checkAccepted(first.code, key);
    const reply = parseGreeting(first.text, "server");
    if (!wantsProof(reply, token)) return { reply, rest: handshake.rest };
    deadline.waitFor("the server's proof that it knows the token");
    const transcript = [hello, first.bytes];
    transport.send(await proof(token, "client", transcript));
    const second = await nextReply();
    if (!second && queued) throw closed();
    if (!second) {
      throw new AuthenticationError("the server refused the token; is it the one it was started with?", {
        reason: "wrong-token",
      });
    }
    checkAccepted(second.code, key);
    const proven = parseGreeting(second.text, "server");
    if (!sameBytes(fromHex(proven.options.get("proof") ?? ""), await proof(token, "server", transcript))) {
      throw new AuthenticationError("the server does not know the token", { reason: "wrong-token" });
    }
    return { reply: proven, rest: handshake.rest };
  } catch (error) {
    if (!(error instanceof RPCError) || error.peer) throw error;
    const Class = error.constructor as new (message: string, facts: object) => RPCError;
    throw new Class(`${peer}: ${error.message}`, { peer, reason: error.reason });
  }
}

function wantsProof(reply: Greeting, token: string): boolean {
  const wanted = reply.options.get("auth") === "token";
  if (wanted && !token) {
    throw new AuthenticationError("the server wants a token; pass { token } or set PORTCALL_TOKEN", {
      reason: "no-token",
    });
  }
  if (token && !wanted) {
    throw new AuthenticationError("the server did not prove that it knows the token; it has none, or is another one", {
      reason: "not-asked",
    });
  }
  return wanted;
}

// ---- How a session ended -------------------------------------------------------------------------------------------

const ASK_TIMEOUT = 5; // seconds for a server to say why a session ended
const ASK_AGAIN = [20, 50, 100, 300]; // milliseconds after which it is asked again, where it does not know yet

/** Ask a portcall server, on a new connection, why a session ended; undefined where it does not know. */
async function whyEnded(target: Address, reasonKey: ReasonKey): Promise<RPCError | undefined> {
  const peer = addressText(target);
  for (let attempt = 0; ; ++attempt) {
    const words = await askWhyEnded(target, reasonKey);
    const pause = ASK_AGAIN[attempt];
    if (words.get("ended") !== UNKNOWN || pause === undefined) return explain(peer, words);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function askWhyEnded(target: Address, reasonKey: ReasonKey): Promise<Greeting["options"]> {
  const deadline = new Deadline(addressText(target), ASK_TIMEOUT, {});
  const transport = await openTransport(target, deadline.signal);
  const abort = () => transport.abort();
  deadline.signal.addEventListener("abort", abort);
  try {
    const question = new Map([
      ["portcall", EXTENSION_VERSION],
      ["reason", `${reasonKey.id}.${reasonKey.secret}`],
    ]);
    const handshake = new HandshakeStream(transport);
    transport.send(greeting("client", "", question));
    const message = await handshake.next();
    return message ? parseGreeting(message.text, "server").options : new Map();
  } finally {
    transport.abort();
    deadline.done();
  }
}

function explain(peer: string, words: Greeting["options"]): RPCError | undefined {
  const [how, signal, code] = [words.get("ended") ?? "", words.get("signal") ?? "", words.get("code") ?? "?"];
  const said = Object.hasOwn(ENDINGS, how) ? ENDINGS[how] : undefined;
  if (!said) return undefined;
  const text = said
    .replace("{peer}", () => peer)
    .replace("{signal}", () => signal)
    .replace("{code}", () => code);
  if (how === "expired") return new SessionTimeoutError(text, { peer, reason: how });
  if (how === "crash" || how === "exit") return new RemoteCrashError(text, { peer, signal, reason: how });
  return new SessionBrokenError(text, { peer, reason: how });
}
