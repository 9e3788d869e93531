# SPDX-License-Identifier: Apache-2.0
"""The store of a farm of several processes, in Redis or Valkey.

One process leads: it has the state and decides. The others pass connections on to it, and one of them takes over when
it is gone. Who leads is said by a key that expires, and that key is not trusted: each turn is one script, which writes
only where the key ``number`` has what this process wrote last. It is a random word for each time that somebody takes
over, with the number of the turn. So what a process decides after another has taken over, or after Redis has lost or
forgotten anything, is refused whole, and no one is notified: two processes never give one place to two people.

A script of Redis that fails in the middle leaves what it has written. So each looks at all that can fail first.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from portcall.farm._model import Event, Lease, Place, Refused, Rows
from portcall.farm._reading import Read, damage, read_event, read_fact, read_lease, read_place, read_rows
from portcall.farm._shown import shown_store
from portcall.farm._store import FORMAT, StoreError

R = TypeVar("R")

_PREFIX = "{portcall-farm}:"
_TABLES = ("places", "leases", "tokens", "facts", "damaged")  # hashes
_KEYS = tuple(_PREFIX + name for name in ("leader", "number", *_TABLES, "events"))
_MOST_EVENTS = 1_000_000
_LOOKED_AT = 20_000  # events, by a question for some of them
_TIMEOUT = 4.0  # a turn with 100,000 requests takes two seconds
_QUIET = 1.0  # seconds after an answer that did not come in which all questions fail at once: many may wait
LEADS_FOR = 3000  # milliseconds after its last sign of life for which a process counts as the leader
_TAKES_OVER_FOR = 60_000  # milliseconds to read what is stored, before its first sign of life

# Keys: _KEYS. The first write of each script is one that Redis refuses when it has no memory or disk left.
_KINDS = """
local function wrong(n)
  local kind = redis.call('TYPE', KEYS[n]).ok
  return kind ~= 'none' and kind ~= (n < 3 and 'string' or n < #KEYS and 'hash' or 'stream')
end
"""
# Arguments: this process, the milliseconds, its new number, the time. A key of another type is set aside.
_LEAD = (
    _KINDS
    + """
if not wrong(1) then
  local now = redis.call('GET', KEYS[1])
  if now and now ~= ARGV[1] and redis.call('PTTL', KEYS[1]) >= 0 then return {0} end
end
local aside = {1}
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
for n = 3, #KEYS do
  if wrong(n) then
    redis.call('RENAME', KEYS[n], KEYS[n] .. ':damaged:' .. ARGV[4])
    table.insert(aside, KEYS[n])
  end
end
return aside
"""
)
_BEAT = """
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RESIGN = "if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
# Arguments: the number, the next one, the most events; then for each change the key, the field and the text, which is
# empty for a field that is gone.
_SAVE = (
    _KINDS
    + """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for n = 3, #KEYS do
  if wrong(n) then return redis.error_reply('WRONGTYPE of ' .. KEYS[n]) end
end
local last = 0
if redis.call('EXISTS', KEYS[#KEYS]) == 1 then
  local facts = redis.call('XINFO', 'STREAM', KEYS[#KEYS])
  for n = 1, #facts, 2 do
    if facts[n] == 'last-generated-id' then last = tonumber(facts[n + 1]:match('^%d+')) end
  end
end
if last >= 2 ^ 52 then return redis.error_reply('ERR the numbers of events are used up') end
redis.call('SET', KEYS[2], ARGV[2])
for n = 4, #ARGV, 3 do
  local key, field, text = KEYS[tonumber(ARGV[n])], ARGV[n + 1], ARGV[n + 2]
  if key == KEYS[#KEYS] then
    last = last + 1
    redis.call('XADD', key, 'MAXLEN', '~', ARGV[3], string.format('%.0f-0', last), 'event', text)
  elseif text == '' then
    redis.call('HDEL', key, field)
  else
    redis.call('HSET', key, field, text)
  end
end
return 1
"""
)
# Arguments: the greatest and the smallest number of an event, how many to look at, how many to return; then what each
# of them must have in its text. Thousands of events that were not asked for would take a second to come and to be read.
_FIND = """
local found, last, left = {}, ARGV[1], tonumber(ARGV[3])
while left > 0 do
  local size = math.min(left, 1000)
  local page = redis.call('XREVRANGE', KEYS[#KEYS], last, ARGV[2], 'COUNT', size)
  for _, entry in ipairs(page) do
    local fits = true
    for n = 5, #ARGV do fits = fits and entry[2][2]:find(ARGV[n], 1, true) end
    if fits then table.insert(found, entry) end
    if #found >= tonumber(ARGV[4]) then return found end
  end
  if #page < size then break end
  left, last = left - size, '(' .. page[#page][1]
end
return found
"""


@dataclass(frozen=True)
class Leader:
    """The process that leads, as the others see it; ``mine`` says that it is this one. Empty while none does.

    The secret, by which it knows the others, is its own: it is there again with each beat, and ends with the process.
    """

    address: str
    secret: str
    mine: bool = False


class RedisStore:
    """The store, and the right to write it.

    Parameters:
        url: ``redis://host:port/0``, ``rediss://…`` or ``unix:///path``.
        address: of this process, for the others.

    Raises:
        ValueError: no address of Redis is like that.
        StoreError: no server answers there.
        OSError: what is there is of a later version.
    """

    shared = True

    def __init__(self, url: str, address: str = "") -> None:
        self.path = shown_store(url)
        self.on_damage: Callable[[str], None] = lambda text: None
        self.address = address
        self.secret = secrets.token_hex(16)
        self._name = f"{self.secret} {address}"  # two processes may have one address, one after the other
        self._term, self._turns = "", 0
        self._quiet_until, self._why = 0.0, ""
        try:
            self._redis: Any = redis.Redis.from_url(
                url, decode_responses=True, encoding_errors="surrogateescape", socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT, retry=Retry(NoBackoff(), 0),
            )  # fmt: skip
            self._scripts = {text: self._redis.register_script(text) for text in (_LEAD, _BEAT, _RESIGN, _SAVE, _FIND)}
            found = self.fact("format", FORMAT)
        except (ValueError, TypeError):  # the text of which may have the password
            form = "redis://user:password@host:port/0, rediss://… or unix:///path, with %40 for @ and %2F for /"
            raise ValueError(
                f"invalid address of the farm's store '{self.path}' (must be of the form {form})"
            ) from None
        if found != FORMAT:
            raise OSError(f"the farm's store '{self.path}' has format {found}, this version knows {FORMAT}")

    def _ask(self, command: str, *args: Any, **more: Any) -> Any:
        return self._try(getattr(self._redis, command), *args, **more)

    def _run(self, script: str, *args: Any) -> Any:
        return self._try(self._scripts[script], keys=_KEYS, args=args)

    def _try(self, ask: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if time.monotonic() < self._quiet_until:
            raise StoreError(self._why)
        try:
            return ask(*args, **more)
        except (redis.RedisError, OSError) as error:
            self._why = f"cannot use '{self.path}': {error}"
            if isinstance(error, (redis.TimeoutError, TimeoutError)):
                self._quiet_until = time.monotonic() + _QUIET
            raise StoreError(self._why) from None

    @property
    def _number(self) -> str:
        return f"{self._term} {self._turns}"

    # ---- Who leads ----

    def lead(self) -> bool:
        """Take over where no process leads; return whether this one does now. It is to read all, and then to ``beat``.

        Raises:
            StoreError: Redis does not answer.
        """
        term = secrets.token_hex(16)
        leads, *aside = self._run(_LEAD, self._name, _TAKES_OVER_FOR, f"{term} 0", f"{time.time():.0f}")
        if not leads:
            return False
        self._term, self._turns = term, 0
        for key in aside:
            self.on_damage(f"'{key}' is of another type, and was renamed")
        self.set_fact("format", FORMAT)
        return True

    def beat(self) -> bool:
        """Say that this process is there; return whether it still leads."""
        return bool(self._run(_BEAT, self._name, LEADS_FOR, self._number))

    @property
    def leads(self) -> bool:
        """Whether this process took over, and has not resigned since."""
        return bool(self._term)

    def resign(self, tell: bool = True) -> None:
        """Write nothing more, and let another process take over at once, where Redis is told."""
        number, led, self._term = self._number, self.leads, ""
        if led and tell:
            self._run(_RESIGN, number)

    def leader(self) -> Leader:
        """Return the process that leads."""
        found = self._ask("get", _KEYS[0]) or ""
        secret, _, address = found.partition(" ")
        return Leader(address, secret, found == self._name)

    # ---- What a farm keeps ----

    def close(self) -> None:
        self._redis.close()

    def backup(self) -> tuple[str, int]:
        """Refuse: Redis has its own backups. Raises: Refused."""
        raise Refused("this farm keeps everything in Redis: back up Redis, by its BGSAVE", "invalid")

    def clock(self) -> float:
        """Return the time of Redis, by which all processes go: leases do not end early where another takes over."""
        seconds, microseconds = self._ask("time")
        return float(seconds + microseconds / 1e6)

    def load(self) -> tuple[list[Place], list[Lease]]:
        """Return the places, and the leases that have not ended."""
        return list(self._read("places", read_place).values()), list(self._read("leases", read_lease).values())

    def _read(self, table: str, read: Read[R]) -> dict[str, R]:
        """Return the records of a table; those that cannot be read go to another, so that the farm starts."""
        found, damaged = read_rows(self._ask("hgetall", _PREFIX + table).items(), read)
        for name, text, why in damaged:
            kept = json.dumps({"kept": table, "name": name, "value": text, "why": why, "time": time.time()})
            self._write([("damaged", f"{table} {name} {time.time():.0f}", kept), (table, name, "")])
            self.on_damage(damage(table, name, why))
        return found

    def _write(self, changes: Iterable[tuple[str, str, str]]) -> None:
        """Write a turn, whole or not at all: of each change the table, the name and the text, empty for none.

        Raises:
            StoreError: another process has taken over, or Redis does not answer.
        """
        words = [word for table, name, text in changes for word in (_KEYS.index(_PREFIX + table) + 1, name, text)]
        if not self._run(_SAVE, self._number, f"{self._term} {self._turns + 1}", _MOST_EVENTS, *words):
            raise StoreError("another process of this farm has taken over, or Redis has lost what was written")
        self._turns += 1

    def save(self, rows: Rows, events: Sequence[Event], now: float, use: Any) -> None:
        """Write one turn. Ended leases stay in the history only."""
        changes = [("facts", "now", json.dumps(now))]
        changes += [("facts", "use", json.dumps(use))] if use is not None else []
        changes += [(table, id, text or "") for (table, id), text in rows.items()]
        changes += [("events", "", json.dumps(vars(event))) for event in events]
        self._write(changes)

    def set_clock_back(self, now: float, seconds: float) -> None:
        """Leave the times of events as they are: a stream cannot be changed."""

    def history(
        self, *, place: str = "", lease: str = "", user: str = "", after: int = 0, before: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Return the last events, the oldest first: of one place, lease or user, or before a number, where given."""
        wanted = {name: value for name, value in (("place", place), ("lease", lease), ("user", user)) if value}
        texts = [json.dumps({name: value})[1:-1] for name, value in wanted.items()]
        end, most = f"({before}-0" if before else "+", _LOOKED_AT if wanted else limit
        rows = self._try(self._scripts[_FIND], keys=_KEYS, args=(end, f"{after + 1}-0", most, limit, *texts))
        found = []
        for id, (_, text, *_) in rows:
            read, _ = read_rows([(id.partition("-")[0], text)], read_event)
            found += [e for e in read.values() if all(e[name] == value for name, value in wanted.items())]
        return found[::-1]

    # ---- Tokens and single facts ----

    def tokens(self, read: Read[R]) -> dict[str, R]:
        """Return all tokens, by their hashes."""
        return self._read("tokens", read)

    def set_tokens(self, records: Mapping[str, dict[str, Any] | None]) -> None:
        """Keep the records of tokens by their hashes, all or none; None removes one."""
        self._write([("tokens", hash, "" if r is None else json.dumps(r)) for hash, r in records.items()])

    def time(self) -> float:
        """Return the time of the last turn; 0 where there was none."""
        return float(self.fact("now", 0.0))

    def fact(self, name: str, default: Any) -> Any:
        try:
            return read_fact(self._ask("hget", _PREFIX + "facts", name), default)
        except StoreError as error:
            if "WRONGTYPE" in str(error):  # ``lead`` sets it aside
                return default
            raise

    def set_fact(self, name: str, value: Any) -> None:
        self._write([("facts", name, json.dumps(value))])
