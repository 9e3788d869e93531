# SPDX-License-Identifier: Apache-2.0
"""Shared by ``run`` and ``bench``: the files and names, the place to run, and the errors.

What is run is a function of a library, or a model: a graph with the library of its kernels, or a file that holds both.
The first file's content decides, and whether a second word is there:

    a graph (JSON) LIBRARY        the model                  a library FUNCTION    the function
    a bundle, or a library of TVM with a graph in it         the model
    a library with an executable (FUNCTION)                  that function, or main
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall.cli._arguments import Argument, check_forms, check_outputs, make_arguments
from portcall.cli._command import Decorated, read_limit, with_options
from portcall.cli._errors import DEVICE, CommandError, nearest_folder
from portcall.cli._isolate import isolate
from portcall.cli._progress import StatusLine
from portcall.cli._remote import facts_of, open_session, print_clocks, session_options, uses_farm
from portcall.cli._vm_arguments import machine_arguments
from portcall.errors import GraphError, ModuleLoadError, PortcallError, RemoteError, RPCError
from portcall.inspect import check_file, inspect_library

if TYPE_CHECKING:
    from portcall.rpc import Session
    from portcall.vm import Function, VirtualMachine

OTHER_OPTIONS = {True: "a model takes --input NAME=SPEC", False: "a function takes --arg SPEC and --out TYPE[SHAPE]"}
WRONG_ARGUMENTS = "it expects other arguments"
WRITE_OTHERS = "give others with --arg and --out; portcall run --help shows their forms"
FILES = (".so", ".json", ".onnx", ".wasm", ".o", ".a", ".tar", ".c", ".cc", ".params")  # never a function's name
LOADED = (".so", ".dll", ".dylib", ".dso")  # by load_module, which finds libm.so.6, too
# The symbols and libraries that a problem is about.
NAMES = re.compile(r"(?<=')[^']+(?=')|[\w.+-]+\.so[\w.]*")


def call_options(function: Decorated) -> Decorated:
    """Add the arguments and options for the call and its device."""
    options = [
        click.argument("file", type=click.Path(), metavar="LIBRARY|GRAPH|BUNDLE"),
        click.argument("second", required=False, metavar="[FUNCTION|LIBRARY]"),
        click.option(
            "--arg", "args", multiple=True, metavar="SPEC", callback=check_forms, help="An argument, in order."
        ),
        click.option(
            "--out",
            "outs",
            multiple=True,
            metavar="TYPE[SHAPE]",
            callback=check_outputs,
            help="An array to fill, after the arguments; zeros.",
        ),
        click.option(
            "--device", default="cpu:0", show_default=True, help="Where to run; a model may have several: cpu:0,cuda:0."
        ),
        click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of random arguments."),
        click.option(
            "--timeout", metavar="TIME", callback=read_limit, help="Kill the call after this time, such as 30s."
        ),
        click.option(
            "--rpc",
            metavar="REMOTE",
            help="Upload the library to this server, by name or HOST:PORT, and call it there.",
        ),
        click.option("--no-check", is_flag=True, help="Upload it even if the server says that it cannot load it."),
    ]
    function = session_options(function)
    return with_options(function, options)


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


@dataclass(frozen=True)
class Place:
    """Where a call takes place, with the library loaded there.

    Attributes:
        devices: where to run; on the first of them lie the arrays that ``make_tensor`` makes.
        name: the devices in words.
        status: shows how far long work is.
        session: None for this process.
    """

    devices: tuple[portcall.Device, ...]
    library: portcall.Module
    make_tensor: Callable[[Any], Any]
    name: str
    status: StatusLine
    session: Session | None = None

    @property
    def device(self) -> portcall.Device:
        return self.devices[0]

    def facts(self) -> dict[str, object]:
        return {} if self.session is None else {"rpc": facts_of(self.session)}

    def show(self, runs: str = "run") -> None:
        """Print how long each part took on a server; ``runs``: what its calls are."""
        if self.session is not None:
            print_clocks(self.session, runs)


def is_model(given: dict[str, Any]) -> bool:
    """Say whether the words mean a model rather than a function; the file of a server's own function becomes "".

    Raises:
        click.UsageError: they mean neither, or an option is for the other.
        CommandError: the file does not exist.
    """
    from portcall.graph import file_kind

    path, second = given["file"], given["second"]
    if names_function_of_server(given):
        given["file"], given["second"] = "", path
        return False
    check_exists(path)
    check_whole(path)
    is_graph = os.path.isfile(path) and file_kind(path) == "graph"
    if is_graph and not second:
        raise click.UsageError(f"'{path}' is a graph; name the library of its kernels, too: {path} kernels.so")
    model = is_graph or not second
    executable = None if is_graph else entry_of(path)
    if executable:
        given["second"], model = second or executable, False
    if not is_graph and model and not holds_graph(path):
        raise click.UsageError(
            f"Missing argument 'FUNCTION': '{path}' is a library without a graph; portcall inspect {path} lists its "
            "functions."
        )
    if executable:
        refuse_for_executables(given)
        return False
    for name, of_models in (("args", False), ("outs", False), ("inputs", True), ("params", True), ("fill", True)):
        if given[name] and of_models != model:
            option = f"--{name.rstrip('s') if name != 'params' else name}"
            raise click.UsageError(f"{option} is for {'models' if of_models else 'functions'}; {OTHER_OPTIONS[model]}")
    return model


def names_function_of_server(given: dict[str, Any]) -> bool:
    """Say whether the one word that is given is not a file here but a function that the server itself offers."""
    path = given["file"]
    word = not given["second"] and os.sep not in path and not path.endswith(FILES)
    return word and bool(given["rpc"] or uses_farm(given["rpc"], given)) and not os.path.exists(path)


def refuse_for_executables(given: dict[str, Any]) -> None:
    for name, option in (("outs", "--out"), ("params", "--params"), ("allow_nan", "--allow-nan")):
        if given[name]:
            raise click.UsageError(
                f"{option} is not for models of the Relax VM, which make their results and hold their parameters; "
                "they take --arg, --input and --fill"
            )


def holds_graph(path: str) -> bool:
    """Say whether a library has a graph in it: a bundle, or one into which TVM linked a graph.

    Raises:
        ModuleLoadError: the file is not a library.
    """
    from portcall.graph import file_kind, read_embedded

    if os.path.isfile(path) and file_kind(path) == "bundle":
        return True
    try:
        return read_embedded(path) is not None
    except GraphError:  # a damaged one: opening it raises with the reason
        return True


def entry_of(path: str) -> str | None:
    """Return the function of a library's executable that a call without a name means; None without an executable.

    Raises:
        ModuleLoadError: the executable in the library is damaged.
    """
    from portcall import vm

    info = vm.read_embedded(path) if is_library(path) else None
    return info.entry if info and info.signatures else None


def is_library(path: str) -> bool:
    """Return whether a file begins as a library does; others (sources, archives) are compiled or linked first."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def isolate_here(ctx: click.Context, given: dict[str, Any], work: str) -> None:
    """Go on in a separate process, unless the call is in another one anyway."""
    if is_here(given):
        isolate(ctx, work, given["timeout"])


