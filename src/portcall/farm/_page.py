# SPDX-License-Identifier: Apache-2.0
"""The farm's pages and its figures for Prometheus, as text. No I/O here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from portcall.bench import format_size
from portcall.farm._model import Event
from portcall.farm._state import State

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2a7d3a; --busy: #1f6fb5; --bad: #b3372c; --dim: #888; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem }
header { display: flex; gap: 1rem; align-items: baseline; flex-wrap: wrap } header span { color: var(--dim) }
table { border-collapse: collapse; width: 100% } th { text-align: left; color: var(--dim); font-weight: 500 }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.idle, .good, .active { color: var(--good) } .leased, .offered, .queued { color: var(--busy) }
.offline, .quarantined, .bad, .suspect { color: var(--bad) } .unknown, .why { color: var(--dim) }
.stale main { opacity: .45 } a { color: inherit } p.none { color: var(--dim) }
@media (max-width: 640px) {
  thead { display: none } tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0 }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0; text-align: right }
  td::before { content: attr(data-name); color: var(--dim); text-align: left } td.number { text-align: right }
  td:empty, td[data-name=fact] { display: none }
}
"""
_SCRIPT = """
const live = new EventSource("/events");
const state = document.getElementById("live");
live.onmessage = (event) => {
  document.querySelector("main").innerHTML = JSON.parse(event.data);
  document.body.classList.remove("stale");
  state.textContent = "live";
};
live.onerror = () => {
  document.body.classList.add("stale");
  state.textContent = "not connected; this is old";
};
"""


def page(title: str, main: str, live: bool = False) -> str:
    """Return a whole page; a live one follows the farm."""
    script = f"<script>{_SCRIPT}</script>" if live else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f'<body><header><h1><a href="/">{escape(title)}</a></h1><span id="live"></span>'
        f'<span><a href="/history">history</a></span></header><main>{main}</main>{script}</body></html>'
    )


def login() -> str:
    """Return the page that asks for a token."""
    form = (
        '<form method="post" action="/login"><p>This farm needs a token.</p>'
        '<p><input name="token" type="password" autofocus> <button>open</button></p></form>'
    )
    return page("portcall farm", form)


def pairing(code: str) -> str:
    """Return the page to which a scanned code leads."""
    form = (
        f'<form method="post" action="/pair"><input type="hidden" name="code" value="{escape(code)}">'
        "<p>Let this browser see the farm? The code is good once.</p><p><button>yes</button></p></form>"
    )
    return page("portcall farm", form)


