# SPDX-License-Identifier: Apache-2.0
"""A command of a client or an agent, a JSON object whose fields are checked as they are read, and its refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portcall.farm._access import Token
from portcall.farm._model import Refused
from portcall.farm._state import MOST_SESSIONS
from portcall.rpc.wire._texts import check_number, check_text, readable

HOLD = 20.0  # seconds that an answer is held back at most
_MOST_ITEMS = {"keys": 100, "sessions": MOST_SESSIONS, "done": 1000}


class ApiError(Refused):
    """A command that was refused.

    Attributes:
        status: the code of HTTP that fits.
        reason: a word for programs.
    """

    def __init__(self, text: str, reason: str, status: int = 400) -> None:
        super().__init__(text, reason)
        self.status = status


class Command:
    """The fields of a command. Those that are read raise ValueError where they are wrong; the message names them."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    @property
    def name(self) -> str:
        return str(self._fields.get("do"))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field as it was sent."""
        return self._fields.get(name, default)

    def text(self, name: str, default: str | None = None) -> str:
        return check_text(self._fields.get(name, default), name, least=int(default is None))

    def texts(self, name: str, one: str) -> list[str]:
        """Return a list of texts, each of which is called ``one``."""
        return [check_text(text, one) for text in self.items(name)]

    def said(self, name: str) -> str:
        """Return what a program said, made fit to be kept."""
        return readable(self._fields.get(name, ""), name)

    def items(self, name: str) -> list[Any]:
        value = self._fields.get(name, [])
        if not isinstance(value, list):
            raise ValueError(f"the field {name!r} must be a list")
        if len(value) > _MOST_ITEMS[name]:
            raise ValueError(f"the field {name!r} has {len(value)} items (at most {_MOST_ITEMS[name]})")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        return check_number(self._fields.get(name, default), name, low, high)

    @property
    def secret(self) -> str:
        """The secret of a new request."""
        secret = self.text("secret")
        if len(secret) < 32:
            raise ValueError(f"the secret of a request must have 32 characters or more, not {len(secret)}")
        return secret

    @property
    def hold(self) -> float:
        """For how many seconds the answer may be held back."""
        return self.number("hold", HOLD, 0, HOLD)

    @property
    def seen(self) -> int:
        """The place in the queue of which a client knows."""
        return int(self.number("seen", 0, 0, 1e9))


def check_keys(caller: Token, keys: Sequence[str], whole: bool = False) -> None:
    """Check that a token is for one of these keys, or for the ``whole`` of them, if there are any. Raises: ApiError."""
    mine, wanted = set(caller.keys), set(keys)
    if mine and not (wanted and wanted <= mine if whole else wanted & mine):
        raise ApiError(f"your token is for the keys {', '.join(caller.keys)} only", "role", 403)
