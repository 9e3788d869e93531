// SPDX-License-Identifier: Apache-2.0
// Language models: a machine, its weights and a cache of keys and values, used by ids of tokens. Functions have the names
// that models of MLC-LLM have: create_tir_paged_kv_cache, embed, prefill, decode.

import { checkArray, checkOptions } from "../check.js";
import type { Runtime } from "../core/interface.js";
import type { CoreObject, CoreTensor, Module } from "../core/objects.js";
import { symbolDispose } from "../core/objects.js";
import { ModelError } from "../errors.js";
import { create, type MachineOptions, type VirtualMachine } from "./machine.js";
import { checkSampling, pick, type Sampling } from "./sampling.js";
import { loadWeights, type WeightsOptions } from "./weights.js";

const CREATE = "create_tir_paged_kv_cache";
const NEEDED = [CREATE, "embed", "prefill", "decode"];

export interface LanguageOptions extends MachineOptions, WeightsOptions {
  /** How many tokens the cache holds; 2048. */
  readonly tokens?: number | undefined;
  /** How many tokens of a prompt are computed at once; 512. */
  readonly chunk?: number | undefined;
  /** The tokens of a page for which the library was compiled; 16. */
  readonly pageSize?: number | undefined;
}

export interface GenerateOptions extends Sampling {
  /** How many tokens at most; else it goes on until an id of `stop`, or until the cache is full. */
  readonly tokens?: number | undefined;
  /** Ids after which it ends; they are not given. */
  readonly stop?: readonly number[] | undefined;
}

/** Return a language model that is ready to generate.
 * @param weights Where tensor-cache.json and its shards are: a folder of Node, or a URL.
 * @throws TypeError The library has no language model with a paged cache.
 * @throws ModelError The weights are damaged, or not those of this library. */
export async function language(
  core: Runtime,
  library: Module,
  weights: string | URL,
  options: LanguageOptions = {},
): Promise<LanguageModel> {
  const names = ["gpu", "tokens", "chunk", "pageSize", "onProgress", "cache", "signal"] as const;
  const { gpu, tokens = 2048, chunk = 512, pageSize = 16, ...rest } = checkOptions(options, names);
  for (const [name, size] of Object.entries({ tokens, chunk, pageSize })) {
    if (!Number.isSafeInteger(size) || size < 1) throw new RangeError(`${name} ${size} (must be an integer above 0)`);
  }
  const machine = create(core, library, { gpu });
  let found = new Map<string, CoreTensor>();
  let cache: CoreObject | undefined;
  try {
    const missing = NEEDED.filter((name) => !machine.functions.includes(name)).join(", ");
    if (missing)
      throw new TypeError(`the library is no language model with a paged cache: it has no function ${missing}`);
    found = await loadWeights(machine, weights, rest);
    const params = inOrder(machine, weights, found);
    for (const tensor of found.values()) if (!params.includes(tensor)) tensor.dispose(); // of no use here
    const atOnce = Math.min(chunk, tokens);
    const sizes = [1, tokens, atOnce, pageSize, 0].map((size) => machine.shape([size]));
    cache = machine.get(CREATE)(...sizes) as CoreObject;
    for (const size of sizes) size.dispose();
    const model = new LanguageModel(machine, params, cache, atOnce);
    await model.begin();
    return model;
  } catch (error) {
    for (const each of [...found.values(), cache, machine]) each?.dispose();
    throw error;
  }
}

/** The weights as the library's functions take them: in the order that its metadata name, or that of the list. */
function inOrder(machine: VirtualMachine, folder: string | URL, found: Map<string, CoreTensor>): CoreTensor[] {
  if (!machine.functions.includes("_metadata")) return [...found.values()];
  const { params } = JSON.parse(machine.get("_metadata")()) ?? {};
  if (!Array.isArray(params)) return [...found.values()];
  return params.map(({ name }) => {
    const tensor = found.get(name);
    if (!tensor) throw new ModelError(`${folder}: these are not the weights of this library: there is no '${name}'`);
    return tensor;
  });
}

/** A language model with its cache. `language` makes it. */
export class LanguageModel {
  readonly machine: VirtualMachine;
  /** The number of ids. */
  vocabulary = 1;
  readonly #params: readonly CoreTensor[];
  readonly #cache: CoreObject;
  readonly #chunk: number;
  #last = 0; // sequence
  #turn: Promise<unknown> = Promise.resolve();
  #disposed = false;

  /** @internal */
  constructor(machine: VirtualMachine, params: readonly CoreTensor[], cache: CoreObject, chunk: number) {
    this.machine = machine;
    this.#params = params;
    this.#cache = cache;
    this.#chunk = chunk;
  }

