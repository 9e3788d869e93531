// SPDX-License-Identifier: Apache-2.0
// A session with a server, in use.

import { checkText, checkView } from "../../check.js";
import { device as asDevice, Device } from "../../device.js";
import { dtype as asDtype, countOf, type DataType, dtypeOf, type TypedArray } from "../../dtype.js";
import { FunctionNotFoundError, RemoteProtocolError } from "../../errors.js";
import type { Writer } from "../wire/bytes.js";
import { Code, MAX_DIMENSIONS } from "../wire/facts.js";
import { copyHeadBytes, Pointer, WireTensor, writeSequence } from "../wire/values.js";
import { download, type Progress, upload } from "./files.js";
import { expectValues, type Pipeline } from "./pipeline.js";
import {
  callHandle,
  handleIn,
  type Owner,
  type RemoteFunction,
  type RemoteModule,
  RemoteTensor,
  remoteFunction,
  type TimeEvaluator,
  timeEvaluator,
} from "./remote.js";
import type { TimingOptions } from "./timing.js";

const CPU = new Device(1);
const symbolAsyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
const EXISTS = 0; // the attribute of devices
const MOST_POSTED = 1 << 20; // bytes that are sent before the server has told whether it has memory for them

/** A tensor as it is to be: it has no memory yet. */
function likeOf(shape: readonly number[], dtype: string | DataType, device: string | Device): WireTensor {
  countOf(shape);
  return new WireTensor(0n, asDevice(device), asDtype(dtype), [...shape]);
}

function writeAlloc(like: WireTensor): (writer: Writer) => void {
  return (writer) => writeSequence(writer, [like, null], "request");
}

/** A session with a server. `close()` it, or make it with `await using`; what it owns is gone then.
 *
 * Requests leave in the order in which they are made, and are executed in that order: no `await` is needed between two
 * of them for the sake of order. */
export class Session {
  /** The server's address, for messages. */
  readonly peer: string;
  /** Whose server it is. */
  readonly peerKind: "portcall" | "TVM";
  readonly #owner: Owner;
  readonly #functions = new Map<string, Promise<RemoteFunction | undefined>>();

  /** @internal `connect` makes sessions. */
  constructor(pipeline: Pipeline, peerKind: "portcall" | "TVM", copyLimit: number) {
    this.peer = pipeline.peer;
    this.peerKind = peerKind;
    this.#owner = {
      pipeline,
      copyLimit,
      find: (name) => this.#findOnce(name),
      get: async (name) => (await this.#findOnce(name)) ?? this.#missing(name),
    };
  }

  // ---- Functions and modules ----

  /** Return a function that the server offers.
   * @throws FunctionNotFoundError It offers none of that name. */
  async getFunction<Result = any>(name: string): Promise<RemoteFunction<Result>> {
    return (await this.#find(checkText(name, "the name"))) ?? this.#missing(name);
  }

  #missing(name: string): never {
    const remedy = "serve it with --import FILE.py, in Node with --import FILE.mjs or rpc.listen({ functions })";
    throw new FunctionNotFoundError(`${this.peer} offers no function '${name}'; ${remedy}`, name);
  }