def is_here(given: dict[str, Any]) -> bool:
    """Say whether the library is loaded by this process.

    ``open``, where a command gives it, opens the sessions: a comparison has two of them, again and again.
    """
    return not (given.get("open") or given["rpc"] or uses_farm(given["rpc"], given))


@contextlib.contextmanager
def open_place(given: dict[str, Any], path: str, devices: Sequence[str]) -> Iterator[Place]:
    """Load a library: in this process, or on the server that ``--rpc`` names."""
    text = ",".join(devices)
    if is_here(given):
        here = tuple([open_device(device) for device in devices])
        library = open_library(path)
        with StatusLine() as status:
            yield Place(here, library, lambda array: portcall.tensor(array, device=here[0]), text, status)
        return
    if path:
        check_exists(path)
    opening = given["open"]() if given.get("open") else open_session(given["rpc"] or "", given, given["timeout"])
    with opening as (session, status):
        there = tuple([open_device(device, session) for device in devices])
        library = load_there(session, path, not given["no_check"], status) if path else session.module
        name = f"{text} of {session.name}"
        yield Place(there, library, lambda array: session.tensor(array, there[0]), name, status, session)


def load_there(session: Session, path: str, check: bool, status: StatusLine) -> portcall.Module:
    from portcall.rpc import PopenSession

    if isinstance(session, PopenSession) and is_library(path):  # it sees the same files
        return load_in_process(session, path)
    try:
        with status.transfer(f"upload {os.path.basename(path)}", os.path.getsize(path)) as advance:
            sent = session.upload(path, progress=advance, check=check)
    except ModuleLoadError as error:
        text = f"{session.name} cannot load '{path}', so it was not uploaded"
        next_step = f"portcall inspect {path}, or --no-check to upload it anyway"
        raise CommandError(text, "; ".join(error.problems), next_step, kind="ModuleLoadError") from error
    except RemoteError as error:
        text = f"{session.name} does not take '{path}': {error.message}"
        no_room = any(words in error.message for words in ("--disk-limit", os.strerror(errno.ENOSPC)))
        cause = "it has no room for the file: see --disk-limit and --work-dir of the server" if no_room else ""
        raise CommandError(text, cause, f"portcall doctor {session.name}", kind=error.kind or "RemoteError") from error
    try:
        return session.load_module(sent)
    except RemoteError as error:
        causes = "; ".join(reasons(path, str(error))) or "it is built for another machine, or lacks a library there"
        text = f"{session.name} does not load '{path}': {error.message}"
        raise CommandError(text, causes, f"portcall inspect {path}", kind=error.kind or "RemoteError") from error


