# SPDX-License-Identifier: Apache-2.0
"""What ``run`` and ``bench`` share: load a library, find a function, call it, and say what failed and why."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import portcall
from portcall.cli._arguments import Argument, check_forms
from portcall.cli._command import read_duration
from portcall.cli._errors import DEVICE, CommandError
from portcall.errors import ModuleLoadError, PortcallError
from portcall.preflight import inspect_library

# The symbols and libraries that a problem is about.
NAMES = re.compile(r"(?<=')[^']+(?=')|[\w.+-]+\.so[\w.]*")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def call_options(function: Decorated) -> Decorated:
    """Add the arguments and options that say what is called, and on what."""
    options = [
        click.argument("library", type=click.Path()),
        click.argument("function"),
        click.option(
            "--arg", "args", multiple=True, metavar="SPEC", callback=check_forms, help="An argument, in order."
        ),
        click.option(
            "--out", "outs", multiple=True, metavar="TYPE[SHAPE]", help="An array to fill, after the arguments; zeros."
        ),
        click.option("--device", default="cpu:0", show_default=True, help="Where the arrays lie."),
        click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of random arguments."),
        click.option(
            "--timeout", metavar="DURATION", callback=read_duration, help="Kill the call after this time, such as 30s."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True)
class Call:
    """A function of a library with its arguments."""

    library: str
    name: str
    arguments: tuple[Argument, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(argument.text for argument in self.arguments)})"

    def values(self) -> list[Any]:
        return [argument.value for argument in self.arguments]

    def to_dict(self) -> dict[str, object]:
        return {
            "library": self.library,
            "function": self.name,
            "arguments": [argument.text for argument in self.arguments],
        }


def open_device(text: str) -> portcall.Device:
    """Return the device of that name, or a device error when it is not here."""
    try:
        device = portcall.device(text)
    except ValueError as error:
        raise CommandError(str(error), next_step="portcall doctor lists the devices", kind="ValueError") from error
    if not device.exist:
        raise CommandError(
            f"there is no device {text} here",
            "its driver or its runtime is missing",
            "portcall doctor",
            DEVICE,
            "DeviceError",
        )
    return device


def open_library(path: str) -> portcall.Module:
    """Return the library as a module; when it does not load, its file is read to say why."""
    if not os.path.exists(path):
        raise CommandError(
            f"there is no library '{path}'",
            "the path is wrong",
            "ls, or make one: portcall demo",
            kind="ModuleLoadError",
        )
    try:
        return portcall.load_module(path)
    except (ModuleLoadError, OSError) as error:
        causes = "; ".join(reasons(path, str(error)))
        raise CommandError(str(error), causes, f"portcall inspect {path}", kind=type(error).__name__) from error


def reasons(path: str, said: str) -> Iterator[str]:
    """Yield what reading the file adds to what was said already: problems with other symbols and libraries."""
    try:
        problems = inspect_library(path).problems
    except (PortcallError, OSError):
        return
    for problem in problems:
        if not any(name in said for name in NAMES.findall(problem)):
            yield problem


def find_function(library: portcall.Module, path: str, name: str) -> portcall.PackedFunc:
    """Return a function of a library; when there is none, the error proposes near names."""
    try:
        return library.get_function(name)
    except LookupError as error:
        near = getattr(error, "near", ())
        cause = f"the name is wrong; did you mean {' or '.join(near)}?" if near else "the name is wrong"
        raise CommandError(
            f"'{path}' has no function '{name}'", cause, f"portcall inspect {path}", kind="FunctionNotFoundError"
        ) from error


def guarded(call: Call, work: Callable[[], Any]) -> Any:
    """Do the work; whatever the called function raises is an error of the call, not of this program."""
    try:
        return work()
    except Exception as error:
        text = f"{call.name} raised {type(error).__name__}: {error}"
        raise CommandError(
            text, "its arguments are not what it expects", f"portcall inspect {call.library}", kind=type(error).__name__
        ) from error
