# SPDX-License-Identifier: Apache-2.0
"""How the farm's pages look, and the script by which they follow the farm. Browsers run and apply nothing else."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root {
  color-scheme: light dark; --text: #1f2429; --dim: #68717c; --line: #e2e5e9; --card: #fff; --back: #f5f6f8;
  --link: #255f8f; --free: #5b9b76; --used: #6f8fb3; --none: #b4bbc3; --warn: #8a5a00; --bad: #b3261e;
  --u0: #3f7cac; --u1: #b0693a; --u2: #7a5ba6; --u3: #2f8f83; --u4: #b5537b; --u5: #86772a; --many: #6d7a88;
  --idle: #cfe6d8; --out: #f0c95a; --away: #c3c9d0; --empty: #f5f6f8;
}
@media (prefers-color-scheme: dark) { :root {
  --text: #e3e6e9; --dim: #98a1ab; --line: #2e343b; --card: #1b1f24; --back: #13161a;
  --link: #86b6dd; --free: #5f9f7b; --used: #7f9fc4; --none: #59626c; --warn: #d9a441; --bad: #f07a70;
  --u0: #5d9ccf; --u1: #cf8a58; --u2: #9f83cc; --u3: #4fb3a6; --u4: #d1769c; --u5: #a8993f; --many: #8794a3;
  --idle: #24412f; --out: #8a6b1f; --away: #434b54; --empty: #13161a;
} }
* { box-sizing: border-box }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 76rem; padding: 1rem 1.25rem 3rem }
a { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
header { display: flex; gap: .3rem 1.1rem; align-items: center; flex-wrap: wrap; min-height: 2.2rem }
header h1 { font-size: 1.1rem; margin: 0 } header h1 a { color: inherit } header .who { margin-left: auto }
#live, .who { color: var(--dim) }
form { display: inline } input, button { font: inherit; color: inherit; border-radius: 6px; padding: .3rem .7rem }
button { background: var(--card); border: 1px solid var(--line); cursor: pointer; white-space: nowrap }
button:hover { border-color: var(--dim) } header button { margin-left: .6rem; font-size: .85rem }
input { background: var(--back); border: 1px solid var(--dim); max-width: 100% }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden }
.note { padding: 1rem 1.1rem; margin: 1rem 0; max-width: 38rem } .note p { margin: .3rem 0 .8rem }
.note form { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .6rem 0 0 }
.note input { flex: 1 1 14rem }
.sum { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: .5rem 0 0; color: var(--dim) }
.sum b { color: var(--text); font-weight: 600 } .sum .bad b, .sum .bad { color: var(--bad) }
h2 { font-size: 1rem; margin: 1.5rem 0 .5rem } h2 small { color: var(--dim); font-weight: 400; margin-left: .3rem }
table { border-collapse: separate; border-spacing: 0; width: 100%; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px }
th { text-align: left; color: var(--dim); font-weight: 500; font-size: .85rem; white-space: nowrap }
h2, td { overflow-wrap: anywhere } td { min-width: 7rem } td.num, td.go { min-width: 0 }
th, td { padding: .5rem .5rem; vertical-align: top; border-top: 1px solid var(--line) } thead th { border-top: 0 }
th:first-child, td:first-child { padding-left: 1rem } th:last-child, td:last-child { padding-right: 1rem }
td.go { text-align: right } td.go button { padding: .1rem .6rem; font-size: .9rem }
td.num, td time { white-space: nowrap }
.left, .num { font-variant-numeric: tabular-nums } .dim, p.none, td time { color: var(--dim) }
p.none { margin: .2rem 0 }
td.tags { color: var(--dim); font-size: .87rem; line-height: 1.6 } .facts td:first-child { width: 12rem }
.facts tr:first-child td { border-top: 0 } .note > form:first-child { margin: 0 }
.key { display: inline-block; line-height: 1.35; color: var(--text);
  border: 1px solid var(--line); border-radius: 5px; padding: 0 .35rem; margin-right: .35rem }
b.state { font-weight: 500; white-space: nowrap }
b.state::before { content: ""; display: inline-block; width: .55rem; height: .55rem; border-radius: 50%;
  background: var(--none); margin-right: .45rem }
b.free::before { background: var(--free) } b.used::before { background: var(--used) }
b.warn, .warn { color: var(--warn) } b.warn::before { background: var(--warn) }
b.bad, .bad { color: var(--bad) } b.bad::before { background: var(--bad) }
svg.day { display: block; width: 100%; height: 1.1rem; background: var(--empty); border-radius: 3px; margin-top: .2rem }
svg.day path { shape-rendering: crispEdges } path.tick { stroke: var(--card); vector-effect: non-scaling-stroke }
.u0 { fill: var(--u0); background: var(--u0) } .u1 { fill: var(--u1); background: var(--u1) }
.u2 { fill: var(--u2); background: var(--u2) } .u3 { fill: var(--u3); background: var(--u3) }
.u4 { fill: var(--u4); background: var(--u4) } .u5 { fill: var(--u5); background: var(--u5) }
.many { fill: var(--many); background: var(--many) } i.idle { background: var(--idle) }
path.out { fill: var(--out) } i.out { background: var(--out) } path.offline { fill: var(--away) }
i.offline { background: var(--away) } path.idle { fill: var(--idle) }
.axis { display: flex; justify-content: space-between; margin: 0; font-size: .75rem; font-weight: 400 }
.axis span { flex: 1 0 0; width: 0 } .axis span:last-child { flex: 0 0 auto; width: auto } td.days { width: 26% }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .5rem 0 0; font-size: .87rem; color: var(--dim) }
.legend span { overflow-wrap: anywhere } .legend i { display: inline-block; width: .75rem; height: .75rem;
  border-radius: 3px; margin-right: .4rem; vertical-align: -.06rem }
div.day { padding: .7rem 1rem } div.day svg { height: 2rem }
.commands { padding: .2rem 1rem; margin: 1rem 0 } .commands p { display: flex; gap: .7rem; align-items: center;
  margin: .5rem 0 } .commands code { font-size: .87rem; overflow-wrap: anywhere; flex: 1 1 0; min-width: 0 }
.commands button, .actions button { padding: .15rem .7rem; font-size: .9rem }
.actions form { display: inline-flex; margin: 0 .5rem 0 0 }
.actions > form:first-child { margin: 0 .5rem 0 0 }
.actions > form:has(input) { display: flex; margin: .6rem 0 0 } .actions { max-width: none }
.curve { padding: .5rem .8rem; margin: .5rem 0; max-width: 44rem } .curve p { margin: 0; overflow-wrap: anywhere }
.curve svg { display: block; width: 100%; height: auto } .curve text { fill: var(--dim); font-size: 12px }
.curve .m { text-anchor: middle } .curve .e { text-anchor: end } .curve path { fill: none; stroke-linecap: round }
.curve .g, .curve .ci { stroke: var(--line) } .curve .ci { stroke-width: 4 } .curve .l { stroke: var(--used) }
.curve .d, .curve .d2 { stroke: var(--link); stroke-width: 7 } .curve .d2 { stroke: var(--warn) }
.pages { display: flex; gap: 1.1rem } .stale main { opacity: .5 }
@media (max-width: 640px) {
  body { padding: .7rem .8rem 2rem } header .who { margin-left: 0 }
  table { border: 0; background: none } thead { display: none } tbody { display: grid; gap: .5rem }
  tr { display: flex; flex-wrap: wrap; gap: .1rem .8rem; align-items: baseline; background: var(--card);
    border: 1px solid var(--line); border-radius: 10px; padding: .6rem .8rem }
  th, td, th:first-child, td:first-child, th:last-child, td:last-child { padding: 0; border: 0 }
  td { min-width: 0 } td:empty { display: none } td.wide { flex: 1 1 100% } td:first-child { flex: 1 1 55% }
  td.go { margin-left: auto } .commands p { flex-wrap: wrap } .commands code { flex: 1 1 100% }
  td[data-name]::before { content: attr(data-name) " "; color: var(--dim) }
  .facts tbody { gap: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px }
  .facts tr { border: 0; background: none; border-bottom: 1px solid var(--line); border-radius: 0; display: grid;
    gap: .6rem; grid-template-columns: 8rem 1fr; padding: .4rem .8rem } .facts tr:last-child { border: 0 }
}
"""

