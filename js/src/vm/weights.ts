// SPDX-License-Identifier: Apache-2.0
// Weights of a model as TVM's tools write them: shards, and a list of what is where, tensor-cache.json. Shards go from the
// network to tensors one after the other, and stay in the browser's cache when they are whole.

import { checkCallback, checkFlag, checkOptions, checkSignal, checkText, isNode } from "../check.js";
import type { CoreTensor } from "../core/objects.js";
import { readSource } from "../core/source.js";
import { countOf, dtype } from "../dtype.js";
import { ModelError } from "../errors.js";
import type { VirtualMachine } from "./machine.js";

const LISTS = ["tensor-cache.json", "ndarray-cache.json"]; // what older tools call it
const CACHE = "portcall-weights";
const MOST_EXTENTS = 32;
const BF16 = "f32-to-bf16"; // the upper halves of float32

/** How far weights are: bytes that are here, of all. */
export interface Progress {
  readonly loaded: number;
  readonly total: number;
  /** The shard that came last, and whether it came from the browser's cache. */
  readonly shard: string;
  readonly cached: boolean;
}

export interface WeightsOptions {
  /** Called after each shard. */
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  /** Whether the browser keeps the shards for the next time, where it has a Cache API: pages over https or of localhost. */
  readonly cache?: boolean | undefined;
  /** Ends it between two shards; what came is kept. */
  readonly signal?: AbortSignal | undefined;
}

interface Entry {
  readonly name: string;
  readonly shape: number[];
  readonly dtype: string;
  readonly format: string;
  readonly nbytes: number;
  readonly byteOffset: number;
}

interface Shard {
  readonly dataPath: string;
  readonly format: string;
  readonly nbytes: number;
  readonly md5sum?: string;
  readonly records: Entry[];
}

/** Load weights into tensors of a machine's device, by their names.
 * @param folder Where tensor-cache.json and its shards are: a folder of Node, or a URL.
 * @throws ModelError The list or a shard is missing, cut short or damaged; it is named. */
export async function loadWeights(
  machine: VirtualMachine,
  folder: string | URL,
  options: WeightsOptions = {},
): Promise<Map<string, CoreTensor>> {
  const { onProgress, cache = true, signal } = checkOptions(options, ["onProgress", "cache", "signal"]);
  checkCallback(onProgress, "onProgress");
  checkFlag(cache, "cache");
  checkSignal(signal, "signal");
  const base = checkText(folder instanceof URL ? folder.href : folder, "the folder").replace(/\/?$/, "/");
  const shards = await readList(base);
  const store = cache ? await openStore() : undefined;
  const total = shards.reduce((sum, { nbytes }) => sum + nbytes, 0);
  const found = new Map<string, CoreTensor>();
  let loaded = 0;
  try {
    for (const shard of shards) {
      signal?.throwIfAborted();
      const { bytes, cached } = await readShard(base, shard, store);
      for (const entry of shard.records) {
        if (found.has(entry.name)) throw new ModelError(`${base}: there are two weights '${entry.name}'`);
        found.set(entry.name, tensorOf(machine, base, entry, bytes));
      }
      loaded += shard.nbytes;
      onProgress?.({ loaded, total, shard: shard.dataPath, cached });
    }
  } catch (error) {
    for (const tensor of found.values()) tensor.dispose();
    throw error;
  }
  return found;
}

async function readList(base: string): Promise<Shard[]> {
  const failed: unknown[] = [];
  for (const name of LISTS) {
    let bytes: Uint8Array;
    try {
      bytes = await readSource(base + name);
    } catch (error) {
      failed.push(error);
      continue;
    }
    const { records } = parse(bytes) ?? {};
    if (Array.isArray(records) && records.every(isShard)) return records;
    throw new ModelError(`${base}${name} is no list of weights as TVM's tools write it`);
  }
  throw new ModelError(`${base} has no weights: ${(failed[0] as Error).message}`, { cause: failed[0] });
}

