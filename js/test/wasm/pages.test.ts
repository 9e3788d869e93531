// SPDX-License-Identifier: Apache-2.0
// The blocks of docs/javascript.md about the core in WebAssembly, sessions and servers run as they stand. Those that need a
// browser are checked by types alone (../pages.test.ts). Needs js/core.wasm, which `make wasm` makes.

import assert from "node:assert/strict";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { execPath } from "node:process";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { rpc } from "../../src/index.js";
import { blockWith, folderForPrograms, runBlock, writeProgram } from "../blocks.js";
import { ROOT } from "../captures.js";
import { ended, PYTHON, start } from "../servers.js";

const here = (name: string) => fileURLToPath(new URL(`js/test/${name}`, ROOT));
const IMPORTS = 'import { device, load, rpc, Tensor } from "portcall"; import { readFileSync } from "node:fs";';

/** Run a program of Python in the folder; it prints "done" at its end. */
async function python(...lines: string[]): Promise<void> {
  const setting = ["import os, numpy, portcall, portcall.rpc, portcall.graph", `os.chdir(${JSON.stringify(folder)})`];
  const { process, line } = await start(PYTHON, ["-c", [...setting, ...lines, "print('done')"].join("\n")]);
  assert.equal(line, "done");
  await ended(process);
}

let folder: string;
before(async () => {
  folder = folderForPrograms();
  writeFileSync(join(folder, "k.c"), blockWith("c", "add_one"));
  await python(
    blockWith("python", '"k.c"'),
    // A model of the name and with the input of the page's, which is exp.
    `kernels = portcall.toolchain.create_shared([${JSON.stringify(here("wasm/kernels.c"))}], "m.wasm", target="wasm32")`,
    "builder = portcall.graph.GraphBuilder()",
    'builder.output(builder.call("exp", [builder.input("data_0", (1, 3, 224, 224))], (1, 3, 224, 224)))',
    'portcall.graph.export_bundle("squeezenet.wasm", builder.graph(), kernels, {})',
    `import sys; sys.path.insert(0, ${JSON.stringify(here("wasm"))}); import portcall.compile, vm_models`,
    'portcall.compile.onnx(vm_models.rows(), target="wasm32", runtime="vm", check=False).save("model.wasm")',
    `portcall.toolchain.create_shared([${JSON.stringify(here("wasm/shapes.c"))}], "shapes.wasm", target="wasm32")`,
  );
});
after(() => rmSync(folder, { recursive: true }));

test("the core in WebAssembly", () => {
  const before = 'import { readFileSync } from "node:fs"; const bytes = readFileSync("k.wasm");';
  assert.match(runBlock(folder, before, blockWith("js", "console.log(y.data)")), /2, 3/);
});

test("a model", () => {
  const before = `${IMPORTS} const core = await load({ backend: "wasm" }), bytes = readFileSync("squeezenet.wasm");
    const pixels = new Float32Array(3 * 224 * 224);`;
  const code = `${blockWith("js", '.get("default")')}\nconsole.log(scores.length, scores[0]);`;
  assert.equal(runBlock(folder, before, code), "150528 1\n");
});

test("a model of the Relax VM", () => {
  const before = 'import { readFileSync } from "node:fs"; const bytes = readFileSync("model.wasm");';
  assert.match(runBlock(folder, before, blockWith("js", "vm.create(core")), /^\[ 'main' \] \[ 2, 4 \]/);
});

test("objects of described types", () => {
  const before = `${IMPORTS} const core = await load({ backend: "wasm" }), shapes = readFileSync("shapes.wasm");`;
  const code = blockWith("js", "make_circle").replace(/^(circle\.radius = "wide";).*$/m, "try { $1 } catch {}");
  const told = "console.log(circle.radius, circle.area(), String(other), Circle.fields.map(({ name }) => name).join())";
  assert.equal(runBlock(folder, before, `${code}\n${told}`), '2 12 demo.Circle(name="c", radius=3) name,radius\n');
});

test("a bundler copies core.wasm", async () => {
  const code = blockWith("js", "portcall/core.wasm?url").replace("?url", "");
  const { outputFiles } = await build({
    stdin: { contents: `import { load } from "portcall";\n${code}`, resolveDir: folder },
    ...{ bundle: true, format: "esm", loader: { ".wasm": "file" }, outdir: folder, write: false, logLevel: "silent" },
  });
  assert(outputFiles.some(({ path }) => path.endsWith(".wasm")));
});

test("sessions", async () => {
  const server = await rpc.listen({ functions: {}, address: "127.0.0.1:0" });
  const open = `${IMPORTS} const its = await rpc.connect("${server.address}");
    await its.upload("k.wasm", readFileSync(${JSON.stringify(join(folder, "k.wasm"))}));
    const module = await its.loadModule("k.wasm"), f = await its.getFunction("testing.echo"), inputs = [1, 2];
    const x = await its.tensor(new Float32Array(2)), y = await its.empty([2]);`;
  try {
    const { process, line } = await start(execPath, [
      writeProgram(
        folder,
        open,
        `{ ${blockWith("js", "inputs.map")} console.log(...results); }
         { ${blockWith("js", "timeEvaluator")} }
         { ${blockWith("js", "await using").replace("board.local:9090", server.address)} }
         its.close();`,
      ),
    ]);
    assert.equal(line, "1 2");
    await ended(process);
    assert.equal(process.exitCode, 0);
  } finally {
    await server.close();
  }
});

test("a server, and its clients in Python", async () => {
  const proxy = await start(PYTHON, [here("tvm_proxy.py")]);
  const [port, webPort] = proxy.line.split(" ");
  const code = blockWith("js", "rpc.listen(").replace("ws://lab:9190", `ws://127.0.0.1:${webPort}`);
  const server = await start(execPath, [writeProgram(folder, "", code.replace("127.0.0.1:9090", "127.0.0.1:0"))]);
  await python(
    blockWith("python", "demo.double").replace('"lab", 9190', `"127.0.0.1", ${port}`),
    "assert x.numpy().tolist() == [2] * 4",
    'y, pixels = remote.empty((4,)), numpy.zeros((1, 3, 224, 224), "float32")',
    blockWith("python", "squeezenet.wasm"),
    "assert y.numpy().tolist() == [3] * 4 and model.get_output(0).numpy()[0, 0, 0, 0] == 1",
    "remote.close()",
  );
  server.process.kill();
  proxy.process.stdin!.end();
  await Promise.all([ended(server.process), ended(proxy.process)]);
});
