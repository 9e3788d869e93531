# SPDX-License-Identifier: Apache-2.0
"""The commands of portcall's peers: JSON objects with a ``do``, answered by one object each. They come in by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from portcall.farm._access import Access, Token, roles_for
from portcall.farm._agents import Agents
from portcall.farm._command import ApiError, Command
from portcall.farm._hub import Hub
from portcall.farm._leases import Leases
from portcall.farm._model import Refused
from portcall.farm._news import NewsOf
from portcall.farm._places import Places
from portcall.farm._store import StoreError
from portcall.farm._tokens import Tokens
from portcall.farm._views import Views
from portcall.rpc.wire._texts import is_lease

NOT_STORED = "the farm cannot write its store, and has changed nothing: ask again later"
_Answer = dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]


class Api:
    """Answers commands.

    Parameters:
        hub: the farm.
        access: who may do what.
    """

    def __init__(self, hub: Hub, access: Access) -> None:
        self.hub = hub
        self.access = access
        self.views = Views(hub)
        news = NewsOf()
        self.agents = agents = Agents(hub, access, self.views, news)
        places = Places(hub, access, self.views, agents)
        self.leases = leases = Leases(hub, access, self.views, agents, places, news)
        self._tokens = tokens = Tokens(hub, access, self.views)
        self._commands: dict[str, Callable[[Command, Token], _Answer]] = {
            "request": leases.request, "check": leases.check, "wait": leases.wait, "session": leases.session,
            "renew": leases.renew, "extend": leases.extend, "checked": leases.checked,
            "keep": leases.keep, "release": leases.release, "kick": leases.kick, "lease": leases.show,
            "drain": places.change, "undrain": places.change, "maintain": places.change, "good": places.change,
            "quarantine": places.change, "retire": places.change, "hand-over": places.hand_over,
            "register": agents.register, "next": agents.next, "report": agents.take_reports, "leave": agents.leave,
            "token-make": tokens.make, "token-list": tokens.list, "token-revoke": tokens.revoke, "pair": tokens.pair,
            "status": self._status, "history": self._history, "backup": self._backup,
        }  # fmt: skip

    async def call(self, fields: Mapping[str, Any], token: str) -> dict[str, Any]:
        """Answer one command.

        Raises:
            ApiError: it is refused; the message says why.
        """
        command = Command(fields)
        try:
            if command.name == "redeem":
                return self._tokens.redeem(command)
            caller = self.access.caller(token, command.text("user", ""))
            if caller is None:
                raise ApiError(self.access.why_not(token), "token", 401)
            act = self._commands.get(command.name)
            if act is None:
                raise ApiError(f"there is no command {command.name[:40]!r}", "invalid")
            if not caller.may(command.name):
                roles = " and ".join(roles_for(command.name))
                what = "a request for a place" if command.name == "request" else f"'{command.name}'"
                raise ApiError(f"{what} is for {roles}, not for the role {caller.role}", "role", 403)
            answer = act(command, caller)
            if not asyncio.iscoroutine(answer):
                return dict(answer)
            found = dict(await answer)
            if token and self.access.caller(token, "") is None:  # it counts no more since the answer was held back
                raise ApiError(self.access.why_not(token), "token", 401)
            return found
        except ApiError:
            raise
        except Refused as refused:
            raise ApiError(str(refused), refused.reason, 409) from None
        except StoreError:
            raise ApiError(NOT_STORED, "store", 503) from None
        except (ValueError, TypeError) as error:
            raise ApiError(str(error), "invalid") from None

    def _status(self, command: Command, caller: Token) -> dict[str, Any]:
        return self.views.status()

    async def _history(self, command: Command, caller: Token) -> dict[str, Any]:
        place, lease, user = (command.text(name, "") for name in ("place", "lease", "of"))
        limit = int(command.number("limit", 100, 1, 10_000))
        if lease and not is_lease(lease):
            return {"events": []}
        return {"events": await self.hub.history(place=place, lease=lease, user=user, limit=limit)}

    async def _backup(self, command: Command, caller: Token) -> dict[str, Any]:
        """Let the farm write a copy beside its store."""
        path, size = await asyncio.to_thread(self.hub.store.backup)
        self.hub.note("backup made", caller.user, path)
        return {"path": path, "nbytes": size}
