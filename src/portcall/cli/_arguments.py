# SPDX-License-Identifier: Apache-2.0
"""Arguments of a called function, written on the command line.

    random:float32[4,8]   values in [0, 1); whole numbers in [0, 100)        out:float32[4]  an array to be filled
    zeros:float32[4]  ones:float32[4]  range:int32[10]                       float32[]       has no dimension
    @x.npy  @data.npz:key                                                    from a file; the @ may be left out
    3  -7  2.5  1e-3  int:3  float:3  bool:true  str:hello  none             one value
    int64:3  float16:2.5                                                     a number of a type

Arrays become tensors on the device of the call, local or remote: their memory is aligned, and no call copies it.
"""

from __future__ import annotations

import contextlib
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from portcall.extras import EXTRAS

if TYPE_CHECKING:
    import numpy as np

ARRAY = re.compile(r"(random|zeros|ones|range|out):([a-z0-9_]+)\[([0-9 ,]*)\]")
FILLS = ("random", "zeros", "ones", "range")
TYPED = re.compile(r"((?:u?int|float|bfloat)[0-9]\w*|bool):([+-]?[0-9.]\S*|[+-]?(?:inf|nan))")
INTEGER = re.compile(r"[+-]?[0-9]+")
NUMPY_MARKS = (b"\x93NUMPY", b"PK")
BOOLEANS = {"true": True, "false": False}
EXAMPLES = "random:float32[4,8], zeros:int32[10], @x.npy, @data.npz:key, 3, 2.5, int64:3, str:hello, bool:true or none"
# Random whole numbers are below this, so that sums and products of a few of them stay small.
RANDOM_INTEGERS = 100


@dataclass(frozen=True)
class Argument:
    """One argument of a call.

    Attributes:
        text: as it was written.
        value: what is passed.
        output: an array that the function is to fill.
    """

    text: str
    value: Any
    output: bool = False


