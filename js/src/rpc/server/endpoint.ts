// SPDX-License-Identifier: Apache-2.0
// Serves one session: requests in, answers out, in order. Any bytes of the client give an answer, or end its session.

import { Device } from "../../device.js";
import { RemoteProtocolError } from "../../errors.js";
import type { Transport } from "../transport/transport.js";
import { Reader, Writer } from "../wire/bytes.js";
import { Code, type FrameHandler, FrameReader, PROTOCOL_VERSION, writeFrame } from "../wire/frames.js";
import { Pointer, readSequence, readTensor, WireTensor, type WireValue, writeSequence } from "../wire/values.js";
import { errorText, ServedError } from "./error_text.js";
import type { LocalSession } from "./local_session.js";
import { MOST_UNREAD, MOST_UNSENT, ServedSession } from "./served_session.js";

const FLUSH = 256 << 10; // bytes of answers that are sent at once

type Answer = readonly WireValue[] | Uint8Array;
const NONE: Answer = [null];

export class Endpoint extends ServedSession implements FrameHandler {
  readonly #session: LocalSession;
  readonly #frames = new FrameReader(this);
  #initialized = false;
  #busy = false; // with one request, or until the client takes its answers
  #waiting: { code: number; body: Uint8Array }[] = [];
  #waitingBytes = 0;
  #output: Writer | undefined;
  constructor(transport: Transport, session: LocalSession) {
    super(transport);
    this.#session = session;
  }

  /** Serve until the session ends; `rest` came with the handshake. */
  start(rest: Uint8Array): void {
    this.transport.receive({
      data: (bytes) => this.#feed(bytes),
      closed: () => this.end(this.#frames.atBoundary ? "closed" : "lost"),
    });
    if (rest.length) this.#feed(rest);
  }

  #feed(bytes: Uint8Array): void {
    if (this.over) return;
    try {
      this.#frames.feed(bytes);
      this.#flush();
    } catch (error) {
      this.#giveUp(error);
    }
  }

  /** Where the next request begins is not known any more. */
  #giveUp(error: unknown): void {
    if (this.over) return;
    this.#write(Code.Exception, [errorText(error)]);
    writeFrame(this.#writer(), Code.Shutdown, () => {});
    this.#flush();
    this.transport.close();
    this.end("lost");
  }

  protected override notify(kind: string, message: string): void {
    this.#write(Code.Exception, [`${kind}: ${message}`]);
    this.#flush();
  }

  protected override release(): void {
    this.#waiting = [];
    this.#session.close();
  }

  // ---- Requests, in order ----

  frame(code: number, body: Uint8Array): void {
    if (this.over) return;
    if (!this.#busy) return this.#serve(code, body);
    this.#waiting.push({ code, body });
    this.#waitingBytes += body.length;
    if (this.#waitingBytes <= MOST_UNREAD) return;
    this.abort("abandoned");
  }

  #serve(code: number, body: Uint8Array): void {
    let answer: Answer | Promise<Answer> | undefined;
    try {
      answer = this.#answer(code, new Reader(body));
    } catch (error) {
      return this.#raise(error);
    }
    if (!answer) return; // it was Shutdown
    if (!(answer instanceof Promise)) return this.#give(answer);
    this.#busy = true;
    answer
      .then(
        (values) => this.#give(values),
        (error) => this.#raise(error),
      )
      .then(() => this.#next());
  }

  /** Go on with the requests that waited, once the client has taken its answers. */
  async #next(): Promise<void> {
    this.#flush();
    await this.transport.drained();
    this.#busy = false;
    while (!this.#busy && this.#waiting.length) {
      const { code, body } = this.#waiting.shift()!;
      this.#waitingBytes -= body.length;
      this.#serve(code, body);
    }
    this.#flush();
  }

  // ---- Answers ----

  #give(answer: Answer): void {
    try {
      this.#write(answer instanceof Uint8Array ? Code.CopyAck : Code.Return, answer);
    } catch (error) {
      this.#raise(error); // a result that cannot be sent
    }
    if (this.#busy || this.transport.waiting <= MOST_UNSENT) return;
    this.#busy = true;
    void this.#next();
  }

  #raise(error: unknown): void {
    this.#write(Code.Exception, [errorText(error)]);
  }

