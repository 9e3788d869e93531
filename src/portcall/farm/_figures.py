# SPDX-License-Identifier: Apache-2.0
"""The farm's figures for Prometheus, as text. No I/O here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from portcall.farm._model import Event
from portcall.farm._state import State


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
