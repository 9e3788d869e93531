# SPDX-License-Identifier: Apache-2.0
"""A virtual machine as people use it: its functions are called with arrays, by position or by name.

It decides nothing about execution: the machine is a Module of the core, or of a session, whose functions are called by
TVM's names. What is added are conversions, checks of names, and words.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import portcall
from portcall import Device, Module, errors
from portcall._device import device as as_device
from portcall._module import VM_KINDS
from portcall._timing import DEFAULTS
from portcall.vm._executable import ENTRY, ExecutableInfo, Parameter, Signature, describe, entry_of
from portcall.vm._misfits import misfit
from portcall.vm._profile import Profile
from portcall.vm._values import REMOTE, LocalValues, RemoteValues, Values

if TYPE_CHECKING:
    from portcall.bench import BenchmarkResult

T = TypeVar("T")
_POOLED = 2  # kind of allocator
_HOST = 1  # DLPack's kind of device
_SAVED = "portcall.saved"  # what is timed


def create(lib: Module, device: Device | str | None = None) -> VirtualMachine:
    """Return a machine that runs the functions of an executable.

    Parameters:
        lib: what ``load_module`` returned for a library that TVM exported, here or in a session.
        device: where tensors lie and kernels run; by default the CPU of this process. One of a session for a library
            of that session.

    Raises:
        ValueError: the library has no executable, or the device belongs to another place.
        FunctionNotFoundError: the executable calls functions that neither its library has nor anyone registered; the
            message names all of them.
    """
    device = portcall.cpu(0) if device is None else as_device(device)
    executable = _executable_of(lib)
    device._check_serves(executable)
    machine: Module = executable["vm_load_executable"]()
    host = [] if device.device_type == _HOST else [_HOST, 0, _POOLED]  # where shapes are computed
    machine["vm_initialization"](device.device_type, device.device_id, _POOLED, *host)
    return VirtualMachine(executable, machine, device)


def _executable_of(lib: Module) -> Module:
    if not isinstance(lib, Module):
        raise errors.ArgumentError(
            f"a library is expected, such as portcall.load_module('m.so'), got {lib!r}",
            expected="a library", got=repr(lib),
        )  # fmt: skip
    if lib.type_key in VM_KINDS or (lib.type_key == REMOTE and lib.implements_function("vm_load_executable")):
        return lib
    raise ValueError(
        f"the library has no executable of a virtual machine (its root is a module of kind '{lib.type_key}'); "
        "portcall inspect shows what a file holds"
    )


class Function:
    """A function of a machine. Calling it takes arrays, numbers, texts, tuples and shapes, by position or by name."""

    def __init__(self, machine: VirtualMachine, name: str) -> None:
        self.name = name
        self._machine = machine
        self._call = machine.module[name]

    @property
    def signature(self) -> Signature:
        """The parameters and their types."""
        return self._machine.signature(self.name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function.

        Arrays of NumPy and of DLPack exporters are copied where kernels could not use them. A number for a tensor
        parameter becomes a tensor without dimensions, a tuple of numbers for a shape parameter a Shape.

        Returns:
            Tensors (in a session: remote tensors), numbers, Shapes, and tuples of them.

        Raises:
            TypeError: too few, too many or unknown arguments, or one of a wrong kind.
            ValueError: a tensor of another data type or number of dimensions.
            RuntimeError: a tensor of another shape.
        """
        m = self._machine
        given = m._arguments(self.name, args, named)
        return m._explaining(self.name, given, lambda: m._values.call(self._call, m.module, self.name, given))

    def __repr__(self) -> str:
        return f"<portcall.vm.Function {self.signature}>"