  #write(code: number, values: Answer): void {
    if (this.over) return;
    const output = this.#writer();
    writeFrame(output, code, (writer) => {
      if (values instanceof Uint8Array) writer.raw(values);
      else writeSequence(writer, values, "reply");
    });
    if (output.length > FLUSH) this.#flush();
  }

  #writer(): Writer {
    this.#output ??= new Writer();
    return this.#output;
  }

  #flush(): void {
    if (this.#output?.length) this.transport.send(this.#output.bytes());
    this.#output = undefined;
  }

  // ---- What each request means (docs/wire.md, section 2) ----

  #answer(code: number, body: Reader): Answer | Promise<Answer> | undefined {
    if (code === Code.Shutdown) {
      this.#flush();
      this.transport.close();
      return void this.end("closed");
    }
    if (code === Code.InitServer) return this.#initServer(body);
    if (!this.#initialized) throw new RemoteProtocolError("a request came before InitServer");
    switch (code) {
      case Code.CallFunc: {
        const handle = body.u64();
        return this.#session.call(handle, this.#values(body));
      }
      case Code.CopyFromRemote: {
        const from = readTensor(body);
        const size = body.size();
        body.expectEnd();
        return this.#session.bytes(from, size);
      }
      case Code.CopyToRemote: {
        const to = readTensor(body);
        const size = body.size();
        if (size !== body.left) throw new RemoteProtocolError(`a copy of ${size} bytes carries ${body.left}`);
        this.#session.bytes(to, size).set(body.raw(size));
        return NONE;
      }
    }
    if (code < Code.GetGlobalFunc || code > Code.DevGetCurrentStream) {
      throw new RemoteProtocolError(`no request has code ${code}`);
    }
    return [this.#syscall(code, new SyscallArguments(this.#values(body)))];
  }

  #values(body: Reader): WireValue[] {
    const values = readSequence(body);
    body.expectEnd();
    return values;
  }

  #initServer(body: Reader): Answer {
    const version = body.text();
    const args = this.#values(body);
    if (version !== PROTOCOL_VERSION) {
      const text = `the server speaks protocol version ${PROTOCOL_VERSION}, the client ${version}`;
      throw new ServedError("VersionMismatchError", text);
    }
    if (this.#initialized) throw new RemoteProtocolError("the session has already been initialized");
    if (args.length) throw new ServedError("PermissionError", "this server makes no sessions by constructor");
    this.#initialized = true;
    return NONE;
  }

  #syscall(code: number, args: SyscallArguments): WireValue {
    const session = this.#session;
    switch (code) {
      case Code.GetGlobalFunc:
        return new Pointer(session.getFunction(args.text(0)));
      case Code.FreeHandle:
        return void session.free(args.pointer(0));
      case Code.DevGetAttr:
        return this.#attribute(args.device(0), args.int(1));
      case Code.DevAllocData:
        return new Pointer(session.allocBytes(args.device(0), args.int(1)));
      case Code.DevAllocDataWithScope:
        return new Pointer(session.alloc(args.tensor(0), args.scope(1)));
      case Code.DevFreeData:
        return void session.freeData(args.pointer(1));
      case Code.CopyAmongRemote:
        return void session.copyAmong(args.tensor(0), args.tensor(1));
      // The host has one stream, which has done everything when it is asked.
      case Code.DevCreateStream:
      case Code.DevGetCurrentStream:
        session.checkDevice(args.device(0));
        return new Pointer(0n);
      default:
        return void session.checkDevice(args.device(0));
    }
  }

  #attribute(device: Device, kind: number): WireValue {
    if (kind === 0) return this.#session.exists(device) ? 1 : 0;
    this.#session.checkDevice(device);
    return null;
  }
}

/** The arguments of a request, each checked before it is used. */
class SyscallArguments {
  readonly #values: readonly WireValue[];

  constructor(values: readonly WireValue[]) {
    this.#values = values;
  }

  #expect<T extends WireValue>(at: number, what: string, is: (value: WireValue) => value is T): T {
    const value = this.#values[at];
    if (at < this.#values.length && is(value)) return value;
    throw new RemoteProtocolError(`argument ${at} of a request is not ${what}`);
  }

  text(at: number): string {
    return this.#expect(at, "text", (value) => typeof value === "string");
  }
  int(at: number): number {
    return this.#expect(at, "a whole number", (value): value is number => Number.isSafeInteger(value));
  }
  pointer(at: number): bigint {
    return this.#expect(at, "a handle", (value) => value instanceof Pointer).value;
  }
  device(at: number): Device {
    return this.#expect(at, "a device", (value) => value instanceof Device);
  }
  tensor(at: number): WireTensor {
    return this.#expect(at, "a tensor", (value) => value instanceof WireTensor);
  }
  scope(at: number): string | null {
    return this.#expect(at, "a memory scope", (value) => value === null || typeof value === "string");
  }
}
