# SPDX-License-Identifier: Apache-2.0
"""Addresses without what is secret in them, for logs, errors, answers and figures."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_SHARED = ("redis", "rediss", "unix")


def is_shared(store: str) -> bool:
    """Return whether a store is one that several processes use.

    Raises:
        ValueError: it is an address of another kind.
    """
    scheme, found, _ = store.partition("://")
    if found and scheme not in _SHARED:
        kinds = ", ".join(f"{name}://" for name in _SHARED)
        raise ValueError(f"invalid store '{shown_store(store)}' (must be a file, or begin with one of {kinds})")
    return bool(found)


def shown_store(store: str) -> str:
    """Return a store's file or address without user, password and parameters."""
    scheme, found, rest = store.partition("://")
    if not found:
        return re.sub(r".*:.*@", "…@", store)
    place, _, more = re.sub("[?#]", "\0", rest).partition("\0")
    if "@" in more:  # where the password ends is not clear
        return f"{scheme}://…"
    return f"{scheme}://{place.rpartition('@')[2]}"


def host_of(url: str) -> str:
    """Return the host that an address of HTTP names.

    Raises:
        ValueError: it is no such address, or no host can be called like that. The message does not repeat the address.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme in ("http", "https") and parts.port != 0 and re.fullmatch(r"[\w.:%-]+", host):
            host.encode("idna")
            return host
    except ValueError:  # a wrong port or bracket, or a label that is empty or too long
        pass
    raise ValueError("it must be an address such as https://host/path")
