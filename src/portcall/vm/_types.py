# SPDX-License-Identifier: Apache-2.0
"""Types of parameters and results, read from the words in which TVM writes them.

Known forms: ``R.Tensor((n, 4), dtype="float32")``, ``R.Shape([n, 2])``, ``R.Prim("int64")`` or ``T.int64``, and
``R.Tuple(…, …)``; in tuples some releases write ``T.int64(4)`` for an extent of 4.
"""

from __future__ import annotations

import re

_KINDS = {"Tensor": "tensor", "Shape": "shape", "Prim": "number", "Tuple": "tuple", "Callable": "function"}
_QUOTED = re.compile(r'"[^"]*"')
_DTYPE = re.compile(r'(?:dtype=|^\w\.Prim\()"(\w+)"')
_ELEMENT = re.compile(r"T\.((?:u?int|float|bool)\w*)")
_NUMBER = re.compile(r"(?:T\.int\d+\()?(-?\d+)\)?")


def kind_of(text: str) -> str:
    """Return ``tensor``, ``shape``, ``number``, ``tuple`` or ``function``; empty for others."""
    name = text.partition("(")[0].strip().rpartition(".")[2]
    return "number" if _ELEMENT.fullmatch(text) else _KINDS.get(name, "")


def dtype_of(text: str) -> str:
    """Return the name of the element type; empty where it is not known."""
    found = _DTYPE.search(text) if kind_of(text) in ("tensor", "number") else None
    found = found or _ELEMENT.fullmatch(text)
    return found[1] if found else ""


def extents_of(text: str) -> tuple[int | str, ...] | None:
    """Return the extents of a tensor or shape, variables and expressions by their text; None if they are not known."""
    if kind_of(text) not in ("tensor", "shape"):
        return None
    words = parts(text)
    if not words or words[0][:1] not in ("(", "["):
        return None
    return tuple(int(found[1]) if (found := _NUMBER.fullmatch(word)) else word for word in parts(words[0]))


def items_of(text: str) -> list[str]:
    """Return the types of the items of a tuple; an empty list for any other type."""
    return parts(text) if kind_of(text) == "tuple" else []


def parts(text: str) -> list[str]:
    """Return what stands between the outer brackets, split at commas that are in no brackets and quotes."""
    start = min((at for at in (text.find("("), text.find("[")) if at >= 0), default=len(text)) + 1
    inner = text[start:-1]
    plain = _QUOTED.sub(lambda found: " " * len(found[0]), inner)
    depth, begin, found = 0, 0, []
    for at, character in enumerate(plain + ","):
        if character == "," and depth == 0:
            found.append(inner[begin:at].strip())
            begin = at + 1
        depth += (character in "([") - (character in ")]")
    return [word for word in found if word]