class VirtualMachine:
    """A machine with the functions of an executable.

    Several threads may call its functions. Memory of results that are gone is kept for the next call; the global
    function ``vm.builtin.memory_manager.clear`` frees it.

    Attributes:
        module: the machine as a Module, with TVM's functions (``set_input``, ``invoke_stateful`` …).
        device: where it runs.
    """

    def __init__(self, executable: Module, module: Module, device: Device) -> None:
        self.module = module
        self.device = device
        self._executable = executable
        session = getattr(device, "session", None)
        self._values: Values = RemoteValues(session, device) if session else LocalValues(device)
        self._info: ExecutableInfo | None = None
        self._functions: dict[str, Function] = {}
        self._signatures: dict[str, Signature] = {}

    @property
    def info(self) -> ExecutableInfo:
        """What the executable holds."""
        if self._info is None:
            self._info = describe(self._executable)
        return self._info

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that can be called."""
        return tuple(self.info.signatures)

    def signature(self, name: str = ENTRY) -> Signature:
        """Return the parameters of a function, with their types as TVM wrote them.

        Raises:
            FunctionNotFoundError: there is no such function.
        """
        if name not in self._signatures:
            known = self.info.signatures.get(name)
            if known is None:
                raise self._missing(name)
            self._signatures[name] = known if self.info.constants else self._asked(name)
        return self._signatures[name]

    def _asked(self, name: str) -> Signature:
        """Ask the machine for names of parameters: a server of TVM describes nothing."""
        count = self.module["get_function_arity"](name)
        tell = self.module["get_function_param_name"]
        return Signature(name, tuple(Parameter(tell(name, i)) for i in range(count)))

    def __getitem__(self, name: str) -> Function:
        if name not in self._functions:
            if name not in self.functions:
                raise self._missing(name)
            self._functions[name] = Function(self, name)
        return self._functions[name]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function ``main``, or the only one; see ``Function``."""
        return self[self.entry](*args, **named)

    @property
    def entry(self) -> str:
        """The function that calling the machine calls."""
        return entry_of(self.functions)

    def clone(self) -> VirtualMachine:
        """Return a machine of the same executable, which shares its constants: for stateful calls of another thread."""
        return create(self._executable, self.device)

    def benchmark(
        self, *args: Any, function: str | None = None, number: int = DEFAULTS.number,
        repeat: int = 3, min_repeat_ms: int = DEFAULTS.min_repeat_ms,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms, **named: Any,
    ) -> BenchmarkResult:  # fmt: skip
        """Time a function where it runs, in native code, with these arguments.

        Parameters:
            function: its name; ``main`` or the only one by default.
            number, repeat, min_repeat_ms, cooldown_interval_ms: see ``Module.time_evaluator``.
        """
        name = function or self.entry
        self[name]
        if "device" in named and "device" not in (each.name for each in self.signature(name).parameters):
            raise TypeError("benchmark() takes no device: a machine runs on its own, which vm.create was given")
        given = self._arguments(name, args, named)
        self.module["save_function"](name, _SAVED, False, *given)
        timed = self.module.time_evaluator(
            _SAVED, self.device, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms,
            cooldown_interval_ms=cooldown_interval_ms,
        )  # fmt: skip
        return self._explaining(name, given, timed)

    def profile(self, *args: Any, function: str | None = None, **named: Any) -> Profile:
        """Call a function once, and return where the time went. Inside of compiled functions nothing is seen.

        Raises:
            FunctionNotFoundError: the machine is one of TVM's server, which has no profiles.
        """
        name = function or self.entry
        self[name]
        given = self._arguments(name, args, named)
        return Profile.from_text(name, self._explaining(name, given, lambda: self.module["profile"](name, *given)))

    def _explaining(self, name: str, given: list[Any], call: Callable[[], T]) -> T:
        """Call a function; if that fails since an argument has another type than its parameter, say so."""
        try:
            return call()
        except (TypeError, ValueError, RuntimeError) as error:
            raise misfit(name, self.signature(name).parameters, given) or error from None

    def _arguments(self, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        parameters = self.signature(name).parameters
        given = _in_order(name, [parameter.name for parameter in parameters], args, named)
        return [self._values.given(value, each.type) for value, each in zip(given, parameters, strict=True)]

    def _missing(self, name: str) -> errors.FunctionNotFoundError:
        names = self.functions
        near = tuple(difflib.get_close_matches(name, names, n=3))
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names) or 'none'}"
        return errors.FunctionNotFoundError(f"the executable has no function {name!r}; {hint}", name=name, near=near)

    def __repr__(self) -> str:
        return f"<portcall.vm.VirtualMachine on {self.device}: {', '.join(self.functions)}>"


def _in_order(name: str, names: list[str], args: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
    """Return the arguments in the order of the parameters.

    Raises:
        TypeError: there are too few or too many, one is given twice, or a name is not known.
    """
    head = f"{name}({', '.join(names)})"
    if len(args) > len(names):
        raise TypeError(f"{head} takes {len(names)} arguments, got {len(args)}")
    unknown = [key for key in named if key not in names]
    if unknown:
        raise TypeError(f"{head} has no parameter {', '.join(map(repr, unknown))}")
    twice = [key for key in names[: len(args)] if key in named]
    if twice:
        raise TypeError(f"{head} got {', '.join(map(repr, twice))} twice")
    missing = [key for key in names[len(args) :] if key not in named]
    if missing:
        raise TypeError(f"{head} misses {', '.join(map(repr, missing))}")
    return [*args, *(named[key] for key in names[len(args) :])]
