// SPDX-License-Identifier: Apache-2.0
// Serves one session by the core's endpoint, in a runtime of the session's own: its tensors, libraries and graphs lie there,
// and are gone with it.

import { CoreObject, CoreTensor, type ObjectClass } from "../../core/objects.js";
import type { WasmRuntime } from "../../core/runtime.js";
import { CoreServer } from "../../core/server.js";
import type { Transport } from "../transport/transport.js";
import { DescribedObject, decodeValue, encodeValue, isContainer } from "../wire/by_value.js";
import { type Feature, OFFERED } from "../wire/facts.js";
import { asServed } from "./error_text.js";
import type { ServedFunction, ServedFunctions } from "./functions.js";

/** How a session ended: the client closed it or the server did, its time was over, the connection was lost, or the client sent
 * more than is kept while one of its calls runs. */
export type Ending = "closed" | "expired" | "lost" | "abandoned";

const MOST_UNREAD = 64 << 20; // bytes of requests that wait after one that takes long
const MOST_UNSENT = 16 << 20; // bytes of answers that the client has not taken, after which no request is begun

/** The extensions between portcall peers that the core's endpoint has (docs/wire.md, section 8). */
export const CORE_FEATURES: readonly Feature[] = ["traceback", "values"];

/** Return the bytes of a container or an object of a described type; null for what has no form by value, which is then a
 * reference. */
function toBytes(value: unknown): Uint8Array | null {
  if (!(isContainer(value) || (value instanceof CoreObject && describe(value)))) return null;
  try {
    return encodeValue(value, describe);
  } catch {
    return null;
  }
}

function describe(value: object): DescribedObject | undefined {
  const { typeKey, fields, creatable } = value.constructor as unknown as ObjectClass;
  if (!(value instanceof CoreObject && creatable)) return undefined;
  const values = value as unknown as Record<string, unknown>;
  return new DescribedObject(typeKey, Object.fromEntries(fields.map(({ name, property }) => [name, values[property]])));
}

/** Return a function that reads bytes of `toBytes`. What the core cannot make, such as an object of a type that it does not
 * know, is a DescribedObject. */
function readerOf(runtime: WasmRuntime): (bytes: Uint8Array) => unknown {
  const make = (described: DescribedObject) => {
    try {
      return new (runtime.objectClass(described.typeKey))(described.fields);
    } catch {
      return described;
    }
  };
  return (bytes) => decodeValue(bytes, make);
}

/** @internal Serves one session. */
export class CoreEndpoint {
  readonly #transport: Transport;
  readonly #server: CoreServer;
  #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #busy = false;
  #lent: CoreTensor[] = [];
  #resolve!: (ending: Ending) => void;
  #over = false;
  /** How the session ended, once it has. */
  readonly ended = new Promise<Ending>((resolve) => {
    this.#resolve = resolve;
  });

  /** Offer functions, and what the core has for sessions. The runtime is the session's own. */
  constructor(transport: Transport, runtime: WasmRuntime, functions: ServedFunctions, features: readonly string[]) {
    this.#transport = transport;
    runtime.asThrown = asServed;
    runtime.registerFunc("portcall.rpc.ValueToBytes", toBytes);
    runtime.registerFunc("portcall.rpc.ValueFromBytes", readerOf(runtime));
    for (const [name, body] of functions) runtime.registerFunc(name, this.#lending(runtime, body), { override: true });
    const names = [...functions.keys()].map((name) => name.replace(/[*?[\]\\]/g, "\\$&"));
    this.#server = new CoreServer(runtime, [...OFFERED, ...names], features);
  }

  /** Serve until the session ends; `rest` came with the handshake. */
  start(rest: Uint8Array): void {
    this.#transport.receive({ data: (bytes) => this.#take(bytes), closed: () => this.#lost() });
    if (rest.length) this.#take(rest);
  }

  #lost(): void {
    if (!this.#over) this.#end(this.#server.lost() && !this.#waiting.length ? "closed" : "lost");
  }

  /** End the session, since its time is over, and tell the client, whose call gets an error for its answer. */
  expire(seconds: number): void {
    if (this.#over) return;
    this.#server.fail("RPCSessionTimeoutError", `the session's time of ${seconds} s is over`);
    this.#flush();
    this.#transport.close();
    this.#end("expired");
  }

  /** End the session without a word. */
  abort(ending: Ending = "closed"): void {
    this.#transport.abort();
    this.#end(ending);
  }

  #end(ending: Ending): void {
    if (this.#over) return;
    this.#over = true;
    this.#waiting = [];
    this.#resolve(ending);
  }

  /** Tensors are lent for the call. */
  #lending(runtime: WasmRuntime, body: ServedFunction): ServedFunction {
    const lending = (inner: ServedFunction) => this.#lending(runtime, inner);
    return (...args) => {
      for (const value of args) if (value instanceof CoreTensor) this.#lent.push(value);
      const result = body(...args);
      const own = typeof result === "function" && !runtime.handleOf(result); // not the core's
      return own ? lending(result as ServedFunction) : result;
    };
  }

  #take(bytes: Uint8Array): void {
    if (this.#over) return;
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    if (!this.#busy)
      this.#pump().catch(() => this.abort("lost")); // an error of the core itself ends the session, and no other
    else if (this.#waitingBytes > MOST_UNREAD) this.abort("abandoned");
  }

  async #pump(): Promise<void> {
    this.#busy = true;
    while (!this.#over) {
      const stop = await this.#server.serve();
      if (this.#over) return;
      this.#flush();
      if (stop === "promise") {
        await this.#server.settle();
        continue;
      }
      for (const tensor of this.#lent.splice(0)) tensor.dispose();
      if (stop === "closed") {
        this.#transport.close();
        return this.#end("closed");
      }
      if (this.#transport.waiting > MOST_UNSENT) await this.#transport.drained();
      else if (stop === "bytes" && !this.#feed()) break;
    }
    this.#busy = false;
  }

  /** Give the endpoint what has come; false when there is nothing. */
  #feed(): boolean {
    const [bytes] = this.#waiting;
    if (!bytes) return false;
    const size = this.#server.fill(bytes);
    this.#waitingBytes -= size;
    if (size === bytes.length) this.#waiting.shift();
    else this.#waiting[0] = bytes.subarray(size);
    return true;
  }

  #flush(): void {
    this.#server.flush((bytes) => this.#transport.send(bytes));
  }
}
