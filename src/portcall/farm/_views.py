# SPDX-License-Identifier: Apache-2.0
"""What is shown of places, leases and waiting requests, to programs and on the pages."""

from __future__ import annotations

from typing import Any

from portcall.farm._hub import Hub
from portcall.farm._model import USABLE, Lease, Place
from portcall.farm._page import age

_NAMED = 5  # places that a waiting client hears of


class Views:
    """Shows a farm."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def lease(self, lease: Lease, secret: bool = False) -> dict[str, Any]:
        """Return what is shown of a lease; with ``secret`` its match key and its route, too."""
        state = self._hub.state
        shown: dict[str, Any] = {
            "lease": lease.id, "state": "offered" if lease.unclaimed else lease.state, "user": lease.user,
            "want": lease.want, "peer": lease.peer,
            "class": lease.class_, "priority": lease.priority, "created": lease.created, "since": lease.since,
            "place": lease.place, "fence": lease.fence, "sessions": len(lease.sessions), "ttl": lease.ttl,
            "expires": lease.expires, "ends_at": lease.ends_at, "now": state.now,
        }  # fmt: skip
        if lease.state == "ended":
            shown |= {"reason": lease.reason, "by": lease.by, "detail": lease.detail}
        elif lease.state == "queued":
            shown |= {"position": state.queue.position(lease), "why": self._why_waiting(lease)}
        place = state.places.get(lease.place)
        if secret and lease.state == "active" and place is not None:
            shown |= {"host": place.host, "port": place.port, "key": lease.match_key}
        return shown

    def _why_waiting(self, lease: Lease) -> str:
        """Say what a request waits for: who has each place that matches, since when, or why it is not handed out."""
        state = self._hub.state
        if state.queue.is_blocked(lease):
            return f"{lease.user} has {lease.most} lease{'s' if lease.most != 1 else ''} already, which is the limit"
        line = state.queue.line(lease, state.places)
        if not line.places:
            unmet = state.queue.unmet(line, state.places.values())
            if unmet is None:
                return f"no {line.kind} has registered yet"
            named = " and ".join(f"'{clause}'" for clause in unmet) or f"all of {lease.want!r} at once"
            return f"no {line.kind} meets {named}"
        taken = [state.places[id] for id in sorted(line.places) if not state.places[id].free]
        said = [self._why_not(place) for place in taken[:_NAMED]]
        more = f" and {len(taken) - _NAMED} more" if len(taken) > _NAMED else ""
        return "; ".join(said) + more

    def _why_not(self, place: Place) -> str:
        """Say why a place is not handed out now."""
        state = self._hub.state
        holder = state.leases.get(place.lease)
        if place.state == "offline":
            return f"{place.id} is offline for {age(state.now - place.since)} ({place.cause})"
        if holder is not None:
            then = _out_of_use(place)
            held = f"{place.id} has been with {holder.user} for {age(state.now - holder.since)}"
            return held + (f", and is {then} then" if then else "")
        return f"{place.id} is {_out_of_use(place) or place.state}"

    def place(self, place: Place) -> dict[str, Any]:
        """Return what is shown of a place."""
        holder = self._hub.state.leases.get(place.lease)
        unclaimed = holder is not None and holder.unclaimed and place.state == "leased"
        return {
            "place": place.id, "peer": place.peer, "keys": list(place.keys), "tags": place.tags,
            "state": "offered" if unclaimed else place.state, "since": place.since, "cause": place.cause,
            "health": place.health, "health_since": place.health_since,
            "health_reason": place.health_reason, "drain": place.drain, "checked": place.checked,
            "address": f"{place.host}:{place.port}" if place.port else "", "fence": place.fence,
            "lease": place.lease, "user": holder.user if holder else "", "free": place.free, "owner": place.owner,
        }  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Return all places, leases and waiting requests."""
        state = self._hub.state
        held = sorted((x for x in state.leases.values() if x.state != "queued"), key=lambda lease: lease.since)
        waiting = sorted((x for x in state.leases.values() if x.state == "queued"), key=lambda x: (x.rank, x.number))
        return {
            "now": self._hub.now(), "started": self._hub.started, "draining": state.draining,
            "places": [self.place(place) for place in state.places.values()],
            "leases": [self.lease(lease) for lease in held],
            "waiting": [self.lease(lease) for lease in waiting[:200]], "waiting_total": len(waiting),
            "waiting_for": state.queue.sizes(),
        }  # fmt: skip


def _out_of_use(place: Place) -> str:
    """Say why a place is not handed out, whoever has it now; empty where it is."""
    if place.drain:
        return "drained"
    if place.health in USABLE:
        return ""
    return place.health + (f" ({place.health_reason})" if place.health_reason else "")
