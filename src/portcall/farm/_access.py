# SPDX-License-Identifier: Apache-2.0
"""Who may do what: tokens with a user and a role, kept as hashes, and pairing codes that are used once.

A farm that only this machine can reach needs no tokens; then everybody is an administrator.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from portcall.farm._model import CLASSES, Class, Refused, read_fields
from portcall.farm._state import hash_secret
from portcall.farm._store import Store

if TYPE_CHECKING:
    from portcall.farm._redis import RedisStore

Role = Literal["viewer", "user", "agent", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "user", "agent", "operator", "admin")

_SEES = {"status", "history", "who", "lease"}
_USES = {*_SEES, "request", "wait", "renew", "release", "extend", "session", "keep"}
_RUNS = {*_USES, "kick", "drain", "undrain", "maintain", "quarantine", "good", "retire", "check", "checked"}
_SERVES = {"register", "next", "report", "leave"}
RIGHTS: dict[Role, frozenset[str]] = {
    "viewer": frozenset(_SEES),
    "user": frozenset(_USES),
    "agent": frozenset(_SERVES),
    "operator": frozenset(_RUNS),
    "admin": frozenset({*_RUNS, *_SERVES, "hand-over", "token-make", "token-list", "token-revoke", "pair", "backup"}),
}
Note = Callable[[str, str, str], None]

_CODE_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_CODE_LENGTH = 12  # of 31 letters: 59 bits, good for minutes and one use
PAIR_SECONDS = 600.0
_REMEMBERED = 1000  # revoked tokens


@dataclass(frozen=True)
class Token:
    """What a token allows; the token itself is not kept.

    Attributes:
        user: who it was made for.
        role: what its owner may do.
        keys: the only keys that it may ask for, or serve; empty for all.
        most_leases: leases at once; 0 for any number.
        top_class: the most urgent class that it may ask for.
        expires: when it ends; 0 for never.
        hint: its first letters, by which people tell tokens apart.
    """

    user: str
    role: Role = "user"
    keys: tuple[str, ...] = ()
    most_leases: int = 0
    top_class: Class = "normal"
    expires: float = 0
    made: float = field(default_factory=time.time)
    by: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"invalid role {self.role!r} (must be one of {', '.join(ROLES)})")
        if self.top_class not in CLASSES:
            raise ValueError(f"invalid class {self.top_class!r} (must be one of {', '.join(CLASSES)})")
        if not self.user or len(self.user) > 200:
            raise ValueError("a token needs a user's name of 1-200 characters")

    @property
    def expired(self) -> bool:
        """Whether it counts no more."""
        return 0 < self.expires < time.time()

    def may(self, command: str) -> bool:
        return command in RIGHTS[self.role]


class Access:
    """The tokens of a farm.

    Parameters:
        store: keeps them.
        required: whether callers need one.
        note: called with what was done, the user who did it and details, for the history.
    """

    def __init__(self, store: Store | RedisStore, required: bool, note: Note = lambda what, user, detail: None) -> None:
        self.required = required
        self._note = note
        self._store = store
        self._tokens = store.tokens(_read)
        self._codes: dict[str, Token] = {}
        self._revoked: dict[str, None] = {}  # hashes, so that their owners hear it

    def caller(self, token: str, user: str) -> Token | None:
        """Return what a caller may do; None where it needs a token and has none that counts.

        Parameters:
            token: as the caller sent it, or empty.
            user: the name that the caller gives, which counts only where no tokens are needed.
        """
        if token:
            found = self._tokens.get(hash_secret(token))
            return found if found is not None and not found.expired else None
        return None if self.required else Token(user[:200] or "anybody", "admin", top_class="urgent")

    def why_not(self, token: str) -> str:
        """Say why a token does not count."""
        if not token:
            return "this farm needs a token"
        hashed = hash_secret(token)
        found = self._tokens.get(hashed)
        if found is None:
            return "the token was revoked" if hashed in self._revoked else "the token is wrong, or was revoked"
        return f"the token {found.hint}… of {found.user} has expired: ask for another"

    def make(self, by: str, **what: Any) -> str:
        """Make a token, and return the only copy of it.

        Raises:
            ValueError, TypeError: a value is out of range, or not of a token.
            StoreError: it cannot be stored, and counts for nothing.
        """
        text = secrets.token_urlsafe(32)
        token = Token(**{**what, "keys": tuple(what.get("keys", ()))}, by=by, hint=text[:6])
        self._store.set_tokens({hash_secret(text): asdict(token)})
        self._tokens[hash_secret(text)] = token
        self._note("token made", by, _described(token))
        return text

    def list(self) -> list[dict[str, Any]]:
        """Return all tokens, without what would let anybody use them."""
        return [asdict(token) for token in self._tokens.values()]

    def users(self) -> set[str]:
        """Return whom the tokens are for."""
        return {token.user for token in self._tokens.values()}

    def revoke(self, hint: str, by: str) -> int:
        """End the tokens that begin with ``hint``, or belong to the user of that name; return how many.

        Pairing codes that the user has made, or that are for the user, end as well.

        Raises:
            Refused: no admin would be left where tokens are needed.
            StoreError: this cannot be stored; all of them still count.
        """
        gone = [h for h, t in self._tokens.items() if hint and (hint in (t.hint, t.user))]
        left = (token for hashed, token in self._tokens.items() if hashed not in gone)
        if self.required and any(self._tokens[h].role == "admin" for h in gone) and not any(map(_is_admin, left)):
            raise Refused("this is the only token of an admin: make another first", "last-admin")
        if gone:
            self._store.set_tokens(dict.fromkeys(gone))
        revoked = [self._tokens.pop(hashed) for hashed in gone]
        users = {hint, *(token.user for token in revoked)}
        codes = [self._codes.pop(c) for c, t in list(self._codes.items()) if not users.isdisjoint((t.user, t.by))]
        self._revoked |= dict.fromkeys(gone)
        for old in list(self._revoked)[:-_REMEMBERED]:
            del self._revoked[old]
        for token in revoked:
            self._note("token revoked", by, _described(token))
        for token in codes:
            self._note("pairing code revoked", by, _described(token))
        return len(gone) + len(codes)

    def pair(self, **what: Any) -> str:
        """Return a code that becomes a token once, within ten minutes."""
        code = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))
        now = time.time()
        self._codes = {c: t for c, t in self._codes.items() if t.made + PAIR_SECONDS > now}
        token = self._codes[hash_secret(code)] = Token(**{**what, "keys": tuple(what.get("keys", ()))})
        self._note("pairing code made", token.by, _described(token))
        return "-".join(code[n : n + 4] for n in range(0, _CODE_LENGTH, 4))

    def redeem(self, code: str) -> str:
        """Return the token for a pairing code, which counts no more afterwards.

        Raises:
            ValueError: it is unknown, was used, or is too old.
            StoreError: the token cannot be stored; the code still counts.
        """
        hashed = hash_secret(code.replace("-", "").upper())
        wanted = self._codes.get(hashed)
        if wanted is None or wanted.made + PAIR_SECONDS <= time.time():
            self._codes.pop(hashed, None)
            raise ValueError("this pairing code is wrong, was used already or revoked, or is older than ten minutes")
        token = self.make(wanted.by, **{n: v for n, v in asdict(wanted).items() if n not in ("made", "by", "hint")})
        self._codes.pop(hashed, None)
        return token


def roles_for(command: str) -> list[str]:
    """Return the roles that may give a command."""
    return [role for role, commands in RIGHTS.items() if command in commands]


def _is_admin(token: Token) -> bool:
    return token.role == "admin" and not token.expired


def _described(token: Token) -> str:
    return f"{token.role} {token.user}{' for ' if token.keys else ''}{', '.join(token.keys)}"


def _read(hashed: str, values: Any) -> Token:
    """Return a stored token. Raises: ValueError."""
    return Token(**read_fields(Token, values))