def load_in_process(session: Session, path: str) -> portcall.Module:
    try:
        module: portcall.Module = session["ffi.ModuleLoadFromFile"](os.path.abspath(path))
    except RemoteError as error:
        raise not_loaded(path, error.message, error.kind or "ModuleLoadError") from error
    return module


def check_exists(path: str) -> None:
    if not os.path.exists(path):
        raise CommandError(
            f"no such file: '{path}'",
            "the path is wrong",
            f"ls {shlex.quote(nearest_folder(path))}" + ", or make one: portcall demo" * path.endswith(".so"),
            kind="ModuleLoadError",
        )


def check_output(path: str, for_wasm: bool) -> None:
    """Refuse to write a library under a name by which nothing loads it.

    Parameters:
        for_wasm: it is for WebAssembly.

    Raises:
        CommandError: the name does not end in one of the loader's suffixes.
    """
    name = os.path.basename(path)
    if name.endswith(LOADED) or ".so." in name or (for_wasm and name.endswith(".wasm")):
        return
    ending = os.path.splitext(name)[1]
    what = f"'{ending}'" if ending else "a name without a suffix"
    hint = f"-o {shlex.quote(path.removesuffix(ending) + ('.wasm' if for_wasm else '.so'))}"
    text = f"cannot write '{path}': nothing loads a library that ends in {what}"
    raise CommandError(text, "", hint, kind="ValueError")


def check_whole(path: str) -> None:
    """Refuse a file that portcall made and that is damaged: some of its parameters may be missing, or be others."""
    if is_library(path):
        try:
            check_file(path)
        except ModuleLoadError as error:
            raise CommandError(
                str(error), "it was not copied whole, or its disk is failing", "copy it, or make it, again",
                kind="ModuleLoadError",
            ) from error  # fmt: skip


def open_device(text: str, session: Session | None = None) -> portcall.Device:
    """Return the device of that name, or a device error when it is not there."""
    make = session.device if session else portcall.device
    try:
        device = make(text)
    except ValueError as error:
        raise CommandError(str(error), next_step="portcall doctor lists the devices", kind="ValueError") from error
    if not device.exist:
        raise CommandError(
            f"device {text} does not exist {f'on {session.name}' if session else 'here'}",
            reason_of(device, make(device.kind, 0)),
            f"portcall doctor {session.name} lists the devices" if session else "portcall doctor lists the devices",
            DEVICE,
            "DeviceError",
        )
    return device


def reason_of(device: portcall.Device, first: portcall.Device) -> str:
    """Return why a device does not exist, in the words of its plug-in; ``first`` is number 0 of the kind."""
    if device.device_id and first.exist:
        return f"they count from 0: there is {first}, and nothing above the last one"
    try:
        _ = device.device_name
    except RemoteError as error:
        return error.message
    except PortcallError as error:
        return str(error)
    return "its driver or its runtime is missing"


def open_library(path: str) -> portcall.Module:
    """Return the library as a module; when it does not load, read its file to find the reason."""
    check_exists(path)
    try:
        return portcall.load_module(path)
    except (ModuleLoadError, OSError) as error:
        raise not_loaded(path, str(error), type(error).__name__) from error