SCRIPT = """
const state = document.getElementById("live"), main = document.querySelector("main");
let waiting = "", since = performance.now();
const two = (n) => String(n).padStart(2, "0");
function count() {
  for (const e of document.querySelectorAll("[data-left]")) {
    const left = Math.max(0, Math.round(e.dataset.left - (performance.now() - since) / 1000));
    const h = Math.floor(left / 3600), m = Math.floor(left / 60) % 60;
    e.textContent = (h ? h + ":" + two(m) : m) + ":" + two(left % 60);
  }
}
function show() {  // not while somebody presses a button
  if (!waiting || main.matches(":active")) return;
  const had = document.activeElement?.closest("form")?.action;
  main.innerHTML = waiting;
  waiting = "";
  if (had) [...main.querySelectorAll("form")].find((form) => form.action === had)?.querySelector("button").focus();
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const line = button.previousElementSibling, text = line.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // which is so where the page comes without TLS
    getSelection().selectAllChildren(line);
    document.execCommand("copy");
  }
  button.textContent = "copied";
});
setInterval(() => { show(); count(); }, 1000);
if (document.body.dataset.live) {
  const live = new EventSource("/events");
  live.onmessage = (event) => {
    waiting = JSON.parse(event.data);
    since = performance.now();
    show();
    count();
    document.body.classList.remove("stale");
    state.textContent = "live";
  };
  live.addEventListener("over", () => location.reload());
  live.onerror = () => {
    document.body.classList.add("stale");
    state.textContent = "not connected; this is old";
    if (live.readyState !== EventSource.CLOSED) return;
    state.textContent = "not live: reload the page";
    fetch(location.href).then((answer) => answer.status === 401 && location.reload(), () => 0);
  };
}
"""


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_hash(STYLE)}'; "
    f"script-src 'sha256-{_hash(SCRIPT)}'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer, which makes browsers say `Origin: null` with the farm's own forms.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
