// SPDX-License-Identifier: Apache-2.0
// What all servers share: which functions they offer, and how a session is served.

import { checkObject, checkOptions, got } from "../../check.js";
import type { Runtime } from "../../core/interface.js";
import { loadWasm, WasmRuntime } from "../../core/runtime.js";
import { shareWebGpu } from "../../core/webgpu.js";
import { ModuleLoadError } from "../../errors.js";
import type { HandshakeStream } from "../transport/handshake_stream.js";
import type { Transport } from "../transport/transport.js";
import { PROOF_BYTES } from "../wire/facts.js";
import {
  checkKey,
  checkSeconds,
  type Greeting,
  proof,
  sameBytes,
  timeoutOf,
  toHex,
  tokenOf,
} from "../wire/handshake.js";
import { conditions } from "./conditions.js";
import { CoreEndpoint, type Ending } from "./core_endpoint.js";
import { Files, MemoryBudget } from "./files.js";
import { entriesOf, type Functions, type ServedFunction } from "./functions.js";
import { moduleFunctions } from "./modules.js";
import { timeEvaluators } from "./time_evaluator.js";

export interface ServeOptions {
  /** What clients may call, looked up when a session opens. */
  functions: Functions;
  /** The core that serves sessions, from `load({ backend: "wasm" })` or `load(URL)`; that of the package unless given. Each
   * session has its own runtime. */
  core?: Runtime | undefined;
  /** The key that clients give. */
  key?: string | undefined;
  /** A token that clients must prove to know; in Node that of the environment variable PORTCALL_TOKEN unless given. */
  token?: string | undefined;
  /** Seconds that a session may last; 0 for no limit. A client may ask for less. */
  sessionTimeout?: number | undefined;
  /** Bytes of memory and files that a session may use beside the core, which has 4 MiB; 1 GiB unless given. */
  memoryLimit?: number | undefined;
}

const OPTIONS = ["functions", "core", "key", "token", "sessionTimeout", "memoryLimit"] as const;

/** @internal What a server was asked for, checked. */
export interface Settings {
  readonly functions: Functions;
  readonly core: WasmRuntime | undefined; // that of the package unless given
  readonly key: string;
  readonly token: string;
  readonly sessionTimeout: number;
  readonly memoryLimit: number;
}

/** @internal Check options; `more` are those that the kind of server has beside those of all. */
export function settingsOf<T extends ServeOptions>(options: T, more: readonly (keyof T & string)[]): Settings {
  const token = tokenOf(checkOptions(options, [...OPTIONS, ...more]).token);
  const memoryLimit = options.memoryLimit ?? 2 ** 30;
  if (!(memoryLimit >= 0)) throw new RangeError(`invalid memoryLimit ${memoryLimit} (must be a number of bytes)`);
  if (Array.isArray(options.functions)) throw new TypeError("functions must be an object with names, got an array");
  for (const [name, value] of entriesOf(checkObject(options.functions, "functions"))) {
    if (typeof value !== "function") throw new TypeError(`'${name}' must be a function, got ${got(value)}`);
  }
  const { core } = options;
  if (core && !(core instanceof WasmRuntime)) {
    throw new TypeError("sessions need the core in WebAssembly, of which each gets one: load({ backend: 'wasm' })");
  }
  return {
    functions: options.functions,
    core,
    key: checkKey(options.key ?? ""),
    token,
    sessionTimeout: checkSeconds(options.sessionTimeout ?? 0, "sessionTimeout"),
    memoryLimit,
  };
}

let packaged: Promise<WasmRuntime> | undefined;

/** @internal What a server was asked for, with the core that serves its sessions. */
export type Service = Settings & { readonly core: WasmRuntime };

/** @internal Load the core of the package, unless one was given: once for all servers.
 * @throws ModuleLoadError It is not there. */
export async function withCore(settings: Settings): Promise<Service> {
  if (settings.core) return { ...settings, core: settings.core };
  packaged ??= loadWasm();
  try {
    return { ...settings, core: await packaged };
  } catch (error) {
    packaged = undefined; // the next server looks again
    const { message } = error as Error;
    throw new ModuleLoadError(`a server needs the core: ${message}; or give it as { core: await load(URL) }`, {
      cause: error,
    });
  }
}

/** Read a client's proof that it knows the token; return the server's proof as a handshake's option, undefined for a wrong
 * one. */
export async function exchangeProofs(
  stream: HandshakeStream,
  token: string,
  transcript: readonly Uint8Array[],
): Promise<[string, string] | undefined> {
  const shown = await stream.take(PROOF_BYTES);
  if (!shown || !sameBytes(shown, await proof(token, "client", transcript))) return undefined;
  return ["proof", toHex(await proof(token, "server", transcript))];
}

/** @internal Serve a session on a connection whose handshake is done, and return how it ended; `rest` came after the handshake.
 * `begun` is given what ends the session at once; the handshake has told the client the `features`. */
export async function serveSession(
  transport: Transport,
  service: Service,
  hello: Greeting,
  rest: Uint8Array,
  features: readonly string[] = [],
  begun: (abort: () => void) => void = () => {},
): Promise<Ending> {
  const endpoint = endpointFor(transport, service, features);
  const limits = [timeoutOf(hello), service.sessionTimeout].filter(Boolean);
  const limit = limits.length ? Math.min(...limits) : 0;
  const timer = limit ? setTimeout(() => endpoint.expire(limit), limit * 1000) : undefined;
  begun(() => endpoint.abort());
  endpoint.start(rest);
  try {
    return await endpoint.ended;
  } finally {
    clearTimeout(timer);
  }
}

/** Make an endpoint in a new runtime, with what sessions find beside the functions of the core. */
function endpointFor(transport: Transport, service: Service, features: readonly string[]): CoreEndpoint {
  const { core, memoryLimit } = service;
  const runtime = core.another(memoryLimit);
  const own = runtime.memorySize;
  const gpu = shareWebGpu(core, runtime, memoryLimit);
  const files = new Files(new MemoryBudget(memoryLimit, () => runtime.memorySize - own + (gpu?.used ?? 0)));
  const functions = new Map([
    ...files.functions(),
    ...moduleFunctions(runtime, files),
    ["portcall.rpc.conditions", conditions] as const,
    ...entriesOf(service.functions),
  ]);
  const script = timeEvaluators(functions);
  const compiled: ServedFunction = runtime.getGlobalFunc("runtime.RPCTimeEvaluator");
  // Functions of JavaScript may return promises, which the core's evaluator does not wait for.
  const evaluators: ServedFunction = (module, name, ...rest) =>
    !module && functions.has(name) ? script(module, name, ...rest) : compiled(module, name, ...rest);
  if (!functions.has("runtime.RPCTimeEvaluator")) functions.set("runtime.RPCTimeEvaluator", evaluators);
  const endpoint = new CoreEndpoint(transport, runtime, functions, features);
  endpoint.ended.then(() => gpu?.close());
  return endpoint;
}
