# SPDX-License-Identifier: Apache-2.0
"""How a report looks: light, dark, on paper, and on a screen of 400 pixels."""

STYLE = """
:root { color-scheme: light dark; --text: #1f2429; --dim: #5d6670; --line: #dde1e6; --card: #fff; --back: #f5f6f8;
  --one: #255f8f; --two: #b5610c; --band: #255f8f22; --good: #1e7a46; --bad: #b3261e; --open: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --text: #e3e6e9; --dim: #98a1ab; --line: #333a42; --card: #1b1f24;
  --back: #13161a; --one: #86b6dd; --two: #e6a15c; --band: #86b6dd26; --good: #6fc796; --bad: #f07a70;
  --open: #d9a441 } }
@media print { :root { color-scheme: light; --text: #000; --dim: #444; --line: #ccc; --card: #fff; --back: #fff;
  --one: #255f8f; --two: #b5610c; --band: #255f8f22; --good: #1e7a46; --bad: #b3261e; --open: #8a5a00 } }
* { box-sizing: border-box }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 72rem; padding: 1rem 1.25rem 2rem }
article + article { border-top: 2px solid var(--line); margin-top: 2rem; padding-top: 1rem }
h1 { font-size: 1.15rem; margin: .4rem 0; overflow-wrap: anywhere } h2 { font-size: 1rem; margin: 1.4rem 0 .4rem }
.verdict { font-size: 1.25rem; line-height: 1.35; font-weight: 600; margin: .4rem 0 1rem; overflow-wrap: anywhere }
.verdict span { display: inline-block; min-width: 1.2em } .good { color: var(--good) } .bad { color: var(--bad) }
.open { color: var(--open) }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .5rem; margin: 0 0 1rem }
.figures div, figure, .findings li, table { background: var(--card); border: 1px solid var(--line); border-radius: 8px }
.figures div { padding: .4rem .7rem } dt, figcaption, small, footer { color: var(--dim); font-size: .85rem }
dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: .6rem }
figure { margin: 0; padding: .5rem .6rem } svg { display: block; width: 100%; height: auto }
.findings { list-style: none; padding: 0; margin: 0 0 1rem; display: grid; gap: .5rem }
.findings li { padding: .5rem .7rem }
table { border-collapse: collapse; width: 100%; margin: .3rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .7rem; vertical-align: top; overflow-wrap: anywhere }
th { color: var(--dim); font-weight: 500; overflow-wrap: break-word } td.n { text-align: right; white-space: nowrap }
.bars { width: 40% }
.bars i { display: block; height: .7rem; background: var(--one); border-radius: 3px; margin-top: .3rem }
details { margin-top: 1.2rem } summary { cursor: pointer } .wide { overflow-x: auto } .small { font-size: .75rem }
footer { margin-top: 2rem }
svg text { fill: var(--dim); paint-order: stroke;
  stroke: var(--card); stroke-width: 3px; font-size: 13px }
svg .m { text-anchor: middle } svg .e { text-anchor: end }
.g, .m1, .w, .l, .d, .d2, .ci { fill: none; stroke-linecap: round } .g { stroke: var(--line) } .b { fill: var(--band) }
.l { stroke: var(--one); stroke-width: 2 } .m1 { stroke: var(--dim); stroke-dasharray: 1 5 }
.w { stroke: var(--two); stroke-width: 1.5; stroke-dasharray: 6 4 } .ci { stroke: var(--text); stroke-width: 5 }
.d, .d2 { stroke: var(--one); stroke-width: 6; stroke-opacity: .75 } .d2 { stroke: var(--two) }
.many { stroke-width: 1.5 } .some { stroke-width: 3 } .bar { stroke-width: 7; stroke-linecap: butt }
@media print { body { padding: 0; max-width: none } figure, .findings li, .figures div { break-inside: avoid }
  details { display: none } .d, .d2, .l, .bars i, .b { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
@media (max-width: 480px) { body { padding: .6rem .7rem 1.5rem } .verdict { font-size: 1.1rem }
  th, td { padding: .25rem .4rem }
  svg text { font-size: 16px } .figures { grid-template-columns: 1fr 1fr } }
"""
