# SPDX-License-Identifier: Apache-2.0
"""Arguments of functions of the Relax VM: by position or by name, filled where their type is known.

A parameter that is a tuple has a name for each of its items: t.0, t.1.0. Variables in shapes get their values from the
arrays that are given.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from portcall.cli._arguments import FILLS, Argument, make_array, read_value
from portcall.cli._errors import CommandError
from portcall.cli._inputs import read_input, split_inputs, transposing

if TYPE_CHECKING:
    import numpy as np

    from portcall.vm import Function, Parameter

Sizes = dict[str, int]
FEW = 4


def machine_arguments(function: Function, given: dict[str, Any], make_tensor: Callable[[Any], Any]) -> list[Argument]:
    """Return the arguments for a function: ``--arg`` by position, ``--input`` by name, ``--fill`` for the rest.

    Raises:
        CommandError: a name is wrong, an argument is missing or does not fit, or a size is not known.
        ValueError: an argument has no form that is known.
        OSError: a file cannot be read.
    """
    import numpy as np

    leaves = {leaf.name: leaf for parameter in function.signature.parameters for leaf in leaves_of(parameter)}
    texts = assigned(function, list(leaves), given)
    generator = np.random.default_rng(given["seed"])
    sizes: Sizes = {}
    values = {name: read(leaves[name], text, generator) for name, text in texts.items() if text not in FILLS}
    for name, value in values.items():
        check_fits(leaves[name], value, sizes)
    for name, text in texts.items():
        if text in FILLS:
            values[name] = filled(leaves[name], text, sizes, generator)
    return [assembled(parameter, texts, values, make_tensor) for parameter in function.signature.parameters]


def leaves_of(parameter: Parameter) -> Iterator[Parameter]:
    """Yield a parameter, or the items of a tuple, nested ones too."""
    if not parameter.items:
        yield parameter
    for item in parameter.items:
        yield from leaves_of(item)


def assigned(function: Function, names: list[str], given: dict[str, Any]) -> dict[str, str]:
    """Return what is written for each parameter, in the order of the parameters."""
    if len(given["args"]) > len(names):
        raise CommandError(
            f"{function.name}({', '.join(names)}) takes {len(names)} argument{'s' * (len(names) != 1)}, "
            f"got {len(given['args'])}", kind="TypeError",
        )  # fmt: skip
    texts = dict(zip(names, given["args"], strict=False))
    for name, text in split_inputs(given["inputs"], names):
        if name not in names:
            raise unknown(function, name, names, given["named"])
        if name in texts:
            raise CommandError(f"the input '{name}' is given twice", kind="ValueError")
        texts[name] = text
    missing = [name for name in names if name not in texts]
    if missing and not given["fill"]:
        raise nothing_given(function, missing)
    return {name: texts.get(name, given["fill"]) for name in names}


def unknown(function: Function, name: str, names: list[str], path: str) -> CommandError:
    near = difflib.get_close_matches(name, names, n=3)
    cause = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names[:FEW]) or 'none'}"
    next_step = f"portcall inspect {path} lists them"
    return CommandError(f"{function.name} has no parameter '{name}'", cause, next_step, kind="TypeError")


def nothing_given(function: Function, missing: Sequence[str]) -> CommandError:
    leaves = {leaf.name: leaf for parameter in function.signature.parameters for leaf in leaves_of(parameter)}
    shown = ", ".join(str(leaves[name]) for name in missing[:FEW])
    more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    name = missing[0]
    step = f"--input {name}=@{name}.npy, --input {name}=random, or --fill random for all that is missing"
    return CommandError(f"nothing is given for {shown}{more}", "", step, kind="TypeError")


def read(leaf: Parameter, text: str, generator: np.random.Generator) -> Any:
    if leaf.kind == "shape":
        words = text.strip("[]()").replace(",", " ").split()
        if not all(word.isdigit() for word in words):
            raise CommandError(f"cannot read the shape '{text}' for '{leaf.name}'", "", f"--input '{leaf.name}=[2,3]'",
                               kind="ValueError")  # fmt: skip
        return tuple(map(int, words))
    if leaf.kind == "tensor":
        return read_input(leaf.name, text, leaf.dtype, leaf.shape, generator)
    return read_value(text, generator)


def check_fits(leaf: Parameter, value: Any, sizes: Sizes) -> None:
    """Compare an array with the type of its parameter, and note the values of the variables in it."""
    import numpy as np

    if isinstance(value, np.ndarray) and leaf.kind == "tensor" and leaf.dtype and str(value.dtype) != leaf.dtype:
        raise misfit(leaf, f"{value.dtype} elements", f"give an array of {leaf.dtype}: x.astype('{leaf.dtype}')")
    got = value.shape if isinstance(value, np.ndarray) else value if leaf.kind == "shape" else None
    if got is None or leaf.shape is None:
        return
    if len(got) != len(leaf.shape):
        raise misfit(leaf, f"shape {list(got)}", "give one of that shape")
    for extent, wanted in zip(got, leaf.shape, strict=True):
        if isinstance(wanted, str) and wanted.isidentifier():
            wanted = sizes.setdefault(wanted, extent)
        if isinstance(wanted, int) and extent != wanted:
            values = ", ".join(f"{name} = {size}" for name, size in sizes.items() if name in leaf.shape)
            moved = transposing(got, [sizes.get(each, each) if isinstance(each, str) else each for each in leaf.shape])
            step = f"give {moved}" if moved else f"give one of that shape{values and f', with {values}'}"
            raise misfit(leaf, f"shape {list(got)}", step)


def misfit(leaf: Parameter, got: str, step: str) -> CommandError:
    return CommandError(f"the input '{leaf.name}' is {leaf.type}, got {got}", "", step, kind="ArgumentError")


def filled(leaf: Parameter, kind: str, sizes: Mapping[str, int], generator: np.random.Generator) -> Any:
    """Return an array of a parameter's type and shape."""
    if leaf.kind == "number":
        return make_array(kind, leaf.dtype or "int64", (), generator).item()
    shape = leaf.shape
    if leaf.kind not in ("tensor", "shape") or shape is None or (leaf.kind == "tensor" and not leaf.dtype):
        text = f"the type of '{leaf.name}' is not known well enough for {kind}: {leaf.type or 'TVM did not write it'}"
        raise CommandError(text, "", f"--input '{leaf.name}={kind}:float32[2,3]'", kind="ValueError")
    extents = [sizes.get(extent) if isinstance(extent, str) else extent for extent in shape]
    if None in extents:
        names = ", ".join(str(name) for name, extent in zip(shape, extents, strict=True) if extent is None)
        picture = len(extents) == 4
        usual = [1, *[224 if picture and place > 1 else 16 for place in range(1, len(extents))]]
        example = ",".join(str(extent or size) for extent, size in zip(extents, usual, strict=True))
        word = f"[{example}]" if leaf.kind == "shape" else f"{kind}:{leaf.dtype}[{example}]"
        raise CommandError(f"the size of {names} in {leaf} is not known", "no array that is given tells it",
                           f"--input '{leaf.name}={word}'", kind="ValueError")  # fmt: skip
    known = tuple(extent for extent in extents if extent is not None)
    return known if leaf.kind == "shape" else make_array(kind, leaf.dtype, known, generator)


def assembled(
    parameter: Parameter, texts: Mapping[str, str], values: Mapping[str, Any], make_tensor: Callable[[Any], Any]
) -> Argument:
    """Return the argument for a parameter, of a tuple with its items."""
    import numpy as np

    if parameter.items:
        items = [assembled(item, texts, values, make_tensor) for item in parameter.items]
        return Argument(f"({', '.join(item.text for item in items)})", tuple(item.value for item in items))
    value = values[parameter.name]
    return Argument(texts[parameter.name], make_tensor(value) if isinstance(value, np.ndarray) else value)