function parse(bytes: Uint8Array): { records?: unknown } | undefined {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return undefined;
  }
}

function isShard(value: any): value is Shard {
  const sizes = (...numbers: unknown[]) => numbers.every((n) => Number.isSafeInteger(n) && (n as number) >= 0);
  const texts = (...all: unknown[]) => all.every((text) => typeof text === "string");
  return (
    texts(value?.dataPath, value?.format) &&
    /^[^/\\\0]+$/.test(value.dataPath) &&
    !/^\.+$|\p{Surrogate}/u.test(value.dataPath) &&
    value.format === "raw-shard" &&
    sizes(value.nbytes) &&
    Array.isArray(value.records) &&
    value.records.every(
      (r: any) =>
        texts(r?.name, r?.dtype, r?.format) &&
        Array.isArray(r.shape) &&
        r.shape.length <= MOST_EXTENTS &&
        sizes(...r.shape, r.nbytes, r.byteOffset) &&
        r.byteOffset + r.nbytes <= value.nbytes,
    )
  );
}

async function openStore(): Promise<Cache | undefined> {
  try {
    return await globalThis.caches?.open(CACHE);
  } catch {
    return undefined; // the user forbids it
  }
}

/** Return a whole shard. It is kept under its address, its size and its hash, so that another one is not taken for it. */
async function readShard(
  base: string,
  { dataPath, nbytes, md5sum = "" }: Shard,
  store: Cache | undefined,
): Promise<{ bytes: Uint8Array; cached: boolean }> {
  const address = base + (isFile(base) ? dataPath : encodeURIComponent(dataPath));
  const key =
    store && new URL(`?portcall=${nbytes}-${encodeURIComponent(md5sum)}`, new URL(address, location.href)).href;
  const kept = key && (await store.match(key));
  if (kept) {
    const bytes = new Uint8Array(await kept.arrayBuffer());
    if (bytes.length === nbytes) return { bytes, cached: true };
  }
  const bytes = await readSource(address).catch((error) => {
    throw new ModelError(error.message, { cause: error });
  });
  if (bytes.length !== nbytes) {
    throw new ModelError(
      `${address}: a shard of ${nbytes} bytes, but it has ${bytes.length}: was it copied to the end?`,
    );
  }
  // A browser that has no room for it keeps none.
  if (key) await store.put(key, new Response(bytes as Uint8Array<ArrayBuffer>)).catch(() => undefined);
  return { bytes, cached: false };
}

/** Whether it is a path of Node, which is read as it is. */
function isFile(base: string): boolean {
  return isNode() && !/^(https?|file):/.test(base);
}

function tensorOf(machine: VirtualMachine, base: string, entry: Entry, shard: Uint8Array): CoreTensor {
  const { name, shape, format, nbytes, byteOffset } = entry;
  const bytes = shard.subarray(byteOffset, byteOffset + nbytes);
  const halves = format === BF16 && entry.dtype === "float32";
  if (format !== "raw" && !halves && format !== BF16) {
    throw new ModelError(`${base}: '${name}' has the format '${format}', raw and ${BF16} are known`);
  }
  try {
    const [type, data] = [dtype(entry.dtype), halves ? widen(bytes) : bytes];
    if (type.bytesOf(countOf(shape)) !== data.byteLength) throw new RangeError(`it has ${nbytes} bytes`);
    return machine.tensor(data, shape, type);
  } catch (error) {
    if (!(error instanceof RangeError || error instanceof TypeError)) throw error; // such as a lost device
    throw new ModelError(`${base}: '${name}' is no ${entry.dtype}[${shape}]: ${error.message}`, { cause: error });
  }
}

/** Return the float32 whose upper halves these are. */
function widen(bytes: Uint8Array): Float32Array {
  if (bytes.length % 2) throw new RangeError(`${bytes.length} bytes are no halves`);
  const halves = new Uint16Array(bytes.slice().buffer);
  const bits = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; ++i) bits[i] = halves[i]! << 16;
  return new Float32Array(bits.buffer);
}
