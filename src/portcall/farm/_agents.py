# SPDX-License-Identifier: Apache-2.0
"""The commands of the agents of places: they register, ask for orders again and again, report, and leave.

A question is answered when there is an order, or after a while. An agent that asks no more loses its place.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import Any

from portcall.farm._access import Access, Token
from portcall.farm._command import HOLD, ApiError, Command, check_keys
from portcall.farm._hub import Hub
from portcall.farm._model import Effect, Place
from portcall.farm._news import News, NewsOf
from portcall.farm._state import State
from portcall.farm._views import Views
from portcall.rpc.wire._farm import (
    Accepted,
    Admit,
    Admitted,
    Cleaned,
    Closed,
    Declined,
    End,
    Ended,
    Offer,
    Opened,
    Order,
    Report,
    read_report,
    write,
)
from portcall.rpc.wire._texts import check_facts

AGENT_SILENCE = 10.0  # seconds between two questions of an agent
_MOST_PLACES = 2000  # of one user


class Agent:
    """The agent of a place, between two of its questions."""

    def __init__(self, instance: str, user: str) -> None:
        self.secret = secrets.token_hex(16)
        self.instance, self.user = instance, user
        self.asked = 0  # questions, the last of which counts
        self.orders: list[Order] = []
        self.news = News()
        self.silence: asyncio.TimerHandle | None = None
        self.admitted: dict[str, News] = {}

    def order(self, effect: Effect) -> None:
        """Keep an effect for the next answer."""
        lease, place = effect.lease, effect.place
        assert place is not None
        if effect.what == "end":
            self.orders.append(
                End(effect.fence, lease.reason, lease=lease.id, user=lease.user)
                if lease is not None
                else End(effect.fence, "lease is over")
            )
        elif lease is not None:
            order = Offer if effect.what == "offer" else Admit
            key = effect.key or lease.match_key
            self.orders.append(order(lease.fence, key, lease.ceiling, lease.relay, lease=lease.id, user=lease.user))
        self.news.tell()

    async def admits(self, key: str, seconds: float) -> bool:
        """Wait until the agent says that a client with this key may come in; return whether it did within the time."""
        told = self.admitted[key] = News()
        try:
            return await told.wait(seconds)
        finally:
            self.admitted.pop(key, None)


class Agents:
    """The agents of a farm.

    Parameters:
        leases: told of a lease whose place has an agent again.

    Attributes:
        here: those who speak for their places now, by place.
        lost: those whose connections have ended.
        ends: told of a place when something there has ended.
    """

    def __init__(self, hub: Hub, access: Access, views: Views, leases: NewsOf) -> None:
        self._hub = hub
        self._access = access
        self._views = views
        self._leases = leases
        self.here: dict[str, Agent] = {}
        self.lost: dict[str, Agent] = {}
        self.ends = NewsOf()

    def register(self, command: Command, caller: Token) -> dict[str, Any]:
        id, keys, tags = command.text("place"), command.texts("keys", "key"), command.get("tags", {})
        if not keys:
            raise ValueError("a place needs at least one key")
        check_keys(caller, keys, whole=True)
        check_facts(keys, tags)
        what: dict[str, Any] = {
            "host": command.text("host", ""), "port": int(command.number("port", 0, 0, 65535)),
            "fence": int(command.number("fence", 0, 0, 1e15)), "sessions": command.texts("sessions", "session"),
            "patience": command.number("patience", 0, 0, 86400), "limited": bool(caller.keys),
        }  # fmt: skip
        known, instance = self._hub.state.places.get(id), command.text("instance", "")
        if known is not None and known.peer == "TVM":
            raise ValueError(f"the name {id!r} is that of a TVM server")
        owner, old = self._owner(caller, known), self.here.get(id)
        if old is not None and old.instance != instance:  # it was heard within AGENT_SILENCE
            text = f"another process serves the place {id!r}: give this one a different name (--place)"
            raise ApiError(text, "taken", 409)
        with self._hub.turn() as state:
            place = state.register(id, keys, tags, **what)
            place.owner = owner or place.owner
            self._drop(id)
            agent = self.here[id] = Agent(instance, owner)
            self._hub.agents[id] = agent.order
        self._expect(id, agent)
        self._leases.tell(self._hub.state.places[id].lease)  # its holder may wait for another session
        return {"agent": agent.secret, "hold": HOLD, "place": self._views.place(self._hub.state.places[id])}

    def _owner(self, caller: Token, place: Place | None) -> str:
        """Return who owns a place that a caller serves; empty on a farm without tokens, where users are not known.

        Raises:
            ApiError: it is somebody else's.
        """
        if not self._access.required:
            return ""
        if place is not None and place.owner and place.owner != caller.user:
            text = f"the place {place.id!r} is served by {place.owner}: give this one a different name (--place)"
            raise ApiError(f"{text}; an admin may say: portcall farm hand-over {place.id} {caller.user}", "taken", 409)
        if place is None and sum(p.owner == caller.user for p in self._hub.state.places.values()) >= _MOST_PLACES:
            raise ApiError(f"{caller.user} serves {_MOST_PLACES} places already: retire some", "invalid")
        return caller.user

    def hand_over(self, place: Place, user: str) -> None:
        """Let go of the agent of a place that another user serves from now on."""
        agent = self.here.get(place.id)
        if agent is not None and agent.user != user:
            self._drop(place.id)
            self._set_lost(place.id, f"handed over to {user}")

    def _proves(self, agent: Agent | None, command: Command, caller: Token) -> bool:
        if agent is None or agent.user not in ("", caller.user):
            return False
        return hmac.compare_digest(agent.secret.encode(), command.text("agent").encode())

    def _agent_of(self, command: Command, caller: Token) -> tuple[str, Agent]:
        id = command.text("place")
        agent = self.here.get(id)
        if agent is None or id not in self._hub.agents or not self._proves(agent, command, caller):
            raise ApiError(f"the place {id!r} is not registered by you", "register", 409)
        return id, agent

    def take_reports(self, command: Command, caller: Token) -> dict[str, Any]:
        """Take what an agent has done, all of it or nothing."""
        id, agent = self._agent_of(command, caller)
        reports = [read_report(report) for report in command.items("done")]
        with self._hub.turn() as state:
            for report in reports:
                _take(state, id, report)
        for report in reports:
            if isinstance(report, Admitted) and report.key in agent.admitted:
                agent.admitted[report.key].tell()
        self.ends.tell(id)
        return {}

    async def next(self, command: Command, caller: Token) -> dict[str, Any]:
        """Take what an agent has done, and answer with what it is to do."""
        id, agent = self._agent_of(command, caller)
        hold = command.hold
        self.take_reports(command, caller)
        if agent.silence is not None:
            agent.silence.cancel()
        agent.asked += 1
        mine = agent.asked
        agent.news.tell()  # a question of before, whose connection may be dead, gets nothing
        try:
            if not agent.orders:
                await agent.news.wait(hold)
        except asyncio.CancelledError:  # its connection ended
            if agent.asked == mine:
                self.lose(id, agent, "its connection ended")
            raise
        if self.here.get(id) is not agent:
            raise ApiError(f"the place {id!r} was registered again", "register", 409)
        if agent.asked != mine:
            return {"orders": []}
        self._expect(id, agent)
        answer = {"orders": [write(order) for order in agent.orders]}
        agent.orders = []
        return answer

    def _expect(self, id: str, agent: Agent) -> None:
        loop = asyncio.get_running_loop()
        agent.silence = loop.call_later(AGENT_SILENCE, self.lose, id, agent, "its agent is silent")

    def lose(self, id: str, agent: Agent, why: str) -> None:
        """Take note that the agent of a place asks no more."""
        if self.here.get(id) is agent:
            self.lost[id] = self.here.pop(id)
            self._set_lost(id, why)

    def _set_lost(self, id: str, why: str) -> None:
        self._hub.agents.pop(id, None)
        self._hub.ensure(lambda state: state.lost(id, why))

    def _drop(self, id: str) -> None:
        """Forget the agent of a place, whose waiting answer goes out."""
        for agents in (self.here, self.lost):
            agent = agents.pop(id, None)
            if agent is not None:
                agent.news.tell()
                if agent.silence is not None:
                    agent.silence.cancel()

    def leave(self, command: Command, caller: Token) -> dict[str, Any]:
        id = command.text("place")
        agent = self.here.get(id) or self.lost.get(id)
        if self._proves(agent, command, caller):
            with self._hub.turn() as state:
                state.remove(id)
            self._drop(id)
        return {}


def _take(state: State, id: str, report: Report) -> None:
    if isinstance(report, Accepted):
        state.accepted(id, report.fence)
    elif isinstance(report, Declined):
        state.declined(id, report.fence, report.why)
    elif isinstance(report, Ended):
        place = state.places.get(id)
        if place is not None:
            place.quiet = min(report.fence, place.fence)
    elif isinstance(report, Cleaned):
        state.cleaned(id, report.fence, report.why)
    elif isinstance(report, Opened):
        state.session_opened(id, report.fence, report.session)
    elif isinstance(report, Closed):
        state.session_closed(id, report.fence, report.session, report.why)
