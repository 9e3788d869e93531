// SPDX-License-Identifier: Apache-2.0
// The page language.html: a language model on WebGPU, from ids to ids, with tokens a second. The address may say which one:
// language.html?library=model.wasm&weights=weights/

import { load, openWebGpu, vm, type WebGpu } from "../index.js";

const element = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const field = (id: string) => element<HTMLInputElement>(id).value;

let loaded: { name: string; model: vm.LanguageModel; gpu: WebGpu } | undefined;
let stopped = false;

function show(state: "working" | "done" | "failed", text: string): void {
  document.body.dataset.state = state;
  element("state").textContent = text;
}

/** Return the model of the form, which is loaded when it is another one. */
async function modelOf(library: string, weights: string): Promise<NonNullable<typeof loaded>> {
  const name = JSON.stringify([library, weights]);
  if (loaded?.name === name) return loaded;
  loaded?.model.dispose();
  loaded = undefined;
  element<HTMLProgressElement>("progress").value = 0;
  show("working", `Loading ${library}`);
  const core = await load();
  const gpu = await openWebGpu(core);
  const kernels = await core.loadModule(new URL(library, location.href));
  const onProgress = ({ loaded, total, cached }: vm.Progress) => {
    element<HTMLProgressElement>("progress").value = loaded / total;
    const from = cached ? "of the browser's cache" : "of the network";
    show("working", `Weights: ${megabytes(loaded)} of ${megabytes(total)}, the last ${from}`);
  };
  const model = await vm.language(core, kernels, new URL(weights, location.href), { gpu, onProgress });
  loaded = { name, model, gpu };
  return loaded;
}

function megabytes(nbytes: number): string {
  return `${(nbytes / 2 ** 20).toFixed(1)} MiB`;
}

async function generate(): Promise<void> {
  for (const id of ["ids", "prefill", "decode", "memory"]) element(id).textContent = "";
  const { model, gpu } = await modelOf(field("library"), field("weights"));
  const ids = field("prompt").trim().split(/[\s,]+/).map(Number); // biome-ignore format: one chain
  const options = { tokens: Number(field("tokens")), temperature: Number(field("temperature")) };
  show("working", "Computing");
  const out = element("ids");
  const start = performance.now();
  let first = 0;
  let made = 0;
  for await (const id of model.generate(ids, options)) {
    made += 1;
    out.textContent += `${id} `;
    const now = performance.now();
    if (made === 1) {
      first = now;
      const seconds = (now - start) / 1000;
      element("prefill").textContent = `${seconds.toFixed(2)} s, ${(ids.length / seconds).toFixed(1)} tokens/s`;
    } else {
      element("decode").textContent = `${((1000 * (made - 1)) / (now - first)).toFixed(1)} tokens/s`;
    }
    element("memory").textContent = megabytes(gpu.used);
    if (stopped) break;
  }
  show("done", `${made} ${made === 1 ? "token" : "tokens"}`);
}

element("stop").addEventListener("click", () => {
  stopped = true;
});
element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  stopped = false;
  const [begin, stop] = [element<HTMLButtonElement>("generate"), element<HTMLButtonElement>("stop")];
  begin.disabled = true;
  stop.disabled = false;
  generate()
    .catch((error: Error) => show("failed", `${error.name}: ${error.message}`))
    .finally(() => {
      begin.disabled = false;
      stop.disabled = true;
    });
});

for (const [name, value] of new URLSearchParams(location.search)) {
  const input = document.getElementById(name);
  if (input instanceof HTMLInputElement) input.value = value;
}
