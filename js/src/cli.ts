#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// The command `portcall` of the npm package.

import { spawnSync } from "node:child_process";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { nearest } from "./check.js";
import { type Functions, type JoinState, join, listen, type ServedFunction } from "./rpc/index.js";
import { addressToListen, isLocal } from "./rpc/server/listen.js";

const HELP = `Usage: portcall serve [options]

Serve functions of JavaScript to clients of portcall and TVM. Clients also send kernels and models for the target wasm32,
and run them here.

  --import FILE.mjs    a module whose export "functions" has functions by name; may be given more than once
  --address ADDRESS    where to listen: host:port or unix:/path [127.0.0.1:9090]
  --insecure           listen at an address for other machines without a token
  --proxy URL          join a proxy instead of listening: ws://host:port/ws or host:port
  --key KEY            the key that clients give
  --session-timeout T  how long a session may last: 10m
  --memory-limit SIZE  memory and files of a session: 64MiB [1GiB]
  --json               print what happens as lines of JSON
  --help               print this

The environment variable PORTCALL_TOKEN has the token that clients must prove to know.

Examples:
  PORTCALL_TOKEN=$(cat token) portcall serve --import functions.mjs --address 0.0.0.0:9090 --key rasp
  portcall serve --import functions.mjs --proxy ws://lab:9190/ws --key node

functions.mjs:
  export const functions = { "demo.add": (a, b) => a + b };
`;

const USAGE = 2; // the exit code for a wrong command line
const OPTIONS = ["import", "address", "proxy", "insecure", "key", "session-timeout", "memory-limit", "json", "help"];
const SECONDS = { ms: 1e-3, s: 1, m: 60, min: 60, h: 3600 };
const BYTES = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

class UsageError extends Error {}

async function importFunctions(files: readonly string[]): Promise<Functions> {
  const all = new Map<string, ServedFunction>();
  for (const file of files) {
    if (file.endsWith(".py")) {
      throw new UsageError(
        `'${file}' is Python's, for portcall serve of the Python package; this one serves JavaScript: --import FILE.mjs, ` +
          'with export const functions = { "name": (a) => a }',
      );
    }
    const { functions } = await importFile(file);
    if (typeof functions !== "object" || functions === null) {
      throw new UsageError(`'${file}' does not export functions; write: export const functions = { "name": (a) => a }`);
    }
    for (const [name, value] of Object.entries(functions)) all.set(name, value as ServedFunction);
  }
  return all;
}

async function importFile(file: string): Promise<{ functions?: unknown }> {
  const url = pathToFileURL(resolve(file)).href;
  try {
    return await import(url);
  } catch (error) {
    const { message, stack = "" } = error instanceof Error ? error : new Error(String(error));
    // Node keeps where a syntax error is to itself, but for this.
    const syntax = error instanceof SyntaxError ? spawnSync(process.execPath, ["--check", file]).stderr.toString() : "";
    const line = `${syntax}\n${stack}`.split("\n").find((text) => text.includes(basename(file))) ?? "";
    const where = /:(\d+)(?=(:\d+)?\)?$)/.exec(line)?.[1];
    throw new Error(`'${file}' cannot be imported: ${message}${where ? ` (line ${where})` : ""}`, {
      cause: error,
    });
  }
}

function parse(args: string[]) {
  try {
    return parseArgs({
      args,
      allowPositionals: true,
      options: {
        import: { type: "string", multiple: true, default: [] },
        address: { type: "string", default: "127.0.0.1:9090" },
        proxy: { type: "string" },
        insecure: { type: "boolean", default: false },
        key: { type: "string", default: "" },
        "session-timeout": { type: "string", default: "0s" },
        "memory-limit": { type: "string", default: "1GiB" },
        json: { type: "boolean", default: false },
        help: { type: "boolean", default: false },
      },
    });
  } catch (error) {
    const { message } = error as Error;
    const [, unknown] = /^Unknown option '--?([^']*)'/.exec(message) ?? [];
    throw new UsageError(unknown === undefined ? message : `there is no option '--${unknown}'${remedyFor(unknown)}`);
  }
}

/** What to write instead of an option that there is not; that of `portcall serve` in Python may have another name here. */
function remedyFor(unknown: string): string {
  const near = ["host", "port", "unix"].includes(unknown) ? "address" : nearest(unknown, OPTIONS);
  return near ? `; did you mean --${near}?` : "";
}

/** Read a number with a unit, as `portcall serve` in Python does. */
function quantityOf(option: string, text: string, units: Readonly<Record<string, number>>, examples: string): number {
  const [, number, unit = ""] = /^\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*$/i.exec(text) ?? [];
  const value = Number(number) * (units[unit] ?? Number.NaN);
  if (Number.isFinite(value)) return value;
  throw new UsageError(`${option} takes a number and a unit, such as ${examples}, not '${text}'`);
}

function describe(state: JoinState): string {
  switch (state.state) {
    case "serving":
      return `serves a client that asked for '${state.client}'`;
    case "ended":
      return `the session ended: ${state.ending}`;
    case "progress":
      return `${state.received} bytes received, ${state.sent} sent`;
    case "pausing":
      return `${state.error.message}; tries again in ${state.seconds} s`;
    default:
      return state.state === "waiting" ? "waits for a client" : "connects to the proxy";
  }
}

async function serve(values: ReturnType<typeof parse>["values"]): Promise<void> {
  const open = values.proxy === undefined && !isLocal(addressToListen(values.address));
  if (open && !process.env.PORTCALL_TOKEN && !values.insecure) {
    throw new UsageError(
      `'${values.address}' is for other machines, and anybody there could use this server: ` +
        "set PORTCALL_TOKEN, or say --insecure",
    );
  }
  const report = (event: string, text: string, facts: object = {}) => {
    console.log(values.json ? JSON.stringify({ event, ...facts }) : text);
  };
  const options = {
    functions: await importFunctions(values.import),
    key: values.key,
    sessionTimeout: quantityOf("--session-timeout", values["session-timeout"], SECONDS, "30s or 10m"),
    memoryLimit: quantityOf("--memory-limit", values["memory-limit"], BYTES, "64MiB or 1GiB"),
  };
  if (values.proxy !== undefined) {
    const onState = ({ state, ...facts }: JoinState) => {
      if (state === "progress" && !values.json) return;
      const error = "error" in facts ? { error: facts.error.message } : {};
      report(state, `portcall: ${describe({ state, ...facts } as JoinState)}`, { ...facts, ...error });
    };
    return join(values.proxy, { ...options, onState });
  }
  const server = await listen({
    ...options,
    address: values.address,
    insecure: values.insecure,
    onSession: (peer, ended) => {
      const what = ended ? `ended: ${ended}` : "opened";
      report(
        ended ? "ended" : "opened",
        `portcall: session with ${peer} ${what}`,
        ended ? { peer, how: ended } : { peer },
      );
    },
  });
  const key = values.key ? `, with the key '${values.key}'` : "";
  report("ready", `portcall: serves at ${server.address}${key}`, { address: server.address, key: values.key });
}

async function main(): Promise<void> {
  try {
    const { values, positionals } = parse(process.argv.slice(2));
    if (values.help) return void console.log(HELP);
    if (positionals.length !== 1 || positionals[0] !== "serve") throw new UsageError("the command is: portcall serve");
    await serve(values);
  } catch (error) {
    const usage = error instanceof UsageError;
    console.error(`portcall: ${(error as Error).message}${usage ? "\nSee: portcall --help" : ""}`);
    process.exit(usage ? USAGE : 1);
  }
}

void main();
