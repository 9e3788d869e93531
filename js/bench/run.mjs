// SPDX-License-Identifier: Apache-2.0
// What calls of both cores cost, in WebAssembly and by the addon, beside koffi, which calls the native core; and what sessions
// with this process cost, through apache-tvm's proxy: `make bench-js`.
//
//   node js/bench/run.mjs FOLDER PYTHON [--json]
//
// FOLDER has node_modules/koffi, kernels.wasm and kernels.so. Both sides take turns in this process; the best turn counts,
// since other programs only ever add to a time.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { load, rpc } from "../build/src/index.js";

const CELL = 16; // bytes
const ROUNDS = 300;
const CALLS = 2000; // in one turn
const FLOATS = 4 << 20;
const PEER_SIZE = 1_280_771; // bytes, compressed: tvmjs_runtime.wasm of apache-tvm 0.27, made by emcc 3.1.6
// Of @mlc-ai/web-runtime 0.27 with a runtime that was built from apache-tvm's source, behind the same proxy, on this kind of
// machine: npm has no such runtime, so it is not measured again. MiB/s, the best.
const PEER_COPIES = { to: 22, from: 13 };

const [folder, python] = process.argv.slice(2);
const core = await load({ backend: "wasm" });
const cores = [
  { core, name: "wasm", limit: 20 },
  { core: await load({ backend: "native" }), name: "addon", limit: 30 },
];
const koffi = createRequire(resolve(folder, "package.json"))("koffi");
const platform = createRequire(import.meta.url).resolve(`../platform/${process.platform}-${process.arch}`);
const native = koffi.load(resolve(platform, "../libportcall.so")); // the one that the addon has loaded

/** Return a loop of its own for each function: V8 optimizes one for the function that it calls. */
function loopOf(f) {
  const loop = new Function("f", "calls", "for (let i = 0; i < calls; ++i) f();");
  return (calls) => {
    const start = process.hrtime.bigint();
    loop(f, calls);
    return Number(process.hrtime.bigint() - start) / calls;
  };
}

/** Return the nanoseconds of both, or of the first alone. */
function measure(ours, theirs, calls = CALLS, rounds = ROUNDS) {
  const best = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  const loops = [ours, theirs].filter(Boolean).map(loopOf);
  for (let round = 0; round < rounds; ++round) {
    for (const [i, loop] of loops.entries()) best[i] = Math.min(best[i], loop(calls));
  }
  return best;
}

/** Functions of the native core, by koffi: cells are written here, as a binding does. */
function nativeCore() {
  const call = native.func("int TVMFFIFunctionCall(void* f, void* args, int n, void* result)");
  const find = native.func("int TVMFFIFunctionGetGlobal(void* name, _Out_ void** f)");
  const [args, result] = [Buffer.alloc(CELL * 3), Buffer.alloc(CELL)];
  const get = (name) => {
    const text = Buffer.from(`${name}\0`);
    const view = Buffer.alloc(CELL);
    view.writeBigUInt64LE(koffi.address(text), 0);
    view.writeBigUInt64LE(BigInt(name.length), 8);
    const out = [null];
    if (find(view, out) !== 0) throw new Error(`there is no function ${name}`);
    return out[0];
  };
  return { args, get, call: (f, n) => call(f, args, n, result) };
}

const row = (what, limit, [ours, peer]) => ({ what, ours, peer: Number.isFinite(peer) ? peer : null, limit });

/** What calls of one core cost, in nanoseconds. */
function callsOf({ core, name, limit }, theirs) {
  const theirNop = theirs.get("testing.nop");
  const put = (i, value) => {
    theirs.args.writeInt32LE(1, CELL * i);
    theirs.args.writeBigInt64LE(BigInt(value), CELL * i + 8);
  };
  const three = () => {
    for (let i = 0; i < 3; ++i) put(i, i + 1);
    theirs.call(theirNop, 3);
  };
  const [nop, echo] = ["testing.nop", "testing.echo"].map((each) => core.getGlobalFunc(each));
  core.registerFunc("bench.add", (a, b) => a + b);
  const add = core.getGlobalFunc("bench.add");
  const [tensor, array] = [core.empty([4]), new Float32Array(4)];
  const calls = [
    ["nop()", { ours: limit }, () => nop(), () => theirs.call(theirNop, 0)],
    ["nop(1, 2, 3)", {}, () => nop(1, 2, 3), three],
    ["echo of a short string", {}, () => echo("short")],
    ["nop of a tensor of the core", {}, () => nop(tensor)],
    ["nop of an array", {}, () => nop(array)],
    ["JavaScript, C++, JavaScript: add(1, 2)", { ours: 100 }, () => add(1, 2)],
  ];
  return calls.map(([what, most, ours, peer]) => row(`${name}: ${what}, ns`, most, measure(ours, peer)));
}

