# SPDX-License-Identifier: Apache-2.0
"""The store of a farm of several processes, in Redis or Valkey.

One process leads: it has the state and decides. The others pass connections on to it, and one of them takes over when
it is gone. Who leads is said by a key that expires, and that key is not trusted: each turn is one script, which writes
only while the number of its process is the highest that was ever given. What a process decides after another has taken
over is refused whole, and nobody is notified. So two processes never give one place to two people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from portcall.farm._model import Event, Lease, Place
from portcall.farm._store import FORMAT, StoreError

_PREFIX = "{portcall-farm}:"
_MOST_EVENTS = 1_000_000
_LOOKED_AT = 20_000  # events, by a question for some of them
_TIMEOUT = 2.0
LEADS_FOR = 3000  # milliseconds after its last sign of life for which a process counts as the leader

_LEAD = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local number = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return number
"""
_BEAT = """
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RESIGN = "if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_SAVE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local turn = cjson.decode(ARGV[2])
for _, v in ipairs(turn.set) do redis.call('HSET', ARGV[3] .. v[1], v[2], v[3]) end
for _, v in ipairs(turn.gone) do redis.call('HDEL', ARGV[3] .. v[1], v[2]) end
for _, v in ipairs(turn.events) do
  redis.call('XADD', ARGV[3] .. 'events', 'MAXLEN', '~', ARGV[4], v[1] .. '-0', 'event', v[2])
end
return 1
"""


class RedisStore:
    """The store, and the right to write it.

    Parameters:
        url: ``redis://host:port/0``, ``rediss://…`` or ``unix:///path``.
        address: of this process, for the others.

    Raises:
        StoreError: nobody answers there.
        OSError: what is there is of a later version.
    """

    shared = True

    def __init__(self, url: str, address: str = "") -> None:
        self.path = url
        self.address = address
        self._number = ""  # of this process, as a leader
        self._events = 0
        self._redis: Any = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
        )
        self._scripts = {text: self._redis.register_script(text) for text in (_LEAD, _BEAT, _RESIGN, _SAVE)}
        found = self.fact("format", FORMAT)
        if found != FORMAT:
            raise OSError(f"the farm's store '{url}' has format {found}, this version knows {FORMAT}")

    def _ask(self, command: str, *args: Any, **more: Any) -> Any:
        try:
            return getattr(self._redis, command)(*args, **more)
        except redis.RedisError as error:
            raise StoreError(f"cannot use '{self.path}': {error}") from None

    def _run(self, script: str, *args: Any) -> Any:
        try:
            return self._scripts[script](keys=[_PREFIX + "leader", _PREFIX + "number"], args=args)
        except redis.RedisError as error:
            raise StoreError(f"cannot use '{self.path}': {error}") from None

    # ---- Who leads ----

    def lead(self) -> bool:
        """Take over where nobody leads; return whether this process does now.

        Raises:
            StoreError: Redis does not answer.
        """
        number = self._run(_LEAD, self.address, LEADS_FOR)
        if number:
            self._number = str(number)
            last = self._ask("xrevrange", _PREFIX + "events", count=1)
            self._events = int(last[0][0].partition("-")[0]) if last else 0
            self.set_fact("format", FORMAT)
        return bool(number)

    def beat(self) -> bool:
        """Say that this process is there; return whether it still leads."""
        return bool(self._run(_BEAT, self.address, LEADS_FOR, self._number))

    def resign(self) -> None:
        """Let another process take over at once."""
        self._run(_RESIGN, self._number)

    def leader(self) -> str:
        """Return the address of the process that leads; empty while none does."""
        return self._ask("get", _PREFIX + "leader") or ""

    # ---- What a farm keeps ----

    def close(self) -> None:
        self._redis.close()

    def load(self) -> tuple[list[Place], list[Lease]]:
        """Return the places, and the leases that have not ended."""
        places = [Place.from_dict(json.loads(text)) for text in self._ask("hvals", _PREFIX + "places")]
        leases = [Lease.from_dict(json.loads(text)) for text in self._ask("hvals", _PREFIX + "leases")]
        return places, leases

    def _write(
        self, set: list[tuple[str, str, str]], gone: Sequence[tuple[str, str]] = (), events: Sequence[Any] = ()
    ) -> None:
        """Write a turn, whole or not at all.

        Raises:
            StoreError: another process has taken over, or Redis does not answer.
        """
        turn = json.dumps({"set": set, "gone": gone, "events": events})
        if not self._run(_SAVE, self._number, turn, _PREFIX, _MOST_EVENTS):
            raise StoreError("another process of this farm has taken over")

    def save(
        self, changed: Iterable[Place | Lease], forgotten: Sequence[str], events: Sequence[Event], now: float, use: Any
    ) -> None:
        """Write one turn. Ended leases stay in the history only."""
        kept = [("facts", "now", json.dumps(now))]
        kept += [("facts", "use", json.dumps(use))] if use is not None else []
        gone = [("places", id) for id in forgotten]
        for record in changed:
            table = "places" if isinstance(record, Place) else "leases"
            if isinstance(record, Lease) and record.state == "ended":
                gone.append((table, record.id))
            else:
                kept.append((table, record.id, json.dumps(record.to_dict())))
        numbered = [(str(self._events + n), json.dumps(vars(event))) for n, event in enumerate(events, start=1)]
        self._write(kept, gone, numbered)
        self._events += len(numbered)

    def history(
        self, *, place: str = "", lease: str = "", user: str = "", after: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the last events, the oldest first, of one place, lease or user where these are given."""
        wanted = {name: value for name, value in (("place", place), ("lease", lease), ("user", user)) if value}
        found: list[dict[str, Any]] = []
        end, left = "+", _LOOKED_AT if wanted else limit
        while left > 0 and len(found) < limit:
            page = self._ask("xrevrange", _PREFIX + "events", max=end, min=f"{after + 1}-0", count=min(left, 1000))
            for id, fields in page:
                event = {"number": int(id.partition("-")[0]), **json.loads(fields["event"])}
                if all(event[name] == value for name, value in wanted.items()):
                    found.append(event)
            if len(page) < min(left, 1000):
                break
            left -= len(page)
            end = f"({page[-1][0]}"
        return found[:limit][::-1]

    # ---- Tokens and single facts ----

    def tokens(self) -> dict[str, dict[str, Any]]:
        """Return the records of all tokens, by their hashes."""
        return {hash: json.loads(text) for hash, text in self._ask("hgetall", _PREFIX + "tokens").items()}

    def set_token(self, hash: str, record: dict[str, Any] | None) -> None:
        """Keep a token's record; None removes it."""
        if record is None:
            self._write([], [("tokens", hash)])
        else:
            self._write([("tokens", hash, json.dumps(record))])

    def fact(self, name: str, default: Any) -> Any:
        text = self._ask("hget", _PREFIX + "facts", name)
        return default if text is None else json.loads(text)

    def set_fact(self, name: str, value: Any) -> None:
        self._write([("facts", name, json.dumps(value))])