def table(names: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> str:
    """Return a table of cells that are HTML already; on a phone each row is a block, that of a fact one line."""
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-name="{row[0] if name == "value" else name}">{cell}</td>'
            for name, cell in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return f'<p class="none">{escape(none)}</p>'
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def overview(status: dict[str, Any]) -> str:
    """Return the places, leases and waiting requests."""
    now = status["now"]
    places = [
        (
            f'<a href="/place/{quote(p["place"], safe="")}">{escape(p["place"])}</a>',
            escape(", ".join(p["keys"])),
            f"<span>{coloured(p['state'])} {age(now - p['since'])}</span>",
            coloured("drained" if p["drain"] else p["health"]),
            escape(p["user"] or p["health_reason"] or p["cause"]),
        )
        for p in sorted(status["places"], key=lambda p: p["place"])
    ]
    leases = [
        (
            *(escape(x[name]) for name in ("place", "user", "want")),
            age(now - x["since"]),
            str(x["sessions"]),
            escape(x["lease"]),
        )
        for x in status["leases"]
    ]
    waiting = [
        (str(x["position"]), escape(x["user"]), escape(x["want"]), age(now - x["created"]), escape(x["why"]))
        for x in status["waiting"]
    ]
    return (
        "<h2>Places</h2>"
        + table(("place", "keys", "state", "health", "user, or why"), places, "no place has registered yet")
        + "<h2>Leases</h2>"
        + table(("place", "user", "asked for", "for", "sessions", "lease"), leases, "nobody has a place")
        + f"<h2>Waiting ({status['waiting_total']})</h2>"
        + table(("", "user", "for", "since", "because"), waiting, "nobody waits")
    )


def place_page(place: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """Return all that is known of a place, and what happened to it."""
    health = "drained" if place["drain"] else place["health"]
    facts = {
        "keys": ", ".join(place["keys"]),
        "state": f"{place['state']} since {clock(place['since'])} ({place['cause']})",
        "health": f"{health} since {clock(place['health_since'])}" if place["health_since"] else health,
        "why": place["health_reason"],
        "user": place["user"],
        "lease": place["lease"],
        "address": place["address"],
        "served by": place["peer"],
        "fence": str(place["fence"]),
        "last passed check": clock(place["checked"]) if place["checked"] else "",
    }
    for name, value in place["tags"].items():
        size = name == "ram" and isinstance(value, int)
        facts[f"tag {name}"] = format_size(value) if size else str(value)
    rows = [(escape(name), escape(value)) for name, value in facts.items() if value]
    return f"<h2>{escape(place['place'])}</h2>" + table(("fact", "value"), rows, "") + history(events)


def history(events: list[dict[str, Any]]) -> str:
    """Return what happened, the latest first."""
    rows = [
        (clock(e["time"]), escape(e["what"]), escape(e["place"]), escape(e["user"]), escape(e["detail"]))
        for e in reversed(events)
    ]
    return "<h2>History</h2>" + table(("time", "what", "place", "user", "why"), rows, "nothing has happened yet")


def coloured(word: str) -> str:
    return f'<b class="{escape(word)}">{escape(word)}</b>'


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def age(seconds: float) -> str:
    """Return a time in the largest unit that fits."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


class Figures:
    """Counts what happens, and writes it as Prometheus reads it."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._happened: Counter[str] = Counter()
        self._waits = 0.0
        self._granted = 0
        self._queued: dict[str, float] = {}

    def watch(self, events: list[Event]) -> None:
        """Take note of the events of a turn."""
        for event in events:
            self._happened[event.what] += 1
            if event.what == "lease queued":
                self._queued.setdefault(event.lease, event.time)
            elif event.what == "lease active":
                self._waits += event.time - self._queued.pop(event.lease, event.time)
                self._granted += 1
            elif event.what == "lease ended":
                self._ended[event.detail.partition(" by ")[0].partition(":")[0]] += 1
                self._queued.pop(event.lease, None)

    def text(self, state: State, passed: int, pairs: int, counts: Mapping[tuple[str, str], int]) -> str:
        """Return all figures; ``counts`` has counters of others, by name and labels."""
        places = Counter((p.state, "drained" if p.drain else p.health) for p in state.places.values())
        leases = Counter(lease.state for lease in state.leases.values())
        oldest = min((x.created for x in state.leases.values() if x.state == "queued"), default=state.now)
        lines = ["# TYPE portcall_farm_places gauge"]
        lines += [f'portcall_farm_places{{state="{s}",health="{h}"}} {n}' for (s, h), n in sorted(places.items())]
        lines += ["# TYPE portcall_farm_leases gauge"]
        lines += [f'portcall_farm_leases{{state="{s}"}} {leases[s]}' for s in ("queued", "offered", "active")]
        lines += ["# TYPE portcall_farm_oldest_wait_seconds gauge"]
        lines += [f"portcall_farm_oldest_wait_seconds {state.now - oldest:.3f}"]
        lines += ["# TYPE portcall_farm_wait_seconds summary", f"portcall_farm_wait_seconds_sum {self._waits:.6f}",
                  f"portcall_farm_wait_seconds_count {self._granted}"]  # fmt: skip
        lines += ["# TYPE portcall_farm_leases_ended counter"]
        lines += [f'portcall_farm_leases_ended_total{{reason="{r}"}} {n}' for r, n in sorted(self._ended.items())]
        lines += ["# TYPE portcall_farm_events counter"]
        lines += [f'portcall_farm_events_total{{what="{w}"}} {n}' for w, n in sorted(self._happened.items())]
        lines += ["# TYPE portcall_farm_proxied_bytes counter", f"portcall_farm_proxied_bytes_total {passed}"]
        lines += ["# TYPE portcall_farm_proxied_sessions counter", f"portcall_farm_proxied_sessions_total {pairs}"]
        for name in sorted({name for name, _ in counts}):
            lines += [f"# TYPE {name} counter"]
            lines += [f"{name}_total{labels} {n}" for (of, labels), n in sorted(counts.items()) if of == name]
        return "\n".join(lines) + "\n# EOF\n"
