# SPDX-License-Identifier: Apache-2.0
"""The records as they were at the end of the last whole turn: what is stored, and what a failed turn goes back to.

A turn is whole once everything that it has changed is text that can be stored. Nothing of it is stored, and no one is
notified, before. One that fails leaves nothing, at whatever point it does.
"""

from __future__ import annotations

from portcall.farm._model import Effect, Event, Lease, Place, Rows, rows_of
from portcall.farm._state import State


class Image:
    """The last whole turn of a state.

    Attributes:
        rows: what is not stored yet.
        events, effects: of the turns since these were taken.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._texts: dict[tuple[str, str], tuple[Place | Lease, str]] = {}
        self.rows: Rows = {}
        self.events: list[Event] = []
        self.effects: list[Effect] = []

    def settle(self) -> None:
        """End a turn.

        Raises:
            ValueError: something that it has changed cannot be stored; the turn has failed.
        """
        state = self._state
        rows = rows_of(state.changed, state.forgotten)
        for event in state.events:
            f"{event.what}{event.place}{event.lease}{event.user}{event.detail}".encode()
        records = {(record.TABLE, record.id): record for record in state.changed}
        for name, text in rows.items():
            if text is None:
                self._texts.pop(name, None)
            else:
                self._texts[name] = records[name], text
        self.rows.update(rows)
        self.events += state.events
        self.effects += state.effects
        state.changed, state.forgotten, state.events, state.effects = {}, [], [], []
        state.queue.use.settle()

    def is_touched(self) -> bool:
        """Return whether the present turn is known to have changed something."""
        state = self._state
        return bool(state.changed or state.forgotten or state.events or state.effects)

    def undo(self) -> None:
        """Let the present turn not have been."""
        self._state.go_back(dict(self._texts.values()))
