// SPDX-License-Identifier: Apache-2.0
// Servers as users start them, for tests.

import { type ChildProcess, spawn } from "node:child_process";
import { env } from "node:process";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { ROOT } from "./captures.js";

/** The Python that has portcall and its peers: that of the repository. */
export const PYTHON = fileURLToPath(new URL(".venv/bin/python", ROOT));
// Without torch, which TVM would import.
const LEAN = fileURLToPath(new URL("tests/lean", ROOT));
export const FUNCTIONS = fileURLToPath(new URL("js/test/functions.py", ROOT));

// Whatever fails, no program stays behind.
const running = new Set<ChildProcess>();
after(() => {
  for (const process of running) process.kill("SIGKILL");
});

export interface Running {
  readonly address: string;
  readonly process: ChildProcess;
  stop(): Promise<void>;
}

/** Start a program and return the first line that it prints. */
export async function start(
  command: string,
  args: string[],
  more: Record<string, string> = {},
): Promise<{ process: ChildProcess; line: string }> {
  const process = spawn(command, args, { stdio: ["pipe", "pipe", "pipe"], env: { ...env, PYTHONPATH: LEAN, ...more } });
  running.add(process);
  process.once("exit", () => running.delete(process));
  const log: string[] = [];
  process.stderr.on("data", (data) => log.push(String(data)));
  const lines = createInterface({ input: process.stdout });
  for await (const line of lines) {
    process.stdout.resume();
    return { process, line };
  }
  throw new Error(`${command} ${args.join(" ")} ended: ${log.join("")}`);
}

/** Stop a program with a signal, or by closing its input, and wait for its end. */
export function ended(process: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (process.exitCode !== null || process.signalCode !== null) resolve();
    else process.once("exit", () => resolve());
  });
}

export function portcallServer(...words: string[]): Promise<Running> {
  return portcallServerWith({}, ...words);
}

export async function portcallServerWith(more: Record<string, string>, ...words: string[]): Promise<Running> {
  const args = ["-m", "portcall", "serve", "--json", "--port", "0", "--import", FUNCTIONS, ...words];
  const { process, line } = await start(PYTHON, args, more);
  const stop = async () => {
    process.kill("SIGTERM");
    await ended(process);
  };
  return { address: JSON.parse(line).address, process, stop };
}

/** A server of apache-tvm, which serves one client after the other. */
export async function tvmServer(key: string): Promise<Running> {
  const script = fileURLToPath(new URL("tests/rpc/tvm_server.py", ROOT));
  const { process, line } = await start(PYTHON, [script, key]);
  const stop = async () => {
    process.stdin!.end();
    await ended(process);
  };
  return { address: `127.0.0.1:${line}`, process, stop };
}
