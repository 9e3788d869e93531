// SPDX-License-Identifier: Apache-2.0
// TVM's own browser runtime, in Node, at a farm: it joins the proxy, is given to a client, and comes back.

import assert from "node:assert/strict";
import { connect } from "node:net";
import { test } from "node:test";
import { RPCServer } from "@mlc-ai/web-runtime";
import { ended, PYTHON, start } from "./servers.js";

test("web-runtime joins a farm, which hands it to a client, and comes back", async () => {
  const farm = await start(PYTHON, ["-m", "portcall", "farm", "--port", "0", "--store", ":memory:", "--silent"]);
  const address = farm.line.split(" ").at(-1)!;

  async function places(): Promise<{ free: boolean; keys: string[]; place: string }[]> {
    const answer = await fetch(`http://${address}/api`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ do: "status" }),
    });
    return ((await answer.json()) as { places: { free: boolean; keys: string[]; place: string }[] }).places;
  }

  async function freePlace(): Promise<string> {
    for (;;) {
      const free = (await places()).find((place) => place.free);
      if (free) return free.place;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Open a session as TVM's clients do, and leave before its first message. */
  async function visit(): Promise<void> {
    const [host, port] = address.split(":");
    const socket = connect(Number(port), host);
    const hello = Buffer.from("\x71\xf2\x0f\0\x0b\0\0\0client:wasm", "latin1");
    socket.write(hello);
    let answer = "";
    for await (const data of socket) {
      answer += (data as Buffer).toString("latin1");
      if (answer.endsWith("server:wasm")) break; // which closes the socket
    }
    assert.ok(answer.endsWith("server:wasm"));
  }

  const heard: string[] = [];
  const server = new RPCServer(
    `ws://${address}/ws`,
    "wasm",
    () => ({}),
    (text) => heard.push(text),
  );
  for (let number = 1; number <= 4; number++) {
    while ((await freePlace()) !== `wasm@proxy#${number}`);
    await visit();
  }
  assert.equal(await freePlace(), "wasm@proxy#5");
  assert.equal(heard.filter((text) => text.includes("Automatic reconnecting")).length, 4);
  assert.equal(server.key, "wasm");
  farm.process.kill();
  await ended(farm.process);
});
