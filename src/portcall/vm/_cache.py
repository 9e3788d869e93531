# SPDX-License-Identifier: Apache-2.0
"""What an executable says of the cache of keys and values that it makes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import portcall
from portcall.vm._executable import ExecutableInfo

_CREATE = re.compile(r"call +vm\.builtin\.paged_attention_kv_cache_create in: (.*?) +dst:")
_TENSOR = re.compile(r"call +vm\.builtin\.alloc_tensor in: .*?(c\[\d+\]) +dst: (%\d+)")
_LAYERS, _HEADS, _KEY_HEADS, _WIDTH, _INIT = 1, 2, 3, 4, 12  # places among TVM's arguments


@dataclass(frozen=True)
class CacheInfo:
    """The cache of a language model.

    Attributes:
        layers: how many there are.
        heads, key_heads: heads of attention, and those that have keys and values.
        width: the numbers of a head.
        dtype: of keys and values.
    """

    layers: int
    heads: int
    key_heads: int
    width: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """Return what the keys and values of a token take in all layers."""
        return 2 * self.layers * self.key_heads * self.width * portcall.dtype(self.dtype).bits // 8


def read_cache(info: ExecutableInfo) -> CacheInfo | None:
    """Return what the bytecode says of its paged cache; None where it makes none, or was compiled to machine code."""
    found = _CREATE.search(info.listing)
    if found is None:
        return None
    words = found[1].split(", ")

    def constant(word: str) -> Any:
        index = re.fullmatch(r"c\[(\d+)\]", word)
        return info.constants[int(index[1])].value if index else None

    def dtype(word: str) -> str:
        if word.startswith("%"):  # a tensor that is made there
            made = _TENSOR.findall(info.listing, 0, found.start())
            word = [which for which, register in made if register == word][-1]
        return str(portcall.dtype(str(constant(word)).partition("[")[0]))

    try:
        first, end = constant(words[_LAYERS])
        heads, keys, width = (int(words[place].removeprefix("i")) for place in (_HEADS, _KEY_HEADS, _WIDTH))
        return CacheInfo(end - first, heads, keys, width, dtype(words[_INIT]))
    except (ValueError, TypeError, IndexError):  # it computes them, or is of another release
        return None