function rows() {
  const theirs = nativeCore();
  const kernels = core.loadModuleSync(new Uint8Array(readFileSync(resolve(folder, "kernels.wasm"))));
  const addOne = kernels.get("add_one");
  const nativeAddOne = koffi.load(resolve(folder, "kernels.so")).func("void add_one(void* x, void* y, int64 n)");
  const [x, y] = [core.empty([FLOATS]), core.empty([FLOATS])];
  const [a, b] = [new Float32Array(FLOATS), new Float32Array(FLOATS)];
  const oneTurn = [() => addOne(x, y), () => nativeAddOne(a, b, FLOATS), 1, 60];
  const wasm = readFileSync(new URL("../core.wasm", import.meta.url));
  return [
    ...cores.flatMap((each) => callsOf(each, theirs)),
    row("wasm: add_one of 4 M floats, ns", { ratio: 1.2 }, measure(...oneTurn)),
    row("core.wasm compressed, bytes", { ratio: 0.2 }, [gzipSync(wasm, { level: 9 }).length, PEER_SIZE]),
  ];
}

/** Start a program of Python's and return it with its first line. */
async function start(...words) {
  const program = spawn(python, words, { stdio: ["pipe", "pipe", "ignore"] });
  for await (const line of createInterface({ input: program.stdout })) return { program, line };
  throw new Error(`${words.join(" ")} ended early`);
}

/** What a client in Python measures, with this process as the server. */
async function sessionRows() {
  const here = (path) => fileURLToPath(new URL(path, import.meta.url));
  const proxy = await start(here("../test/tvm_proxy.py"));
  const [port, webPort] = proxy.line.split(" ");
  const leave = new AbortController();
  const joined = rpc.join(`ws://127.0.0.1:${webPort}/ws`, { functions: {}, core, key: "bench", signal: leave.signal });
  const client = await start(here("session.py"), "127.0.0.1", port, "bench", resolve(folder));
  leave.abort();
  await joined;
  proxy.program.stdin.end();
  const { call_us, to_mib_s, from_mib_s, squeezenet_ms } = JSON.parse(client.line);
  const { wasm32, ...native } = squeezenet_ms;
  return [
    { what: "a call through the proxy, us", ours: call_us, peer: null, limit: {} },
    { what: "copies to it through the proxy, MiB/s", ours: to_mib_s, peer: PEER_COPIES.to, limit: { least: 5 } },
    { what: "copies back, MiB/s", ours: from_mib_s, peer: PEER_COPIES.from, limit: { least: 5 } },
    ...Object.entries(native).map(([target, peer]) => {
      return { what: `squeezenet, ms; the peer is ${target}`, ours: wasm32, peer, limit: { ratio: 3 } };
    }),
  ];
}

/** A row with its verdict. */
function judged({ limit, ...row }) {
  const ratio = row.peer === null ? null : row.ours / row.peer;
  if (limit.ours) return { ...row, ratio, target: limit.ours, met: row.ours <= limit.ours };
  if (limit.ratio) return { ...row, ratio, target: `${limit.ratio} x`, met: ratio <= limit.ratio };
  if (limit.least) return { ...row, ratio, target: `at least ${limit.least} x`, met: ratio >= limit.least };
  return { ...row, ratio, target: null, met: null };
}

const found = [...rows(), ...(await sessionRows())].map(judged);
if (process.argv.includes("--json")) console.log(JSON.stringify({ node: process.version, rows: found }, null, 2));
else {
  console.log(`Node ${process.version}; the peers are koffi, a native function by koffi, and apache-tvm's runtime\n`);
  for (const { what, ours, peer, ratio, target, met } of found) {
    const number = (value) => (value === null ? "" : value < 1000 ? value.toFixed(1) : Math.round(value).toString());
    const verdict = met === null ? "" : `${met ? "met" : "MISSED"} (${target})`;
    const cells = [number(ours).padStart(9), number(peer).padStart(9), (ratio?.toFixed(3) ?? "").padStart(7), verdict];
    console.log(`${what.padEnd(52)}${cells.join("  ")}`);
  }
}
