# SPDX-License-Identifier: Apache-2.0
"""The commands that make, list, pass on and end tokens."""

from __future__ import annotations

import time
from typing import Any

from portcall.farm._access import Access, Token
from portcall.farm._command import ApiError, Command
from portcall.farm._hub import Hub
from portcall.farm._views import Views


class Tokens:
    """The tokens of a farm."""

    def __init__(self, hub: Hub, access: Access, views: Views) -> None:
        self._hub = hub
        self._access = access
        self._views = views

    def make(self, command: Command, caller: Token) -> dict[str, Any]:
        return {"token": self._access.make(caller.user, **_fields(command))}

    def list(self, command: Command, caller: Token) -> dict[str, Any]:
        return {"tokens": self._access.list()}

    def revoke(self, command: Command, caller: Token) -> dict[str, Any]:
        """End tokens, and name the leases that their users still have."""
        users = self._access.users()
        count = self._access.revoke(command.text("token-of"), caller.user)
        users -= self._access.users()
        left = [x for x in self._hub.state.leases.values() if x.user in users and x.peer == "portcall"]
        return {"revoked": count, "leases": [self._views.lease(lease) for lease in left]}

    def pair(self, command: Command, caller: Token) -> dict[str, Any]:
        """Make a code, with which a machine gets its token once."""
        return {"code": self._access.pair(by=caller.user, **_fields(command))}

    def redeem(self, command: Command) -> dict[str, Any]:
        """Give the token of a code to who has it."""
        try:
            return {"token": self._access.redeem(command.text("code"))}
        except ValueError as error:
            raise ApiError(str(error), "code", 403) from None


def _fields(command: Command) -> dict[str, Any]:
    days = command.number("days", 0, 0, 36500)
    return {
        "user": command.text("for"), "role": command.text("role", "user"), "keys": command.texts("keys", "key"),
        "most_leases": int(command.number("most_leases", 0, 0, 1e6)),
        "top_class": command.text("top_class", "normal"), "expires": time.time() + days * 86400 if days else 0,
    }  # fmt: skip
