# SPDX-License-Identifier: Apache-2.0
"""Inputs of models on the command line, ``NAME=SPEC``: one language for ``run``, ``bench`` and ``verify``.

x=@x.npy  x=@data.npz:key          from a file; the @ may be left out
x=random  zeros  ones  range       of the model's type and shape
x=random:float32[4,8]              the same of a type and a shape of its own
x=3  x=2.5  x=int64:3              one number, for an input with one element
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from portcall.cli._arguments import FILLS, make_array, read_value, to_type, typed_number
from portcall.cli._errors import CommandError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MOST_AXES = 6  # all orders of so many axes are tried
FORMS = "@x.npy, @data.npz:key, random, zeros, ones, range, random:float32[2,3], 3 or int64:3"


def split_inputs(texts: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names and what is written for them. A name may have an = in it.

    Raises:
        CommandError: a name is missing, or given twice.
    """
    seen = set()
    for text in texts:
        places = [k for k, character in enumerate(text) if character == "="]
        if not places:
            raise CommandError(f"'{text}' does not name its input", "", f"--input NAME={text}", kind="ValueError")
        place = next((k for k in places if text[:k] in names), places[0])
        name = text[:place]
        if name in seen:
            raise CommandError(f"the input '{name}' is given twice", kind="ValueError")
        seen.add(name)
        yield name, text[place + 1 :]


def transposing(got: Sequence[int], wanted: Sequence[int | str]) -> str:
    """Return the words of NumPy that move axes of a shape to where they are wanted; empty where none do.

    An extent that is not fixed is a str. A picture with its channels last is the usual case.
    """
    if len(got) != len(wanted) or not 1 < len(got) <= MOST_AXES:
        return ""
    for order in itertools.islice(itertools.permutations(range(len(got))), 1, None):  # the first is as it is
        if all(isinstance(want, str) or got[axis] == want for axis, want in zip(order, wanted, strict=True)):
            return f"x.transpose({', '.join(map(str, order))})"
    return ""


def read_input(
    name: str, text: str, dtype: str, shape: Sequence[int | str] | None, generator: np.random.Generator
) -> Array:
    """Return the array that is written for an input.

    Parameters:
        dtype, shape: of the input; empty and None where they are not known. An extent that is not fixed is a str.

    Raises:
        CommandError: the text means no array; the error names the input.
        OSError: a file cannot be read.
    """
    import numpy as np

    try:
        if text in FILLS:
            return fill_input(text, dtype, shape, generator)
        number = typed_number(text)
        value = read_value(text, generator, FORMS) if number is None else number
        if isinstance(value, (int, float)):
            value = number = to_type(value, dtype)
        if not isinstance(value, np.ndarray) or text.startswith("out:"):
            raise ValueError(f"cannot read '{text}': give {FORMS}")
    except ValueError as error:
        raise CommandError(f"the input '{name}': {error}", kind="ValueError") from error
    if number is not None and shape is not None and all(extent == 1 for extent in shape if isinstance(extent, int)):
        return value.reshape((1,) * len(shape))
    return value


def fill_input(kind: str, dtype: str, shape: Sequence[int | str] | None, generator: np.random.Generator) -> Array:
    if not dtype or shape is None or any(isinstance(extent, str) for extent in shape):
        raise ValueError(f"its type or shape is not known: write {kind}:float32[2,3]")
    return make_array(kind, dtype, tuple(map(int, shape)), generator)