  /** Return the logits after some tokens, of a sequence of their own.
   * @throws RangeError An id that there is not.
   * @throws PortcallError The cache is full. */
  async logits(ids: readonly number[]): Promise<Float32Array> {
    const given = [...checkArray(ids, "the ids")];
    return this.#within((sequence) => this.#feed(sequence, given));
  }

  /** @internal Compute a token, whose logits tell how many ids there are; kernels are compiled by then. */
  async begin(): Promise<void> {
    this.vocabulary = (await this.logits([0])).length;
  }

  async #within<T>(use: (sequence: number) => Promise<T>): Promise<T> {
    const sequence = this.#last++;
    this.#state("add_sequence", sequence);
    try {
      return await use(sequence);
    } finally {
      this.#undo("remove_sequence", sequence);
    }
  }

  #state(name: string, ...args: unknown[]): void {
    this.#checkThere();
    this.machine.builtin(`kv_state_${name}`)(this.#cache, ...args);
  }

  #checkThere(): void {
    if (this.#disposed) throw new TypeError("the language model was disposed of");
  }

  #undo(name: string, ...args: unknown[]): void {
    if (!this.#disposed) this.#state(name, ...args);
  }

  /** Give the ids that follow a prompt, as they are computed. Several may be generated in turns.
   * @throws RangeError An id that there is not, or options that are no such numbers.
   * @throws PortcallError The cache is full, or the logits are no numbers. */
  async *generate(ids: readonly number[], options: GenerateOptions = {}): AsyncGenerator<number, void> {
    const {
      tokens = Number.POSITIVE_INFINITY,
      stop = [],
      ...sampling
    } = checkOptions(options, ["tokens", "stop", "temperature", "topP", "random"] as const);
    if (!((Number.isSafeInteger(tokens) && tokens >= 0) || tokens === Number.POSITIVE_INFINITY)) {
      throw new RangeError(`tokens ${tokens} (must be an integer, at least 0)`);
    }
    checkSampling(sampling);
    const ends = new Set(checkArray(stop, "stop"));
    let given = [...checkArray(ids, "the ids")];
    const sequence = this.#last++;
    this.#state("add_sequence", sequence);
    try {
      let logits = await this.#feed(sequence, given);
      for (let made = 0; made < tokens; ++made) {
        if (made) logits = await this.#feed(sequence, given);
        const id = pick(logits, sampling);
        if (ends.has(id)) return;
        yield id;
        given = [id];
      }
    } finally {
      this.#undo("remove_sequence", sequence);
    }
  }

  /** Add tokens to a sequence, and return the logits after the last one. One at a time: a cache has one batch. */
  #feed(sequence: number, ids: readonly number[]): Promise<Float32Array> {
    if (!ids.length) throw new RangeError("no ids: at least one is needed");
    const fed = this.#turn.then(async () => {
      let logits!: Float32Array;
      for (let at = 0; at < ids.length; at += this.#chunk) {
        logits = await this.#forward(sequence, ids.slice(at, at + this.#chunk));
      }
      return logits;
    });
    this.#turn = fed.catch(() => undefined);
    return fed;
  }

  async #forward(sequence: number, ids: readonly number[]): Promise<Float32Array> {
    this.#checkThere();
    const { machine } = this;
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < this.vocabulary));
    if (wrong !== undefined) throw new RangeError(`the id ${wrong} (must be an integer, 0-${this.vocabulary - 1})`);
    const temporary: CoreObject[] = [];
    const keep = <T extends CoreObject>(object: T): T => {
      temporary.push(object);
      return object;
    };
    const shape = (...extents: number[]) => keep(machine.shape(extents));
    this.#state("begin_forward", shape(sequence), shape(ids.length));
    try {
      const x = keep(machine.get("embed")(keep(machine.tensor(Int32Array.from(ids))), this.#params) as CoreTensor);
      const rows = keep(machine.builtin("reshape")(x, shape(1, ids.length, x.shape.at(-1)!)) as CoreTensor);
      const run = machine.get(ids.length === 1 ? "decode" : "prefill");
      const [logits, cache]: [CoreTensor, CoreObject] = run(rows, this.#cache, this.#params);
      keep(logits);
      keep(cache);
      this.#state("end_forward");
      const all = (await machine.read(logits)) as Float32Array;
      return all.slice(-logits.shape.at(-1)!);
    } catch (error) {
      this.#undo("popn", sequence, ids.length);
      throw error;
    } finally {
      for (const object of temporary) object.dispose();
    }
  }

  /** Give everything back: the cache, the weights and the machine. */
  dispose(): void {
    this.#disposed = true;
    for (const each of [this.#cache, ...this.#params, this.machine]) each.dispose();
  }
  [symbolDispose](): void {
    this.dispose();
  }
}