def not_loaded(path: str, said: str, kind: str) -> CommandError:
    causes = "; ".join(reasons(path, said))
    next_step = f"portcall inspect {path}" if can_be_read(path) else "give the path of a shared library (.so)"
    return CommandError(said, causes, next_step, kind=kind)


def reasons(path: str, said: str) -> Iterator[str]:
    """Yield problems with symbols and libraries that the loader's message does not name."""
    try:
        problems = inspect_library(path).problems
    except (PortcallError, OSError):
        return
    for problem in problems:
        if not any(name in said for name in NAMES.findall(problem)):
            yield problem


def can_be_read(path: str) -> bool:
    """Return whether a file is a library that ``inspect`` can read."""
    try:
        inspect_library(path)
    except (PortcallError, OSError):
        return False
    return True


def find_function(library: portcall.Module, path: str, name: str) -> portcall.PackedFunc:
    """Return a function of a library; when there is none, the error proposes near names."""
    try:
        return library.get_function(name)
    except LookupError as error:
        if not path:
            raise CommandError(
                f"there is no file '{name}' here, and the server offers no function of that name",
                "the name is wrong, or the server was started without the file that registers it",
                "portcall serve --import FILE on the server, or portcall run LIBRARY FUNCTION",
                kind="FunctionNotFoundError",
            ) from error
        near = getattr(error, "near", ()) or difflib.get_close_matches(name, functions_of(path), n=3)
        raise no_function(path, name, near) from error


def open_machine(place: Place, path: str) -> VirtualMachine | None:
    """Return a machine for the executable in a library; None for a library that has none."""
    from portcall import vm

    return vm.create(place.library, place.device) if is_library(path) and vm.read_embedded(path) else None


def arguments_of(
    machine: VirtualMachine | None, name: str, given: dict[str, Any], place: Place
) -> tuple[Argument, ...]:
    """Return the arguments of a call, as options give them."""
    if machine is None:
        made = make_arguments(given["args"], given["outs"], given["seed"], place.make_tensor)
    else:
        made = machine_arguments(machine[name], given, place.make_tensor)
    return tuple(made)


def find_machine_function(machine: VirtualMachine, path: str, name: str) -> Function:
    """Return a function of a machine; when there is none, the error proposes near names."""
    try:
        return machine[name]
    except LookupError as error:
        raise no_function(path, name, getattr(error, "near", ())) from error


def no_function(path: str, name: str, near: Sequence[str]) -> CommandError:
    cause = f"the name is wrong; did you mean {' or '.join(near)}?" if near else "the name is wrong"
    return CommandError(
        f"'{path}' has no function '{name}'", cause, f"portcall inspect {path} lists them", kind="FunctionNotFoundError"
    )


def functions_of(path: str) -> tuple[str, ...]:
    """Return the names of the functions of a library, wherever it is loaded; none if it cannot be read here."""
    try:
        return inspect_library(path).functions
    except (PortcallError, OSError):
        return ()


def calling(call: Call, work: Callable[[], Any]) -> Any:
    """Do the work; an exception of the called function becomes an error of the call."""
    try:
        return work()
    except RemoteError as error:
        text, kind = f"{call.name} raised on {error.peer} {error}", error.kind or "RemoteError"
        raise CommandError(text, *about_error(call, kind, text), kind=kind) from error
    except RPCError:
        raise
    except Exception as error:
        text, kind = f"{call.name} raised {type(error).__name__}: {error}", type(error).__name__
        raise CommandError(text, *about_error(call, kind, text), kind=kind) from error


def about_error(call: Call, kind: str, text: str) -> tuple[str, str]:
    """Return the likely cause of what a function raised, and the next step, where class or text tell."""
    if "in the host's memory" in text:
        return "it runs on the host", "leave out --device"
    if "device_type" in text:  # compiled code compares it with its own
        for name in kernel_kinds(call.library):
            return f"its kernels are for {name}", f"--device {name}:0"
    return (WRONG_ARGUMENTS, WRITE_OTHERS) if kind in ("ArgumentError", "TypeError") else ("", "")


def kernel_kinds(path: str) -> list[str]:
    """Return the kinds of device that a library has kernels for."""
    try:
        return [module.kind for module in inspect_library(path).modules if module.kernels]
    except (PortcallError, OSError):
        return []
