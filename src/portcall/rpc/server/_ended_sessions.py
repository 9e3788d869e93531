# SPDX-License-Identifier: Apache-2.0
"""The endings of the last sessions, for clients that ask."""

from __future__ import annotations

import hmac
from collections import OrderedDict

from portcall.rpc.wire._endings import Ending
from portcall.rpc.wire._facts import MOST_ENDED, UNKNOWN


class EndedSessions:
    """Remembers how the last sessions ended; a client that knows the secret of one may ask."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[str, Ending]] = OrderedDict()

    def add(self, number: int, secret: str, ending: Ending) -> None:
        self._entries[str(number)] = (secret, ending)
        if len(self._entries) > MOST_ENDED:
            self._entries.popitem(last=False)

    def answer(self, question: str) -> dict[str, str]:
        """Return the words for a client that asks with ``number.secret``."""
        number, _, secret = question.partition(".")
        known, ending = self._entries.get(number, ("", None))
        if ending is None or not hmac.compare_digest(known.encode(), secret.encode()):
            return {"ended": UNKNOWN}
        return ending.words()