def check_forms(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse malformed arrays as wrong usage, before anything is loaded; a callback of click."""
    for text in texts:
        kind, colon, _ = text.partition(":")
        if colon and kind in {"random", "zeros", "ones", "range", "out"} and not ARRAY.fullmatch(text):
            example = f"{kind}:float32[4,8]"
            raise click.BadParameter(f"'{text}' is not of the form {kind}:TYPE[SHAPE], such as {example}", ctx, param)
    return texts


def check_outputs(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is not TYPE[SHAPE], with or without ``out:``; a callback of click that returns the latter."""
    written = tuple(text if text.startswith("out:") else f"out:{text}" for text in texts)
    for text, whole in zip(texts, written, strict=True):
        if not ARRAY.fullmatch(whole):
            raise click.BadParameter(f"'{text}' is not of the form TYPE[SHAPE], such as float32[4,8]", ctx, param)
    return written


def make_arguments(
    texts: Sequence[str], outputs: Sequence[str], seed: int, make_tensor: Callable[[Any], Any]
) -> list[Argument]:
    """Return the arguments of a call: those of ``--arg`` in order, then ``out:…`` of ``--out``; arrays as tensors.

    Raises:
        ValueError: a str has none of the forms above, or an unknown element type.
        OSError: a file cannot be read.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    arguments: list[Argument] = []
    for text in (*texts, *outputs):
        value = read_value(text, generator)
        if isinstance(value, np.ndarray):
            value = make_tensor(value)
        arguments.append(Argument(text, value, text.startswith("out:")))
    return arguments


def read_value(text: str, generator: np.random.Generator, forms: str = EXAMPLES) -> Any:
    """Return what a text means; ``forms`` is what an error proposes to give.

    Raises:
        ValueError: it means nothing.
        OSError: a file cannot be read.
    """
    array = ARRAY.fullmatch(text)
    if array is not None:
        shape = tuple(int(word) for word in array[3].replace(",", " ").split())
        return make_array(array[1], array[2], shape, generator)
    if names_file(text):
        return read_array(text.removeprefix("@"))
    number = typed_number(text)
    return read_scalar(text, forms) if number is None else number.item()


def typed_number(text: str) -> np.ndarray[Any, Any] | None:
    """Return the number in ``int64:3``, as an array without dimensions; None for a text of another form.

    Raises:
        ValueError: the type is not known, or does not have the number.
    """
    found = TYPED.fullmatch(text)
    return None if found is None else to_type(read_scalar(found[2]), found[1])


def names_file(text: str) -> bool:
    return text.startswith("@") or (
        (text.endswith((".npy", ".npz")) or ".npz:" in text) and not text.startswith("str:")
    )


def make_array(kind: str, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype = element_type(name)
    if kind == "random":
        if dtype.kind in "iu":
            limit = min(RANDOM_INTEGERS, int(np.iinfo(dtype).max))
            return generator.integers(0, limit, shape).astype(dtype)
        if dtype.kind == "b":
            return generator.integers(0, 2, shape).astype(dtype)
        return np.asarray(generator.random(shape)).astype(dtype)
    if kind == "range":
        count = int(np.prod(shape, dtype=np.int64))
        return np.arange(count).reshape(shape).astype(dtype)
    return np.ones(shape, dtype) if kind == "ones" else np.zeros(shape, dtype)


def element_type(name: str) -> np.dtype[Any]:
    """Return the NumPy type of that name; bfloat16 and the small floats come from ml_dtypes, where it is installed."""
    import numpy as np

    with contextlib.suppress(ImportError):
        import ml_dtypes  # noqa: F401  # makes NumPy know its names
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        small = name.startswith(("bfloat", "float"))
        hint = f"; {EXTRAS['dtypes'].command} adds the small floats" if small else ""
        raise ValueError(f"unknown element type '{name}': use float32, int8, bool …{hint}") from error
    if dtype.name != name or dtype.itemsize == 0 or dtype.kind in "OSUMm":
        raise ValueError(f"element type '{name}' is not supported in tensors: use float32, int8, bool …")
    return dtype


def read_array(place: str) -> np.ndarray[Any, Any]:
    """Return an array from ``x.npy``, or ``data.npz:key`` (the key may be left out where there is only one)."""
    import numpy as np

    path, colon, key = place.partition(".npz:")
    path = f"{path}.npz" if colon else place
    loaded = load_arrays(path, key)
    if isinstance(loaded, np.ndarray):
        return loaded
    if not key and len(loaded) == 1:
        key = next(iter(loaded))
    if key not in loaded:
        raise ValueError(f"'{path}' has no array '{key}'; it has {', '.join(loaded)}: write @{path}:KEY")
    return loaded[key]


def load_arrays(path: str, key: str = "") -> np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]]:
    """Return the array of a .npy file, or those of a .npz file by name: all, or the one asked for if it is there.

    Raises:
        ValueError: the file is neither, is damaged, or holds Python objects.
        OSError: it cannot be read.
    """
    import numpy as np

    with open(path, "rb") as file:
        if not file.read(8).startswith(NUMPY_MARKS):
            raise ValueError(f"'{path}' is neither a .npy nor a .npz file: numpy.save and numpy.savez write those")
        file.seek(0)
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {name: np.asarray(loaded[name]) for name in ([key] if key in loaded else loaded)}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"cannot read '{path}': {error}") from error


def read_scalar(text: str, forms: str = EXAMPLES) -> bool | int | float | str | None:
    kind, colon, rest = text.partition(":")
    if text == "none":
        return None
    if colon and kind == "str":
        return rest
    if colon and kind == "bool" and rest in BOOLEANS:
        return BOOLEANS[rest]
    number = rest if colon and kind in ("int", "float") else text
    if INTEGER.fullmatch(number) and kind != "float":
        return int(number)
    if kind != "int":
        try:
            return float(number)
        except ValueError:
            pass
    first = f"for text write str:{text}; else " if "str:" in forms else ""
    raise ValueError(f"cannot read '{text}': {first}give {forms}")


def to_type(value: Any, dtype: str) -> np.ndarray[Any, Any]:
    """Return a number as an array without dimensions.

    Raises:
        ValueError: the type does not have the number.
    """
    import numpy as np

    wanted = element_type(dtype) if dtype else np.asarray(value).dtype
    if wanted.kind in "iub":
        limits = (0, 1) if wanted.kind == "b" else (int(np.iinfo(wanted).min), int(np.iinfo(wanted).max))
        if not math.isfinite(value) or value != int(value) or not limits[0] <= value <= limits[1]:
            raise ValueError(f"{value} is no {wanted}")
        value = int(value)
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(wanted)
