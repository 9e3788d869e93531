# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="union-attr"
"""What tests of the state machine share: a farm without I/O whose agents answer, or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portcall.farm._model import Effect, Event, Lease, Rules
from portcall.farm._state import State


def numbered() -> Any:
    """Return a source of texts that are all different, in place of random ones."""
    counter: Iterator[int] = iter(range(1, 1 << 30))
    return lambda size: f"{next(counter):0{2 * size}x}"


class Desk:
    """A state with its effects taken out and kept: ``said`` is what was said since the last look."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.state = State(rules, numbered())
        self.claims = True  # holders show that they are there once they have a place
        self.events: list[Event] = []
        self.ended: dict[str, Lease] = {}
        self.stored: dict[str, Any] = {}

    def take(self) -> list[Effect]:
        """Return the effects so far, and keep what is to be stored."""
        effects, self.state.effects = self.state.effects, []
        self.events += self.state.events
        self.state.events = []
        for record in self.state.changed:
            self.stored[record.id] = record.to_dict()
            if isinstance(record, Lease) and record.state == "ended":
                self.ended[record.id] = record
                del self.stored[record.id]
        self.state.changed = {}
        for id in self.state.forgotten:
            self.stored.pop(id, None)
        self.state.forgotten = []
        return effects

    def answer(self) -> list[Effect]:
        """Let all agents accept and clean up at once, until nothing is left to say; return all that was said."""
        said = []
        while effects := self.take():
            said += effects
            for effect in effects:
                if effect.what == "offer":
                    self.state.accepted(effect.place.id, effect.place.fence)
                elif effect.what == "end" and effect.place.peer == "portcall":
                    self.state.cleaned(effect.place.id, effect.fence)
                elif effect.what == "granted" and effect.lease.peer == "portcall" and self.claims:
                    self.state.heard(effect.lease.id)
        return said

    def pass_time(self, seconds: float) -> list[Effect]:
        """Let time pass, deadline by deadline, with agents that answer."""
        until = self.state.now + seconds
        said = self.answer()
        while (due := self.state.next_deadline()) is not None and due <= until:
            self.state.advance(max(due, self.state.now))
            said += self.answer()
        self.state.advance(until)
        return said + self.answer()
