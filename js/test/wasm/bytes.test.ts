// SPDX-License-Identifier: Apache-2.0
// What a server does with the bytes of a client, right and wrong ones. Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { connect, type Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import fc from "fast-check";
import { rpc } from "../../src/index.js";
import { Writer } from "../../src/rpc/wire/bytes.js";
import { Code } from "../../src/rpc/wire/facts.js";
import { FrameReader, writeFrame } from "../../src/rpc/wire/frames.js";
import { greeting } from "../../src/rpc/wire/handshake.js";
import { Pointer, writeSequence } from "../../src/rpc/wire/values.js";
import { section } from "../captures.js";
import { SERVED } from "../served.js";

/** A client of bytes: what it sends, and the frames that it gets. */
class RawClient {
  readonly frames: { code: number; body: Uint8Array }[] = [];
  closed = false;
  #wake: (() => void) | undefined;

  private constructor(readonly socket: Socket) {
    const reader = new FrameReader({ frame: (code, body) => this.frames.push({ code, body: body.slice() }) });
    let handshake = 8 + "server:".length;
    socket.on("data", (data) => {
      const skipped = Math.min(handshake, data.length);
      handshake -= skipped;
      reader.feed(new Uint8Array(data.subarray(skipped)));
      this.#wake?.();
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      this.closed = true;
      this.#wake?.();
    });
  }

  static async open(server: rpc.Server): Promise<RawClient> {
    const socket = connect(Number(server.address.split(":")[1]), "127.0.0.1");
    const client = new RawClient(socket);
    socket.write(greeting("client", ""));
    return client;
  }

  send(code: number, body: (writer: Writer) => void): void {
    const writer = new Writer();
    writeFrame(writer, code, body);
    this.socket.write(writer.bytes());
  }

  open(): void {
    this.send(Code.InitServer, (writer) => {
      writer.counted(new TextEncoder().encode("0.8.0"));
      writer.i32(0);
    });
  }

  /** Wait for that many answers, or the end. */
  async answers(count: number): Promise<void> {
    while (this.frames.length < count && !this.closed) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }
}

/** An answer in which short bytes, which TVM announces as long ones, have one form. */
function announced(body: Uint8Array): Uint8Array {
  const same = body.slice();
  if (same[8] === 66) same[8] = 12;
  return same;
}

describe("a client of bytes", () => {
  let server: rpc.Server;
  before(async () => {
    server = await rpc.listen({ functions: SERVED, address: "127.0.0.1:0" });
  });
  after(() => server.close());

  test("gets the answers of apache-tvm's server to what its client sent", async () => {
    const client = await RawClient.open(server);
    client.open();
    client.send(Code.GetGlobalFunc, (writer) => writeSequence(writer, ["testing.echo"], "request"));
    await client.answers(2);
    const handle = client.frames[1]!.body.subarray(8, 16);
    const names = ["None", "True", "False", "int 1", "int -1", "int 2**40", "int64 max", "float 1.5", "float -0.0"];
    names.push("float nan", "str empty", "str 'abc' (small string)", "str of 7 bytes", "str of 8 bytes (heap string)");
    names.push("bytes empty", "bytes of 3 (small bytes)", "bytes of 8 (heap bytes)", "dtype int8x4", "dtype bool");
    names.push("opaque pointer 0x1234", "device cuda:0 of this session");
    for (const name of names) {
      const [request, answer] = section(`CallFunc echo(${name})`);
      const asked = request!.data.slice();
      asked.set(handle, 12);
      client.socket.write(asked);
      await client.answers(client.frames.length + 1);
      const { code, body } = client.frames.at(-1)!;
      if (name.startsWith("opaque pointer") && code === Code.Exception) continue; // it names nothing of the session
      assert.deepEqual(announced(body), announced(answer!.data.subarray(12)), name);
    }
    client.socket.destroy();
  });

  test("gets an Exception for each request that is wrong, and the session goes on", async () => {
    const client = await RawClient.open(server);
    client.send(Code.CallFunc, (writer) => writer.i64(1)); // before InitServer
    client.open();
    client.open(); // twice
    client.send(99, () => {});
    client.send(Code.CallFunc, (writer) => writer.raw(new Uint8Array(3)));
    client.send(Code.CallFunc, (writer) => {
      writer.i64(12345);
      writeSequence(writer, [], "request");
    });
    client.send(Code.GetGlobalFunc, (writer) => writeSequence(writer, [1], "request"));
    client.send(Code.FreeHandle, (writer) => writeSequence(writer, [new Pointer(77n)], "request"));
    client.send(Code.GetGlobalFunc, (writer) => {
      writeSequence(writer, ["testing.nop"], "request");
      writer.u8(0); // a byte too many
    });
    client.send(Code.CopyToRemote, (writer) => writer.raw(new Uint8Array(5)));
    client.send(Code.GetGlobalFunc, (writer) => writeSequence(writer, ["testing.nop"], "request"));
    await client.answers(11);
    const { Return, Exception: Wrong } = Code;
    assert.deepEqual(
      client.frames.map(({ code }) => code),
      [Wrong, Return, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong, Wrong, Return],
    );
    client.socket.destroy();
  });

  test("ends its own session with frames that cannot be, and no other", async () => {
    await using other = await rpc.connect(server.address);
    for (const head of [
      [1, 0, 0, 0, 0, 0, 0, 0, 1],
      [255, 255, 255, 255, 255, 255, 255, 127, 1, 0, 0, 0],
    ]) {
      const client = await RawClient.open(server);
      client.socket.write(Uint8Array.from(head));
      await client.answers(3);
      assert.deepEqual(
        client.frames.map(({ code }) => code),
        [Code.Exception, Code.Shutdown],
      );
    }
    assert.equal(await (await other.getFunction("demo.add"))(1, 2), 3);
  });

  test("gets an answer to any frame, whatever is in it", async () => {
    const bodies = fc.record({ code: fc.integer({ min: 2, max: 23 }), body: fc.uint8Array({ maxLength: 60 }) });
    await fc.assert(
      fc.asyncProperty(fc.array(bodies, { minLength: 1, maxLength: 20 }), async (frames) => {
        const client = await RawClient.open(server);
        client.open();
        for (const { code, body } of frames) client.send(code, (writer) => writer.raw(body));
        await client.answers(frames.length + 1);
        assert.equal(client.frames.length, frames.length + 1);
        client.socket.destroy();
      }),
      { numRuns: 50 },
    );
  });

  test("that does not speak the protocol gets no answer", async () => {
    const socket = connect(Number(server.address.split(":")[1]), "127.0.0.1");
    const got: Buffer[] = [];
    socket.on("data", (data) => got.push(data));
    socket.write("GET / HTTP/1.1\r\n\r\n");
    await new Promise((resolve) => socket.on("close", resolve));
    assert.deepEqual(got, []);
  });
});
