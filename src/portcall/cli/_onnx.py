# SPDX-License-Identifier: Apache-2.0
"""ONNX models on the command line: what all commands that take one do first."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from portcall.bench import format_duration
from portcall.cli._command import Decorated
from portcall.cli._errors import CommandError, message_of
from portcall.cli._inputs import read_input
from portcall.cli._output import echo_error
from portcall.cli._progress import StatusLine
from portcall.errors import ModelError, WrongResultsError

SUFFIX = ".onnx"
SHAPE = re.compile(r"(?P<name>.+)=(?P<extents>(?:\d+|\?)(?:[x,](?:\d+|\?))*|)")


def read_shapes(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, tuple[int | None, ...]]:
    """Read ``NAME=1x3x224x224``; a callback of click. An extent that is ``?`` is None."""
    found = {}
    for text in texts:
        match = SHAPE.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"'{text}' is not of the form NAME=1x3x224x224", ctx, param)
        extents = filter(None, re.split("[x,]", match["extents"]))
        found[match["name"]] = tuple(None if extent == "?" else int(extent) for extent in extents)
    return found


def read_constants(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """Read ``NAME=3`` and ``NAME=@file.npy``; a callback of click."""
    if not texts:
        return {}
    import numpy as np

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"'{text}' is not of the form NAME=VALUE", ctx, param)
        try:
            found[name] = read_input(name, value, "", None, np.random.default_rng(0))
        except (CommandError, OSError) as error:
            raise click.BadParameter(message_of(error), ctx, param) from error
    return found


def fix_options(function: Decorated) -> Decorated:
    """Add the options that fix shapes of an ONNX model's inputs, and whole inputs."""
    shape = click.option(
        "--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", callback=read_shapes,
        help="The shape of an input of an ONNX model, where that does not fix it.",
    )  # fmt: skip
    constant = click.option(
        "--constant", "constants", multiple=True, metavar="NAME=VALUE", callback=read_constants,
        help="An input of an ONNX model that never changes, such as sr=16000. Can be repeated.",
    )  # fmt: skip
    return shape(constant(function))


def target_option(function: Decorated) -> Decorated:
    """Add the option that says for which machine an ONNX model is compiled before it runs."""
    option = click.option(
        "--target", default="native", show_default=True, metavar="TRIPLE[:CPU]",
        help="The machine of --rpc, for an ONNX model; wasm32 for a tab.",
    )  # fmt: skip
    return option(function)


def compiled(
    path: str, shapes: dict[str, Any], constants: dict[str, Any], target: str = "native", inputs: Sequence[str] = ()
) -> str:
    """Return a file to run: an ONNX model compiled, from the cache or now; any other file as it is.

    Parameters:
        inputs: ``NAME=SPEC`` each; what they are fixes the shapes of a model that cannot be compiled without.
    """
    if not path.endswith(SUFFIX):
        given = {"--shape": bool(shapes), "--constant": bool(constants), "--target": target != "native"}
        option = next((option for option, there in given.items() if there), "")
        if option:
            raise click.UsageError(f"{option} is for ONNX models, which '{path}' is not")
        return path
    from portcall import compile

    with steps(path) as step:
        make = functools.partial(compile.onnx, path, target, constants=constants, cache=True, progress=step)
        try:
            return str(make(shapes=shapes))
        except WrongResultsError:
            raise
        except ModelError:
            known = {**shapes_of(inputs), **shapes}
            if known == shapes:
                raise
        return str(make(shapes=known))


def shapes_of(inputs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs that are written as arrays; other errors of theirs are told later."""
    import numpy as np

    found: dict[str, tuple[int, ...]] = {}
    for text in inputs:
        name, _, value = text.partition("=")
        with contextlib.suppress(CommandError, OSError):
            array = read_input(name, value, "", None, np.random.default_rng(0))
            found[name] = np.shape(array)
    return found


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Leave torch out of what is imported: TVM imports it where there is one, which takes seconds and is not needed."""
    left_out = "torch" not in sys.modules
    if left_out:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if left_out:
            del sys.modules["torch"]


@contextlib.contextmanager
def steps(path: str) -> Iterator[Callable[[str, float], None]]:
    """Show the steps of compiling a model, and explain its errors; the returned function is called with each step."""
    total = 0.0
    with explained(path), without_torch(), StatusLine() as status, contextlib.ExitStack() as shown:

        def step(name: str, seconds: float) -> None:
            nonlocal total
            shown.close()
            if seconds < 0:
                shown.enter_context(status.expect(f"compiling {path}: {name}", 0))
            else:
                total += seconds

        shown.enter_context(status.expect("loading the compiler", 0))  # until the first step: TVM takes seconds
        yield step
    if total:
        echo_error(f"compiled {path} in {format_duration(total)}")


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Say of errors of models what to do."""
    try:
        yield
    except ModelError as error:
        text = message_of(error)
        raise CommandError(
            text if f"'{path}'" in text else f"{path}: {text}", "", error.hint, kind="ModelError"
        ) from error