  async #find(name: string): Promise<RemoteFunction | undefined> {
    const handle = await this.#owner.pipeline.request(
      Code.GetGlobalFunc,
      (writer) => writeSequence(writer, [name], "request"),
      (reader) => handleIn(expectValues(reader, 1)[0]),
    );
    return handle ? remoteFunction(this.#owner, handle, name) : undefined;
  }

  #findOnce(name: string): Promise<RemoteFunction | undefined> {
    let found = this.#functions.get(name);
    if (!found) {
      found = this.#find(name);
      found.catch(() => this.#functions.delete(name));
      this.#functions.set(name, found);
    }
    return found;
  }

  /** Load a library that was uploaded, and return its functions.
   * @throws RemoteError The server cannot load it. */
  async loadModule(path: string): Promise<RemoteModule> {
    checkText(path, "path");
    return await (await this.#owner.get("tvm.rpc.server.load_module"))(path);
  }

  /** Return the functions of code that is linked into the server. */
  async systemLib(prefix = ""): Promise<RemoteModule> {
    const get = await this.#owner.get("ffi.SystemLib");
    return await (prefix ? get(prefix) : get());
  }

  /** Return a function that takes the arguments of a function that the server offers, and times it there.
   * @throws FunctionNotFoundError The server offers none of that name. */
  async timeEvaluator(name: string, options: TimingOptions = {}): Promise<TimeEvaluator> {
    (await this.getFunction(name)).dispose();
    return timeEvaluator(this.#owner, null, name, options);
  }

  // ---- Memory ----

  /** Return a tensor of uninitialised memory, on the server's host unless a device is given.
   * @throws RemoteError The server cannot allocate that much, or has no such device. */
  async empty(
    shape: readonly number[],
    dtype: string | DataType = "float32",
    device: string | Device = CPU,
  ): Promise<RemoteTensor> {
    const like = likeOf(shape, dtype, device);
    const data = await this.#owner.pipeline.request(Code.DevAllocDataWithScope, writeAlloc(like), (reader) =>
      handleIn(expectValues(reader, 1)[0]),
    );
    return this.#own(like, data);
  }

  #own({ device, dtype, shape }: WireTensor, data: bigint): RemoteTensor {
    const values = [device, new Pointer(data)];
    const free = () =>
      this.#owner.pipeline.free(Code.DevFreeData, (writer) => writeSequence(writer, values, "request"));
    return new RemoteTensor(this.#owner, new WireTensor(data, device, dtype, shape), free);
  }

  /** Return a tensor with the elements of an array: of its length and type, unless a shape and a type are given. */
  async tensor(
    data: TypedArray,
    shape?: readonly number[],
    dtype: string | DataType = dtypeOf(data),
    device: string | Device = CPU,
  ): Promise<RemoteTensor> {
    checkView(data, "the data of a tensor");
    shape ??= [data.length];
    const size = asDtype(dtype).bytesOf(countOf(shape));
    if (size !== data.byteLength) throw new RangeError(`the array has ${data.byteLength} bytes, the tensor ${size}`);
    const { pipeline } = this.#owner;
    const soon = pipeline.has("post") && !pipeline.closed && size > 0 && size <= MOST_POSTED;
    if (!soon) return (await this.empty(shape, dtype, device)).copyFrom(data);
    const like = likeOf(shape, dtype, device);
    const handle = pipeline.post(Code.DevAllocDataWithScope, writeAlloc(like)); // the copy has its error
    return this.#own(like, handle).copyFrom(data);
  }

  /** Whether the server has a device. */
  async hasDevice(device: string | Device): Promise<boolean> {
    const exists = await this.#owner.pipeline.request(
      Code.DevGetAttr,
      (writer) => writeSequence(writer, [asDevice(device), EXISTS], "request"),
      (reader) => expectValues(reader, 1)[0],
    );
    return Boolean(exists);
  }

  /** Wait until a device has done what it was given. */
  async sync(device: string | Device = CPU): Promise<void> {
    const values = [asDevice(device), new Pointer(0n)];
    await this.#owner.pipeline.requestNone(Code.DevStreamSync, (writer) => writeSequence(writer, values, "request"));
  }

  // ---- Files ----

  /** Send a file to the session's directory.
   * @throws RemoteError The server refused it; nothing of it is left there. */
  upload(path: string, bytes: Uint8Array, onProgress?: Progress): Promise<void> {
    return upload(this.#owner, path, bytes, onProgress);
  }

  /** Fetch a file of the session's directory. */
  download(path: string, onProgress?: Progress): Promise<Uint8Array> {
    return download(this.#owner, path, onProgress);
  }

  /** Delete a file of the session's directory; one that is not there is no error. */
  async remove(path: string): Promise<void> {
    await (await this.#owner.get("tvm.rpc.server.remove"))(path);
  }

  /** Return the names in a folder of the session's directory.
   * @throws FunctionNotFoundError A server of TVM, which cannot tell. */
  async listDir(path = ""): Promise<string[]> {
    const text: string = await (await this.#owner.get("tvm.rpc.server.listdir"))(path);
    return text ? text.split(",").sort() : [];
  }

  // ---- Life ----

  /** Whether the session is over, by our doing or the peer's. */
  get closed(): boolean {
    return this.#owner.pipeline.closed;
  }

  /** End the session. Requests that wait for answers fail; closing it again does nothing. */
  close(): void {
    this.#owner.pipeline.close();
  }

  async [symbolAsyncDispose](): Promise<void> {
    this.close();
  }
}

/** Ask a new session for the limit of its copies (docs/wire.md, section 6). */
export async function askCopyLimit(pipeline: Pipeline): Promise<number> {
  const handle = await pipeline.request(
    Code.GetGlobalFunc,
    (writer) => writeSequence(writer, ["tvm.rpc.server.GetCRTMaxPacketSize"], "request"),
    (reader) => handleIn(expectValues(reader, 1)[0]),
  );
  if (!handle) return Number.MAX_SAFE_INTEGER;
  const owner = { pipeline } as Owner; // a call without arguments needs no more of it
  const limit: unknown = await callHandle(owner, handle, []);
  pipeline.free(Code.FreeHandle, (writer) => writeSequence(writer, [new Pointer(handle)], "request"));
  const least = copyHeadBytes(MAX_DIMENSIONS) + 1;
  if (typeof limit === "number" && limit >= least) return limit;
  throw new RemoteProtocolError(`the server takes frames of ${limit} bytes, which is too little`, {
    peer: pipeline.peer,
  });
}
