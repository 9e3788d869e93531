# SPDX-License-Identifier: Apache-2.0
"""The commands that change places: their health, whether they are drained, and whose they are."""

from __future__ import annotations

from typing import Any

from portcall.farm._access import Access, Token
from portcall.farm._agents import Agents
from portcall.farm._command import ApiError, Command
from portcall.farm._hub import Hub
from portcall.farm._model import Place
from portcall.farm._views import Views


class Places:
    """The places of a farm."""

    def __init__(self, hub: Hub, access: Access, views: Views, agents: Agents) -> None:
        self._hub = hub
        self._access = access
        self._views = views
        self._agents = agents

    def find(self, command: Command) -> Place:
        """Return the place that a command names.

        Raises:
            ApiError: there is none.
        """
        id = command.text("place")
        place = self._hub.state.places.get(id)
        if place is None:
            raise ApiError(f"there is no place {id!r}", "unknown", 404)
        return place

    def change(self, command: Command, caller: Token) -> dict[str, Any]:
        """Do what the command's name says."""
        place, what = self.find(command), command.name
        why = command.text("why", "")
        seconds = command.number("seconds", 0, 0, 1e9)
        with self._hub.turn() as state:
            if what in ("drain", "undrain"):
                state.drain(place.id, what == "drain", caller.user)
            elif what == "quarantine":
                state.set_health(place.id, "quarantined", why, caller.user, state.now + seconds if seconds else 0)
            elif what == "maintain":
                state.set_health(place.id, "maintenance", why, caller.user)
            else:
                state.set_health(place.id, "good" if what == "good" else "retired", why, caller.user)
        return self._views.place(place)

    def hand_over(self, command: Command, caller: Token) -> dict[str, Any]:
        """Let another user serve a place from now on."""
        place, user = self.find(command), command.text("to")
        if not self._access.required or place.peer == "TVM":
            raise ApiError(f"{place.id} has no owner: it was registered without a token", "invalid")
        if user not in self._access.users():
            raise ApiError(f"{user!r} has no token", "unknown-user", 404)
        with self._hub.turn() as state:
            place.owner = user
            state.changed[place] = None
            state.note("place handed over", place=place.id, user=caller.user, detail=f"to {user}")
        self._agents.hand_over(place, user)
        return self._views.place(place)
