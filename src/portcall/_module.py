# SPDX-License-Identifier: Apache-2.0
"""Modules: named sets of functions, from a shared library, from code linked into the program, or from a device."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from portcall import _core, errors
from portcall._core import PackedFunc
from portcall._device import Device
from portcall._device import device as as_device
from portcall._function import convert, get_global_func, not_found
from portcall._html import facts_as_html
from portcall._timing import DEFAULTS, TimingOptions

if TYPE_CHECKING:
    from portcall.bench._result import BenchmarkResult

GRAPH_KINDS = ("GraphExecutorFactory", "GraphRuntimeFactory")  # of modules with a graph; the second until TVM 0.7
IR_LIBRARY = Path(_core.__file__).parent / "lib" / "libportcall_ir.so"  # loaded when something needs it
VM_KINDS = ("relax.VMExecutable",)  # of modules that the library below runs
VM_LIBRARY = IR_LIBRARY.with_name("libportcall_vm.so")
SESSION_LIBRARY = IR_LIBRARY.with_name("libportcall_session.so")  # what runs inside of a session, on a server
_TO_LINK = (".o", ".a", ".tar", ".c", ".cc", ".cpp", ".cxx")
_FOREIGN_RUNTIME = "libtvm_ffi.so"
_FORWARDER = IR_LIBRARY.parent / "forward" / _FOREIGN_RUNTIME  # an empty library of that name, which needs the core
_REMOTE = "rpc"  # modules of sessions
_FEW, _MANY = 8, 100  # names of functions that are shown


class Module(_core.Module):
    """A set of functions. ``module.name`` and ``module["name"]`` are one of them, which keeps the module alive.

    ``module.name`` is looked up once and kept. Attributes and methods of modules come first: a function ``kind`` is
    ``module["kind"]``. So is one whose name begins with an underscore.
    """

    __slots__ = ("__dict__",)  # of the functions that were asked for as attributes

    @staticmethod
    def from_functions(functions: Mapping[str, Callable[..., Any]]) -> Module:
        """Return a module made of Python functions, or of functions of any language, by name.

        It is used as any other module: a library imports it, a graph takes its kernels from it.

        Raises:
            ArgumentError: a value is not callable.
        """
        given: Mapping[str, Any] = functions
        for name, function in given.items():
            if not callable(function):
                got = type(function).__name__
                text = f"the function {name!r} of a module is not callable, but {got}"
                raise errors.ArgumentError(text, function=name, expected="a callable", got=got)
        packed = {name: convert(function) for name, function in functions.items()}
        made: Module = get_global_func("portcall.ModuleOfFunctions")(packed)
        return made

    def __getitem__(self, name: str) -> PackedFunc:
        return self.get_function(name)

    def __getattr__(self, name: str) -> PackedFunc:
        if name.startswith("_"):  # Python and notebooks ask for many, and a server should not be asked for each
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        try:
            found = self.__dict__[name] = self.get_function(name)
        except errors.FunctionNotFoundError as error:
            raise AttributeError(str(error), name=name, obj=self) from None
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the functions of a module do not change: cannot set {name!r}", name=name, obj=self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.implements_function(name)

    __iter__: Any = None  # or Python would ask for functions named 0, 1 and so on

    def __dir__(self) -> list[str]:
        names = self._ipython_key_completions_()
        return sorted({*object.__dir__(self), *(n for n in names if n.isidentifier() and not n.startswith("_"))})

    def _ipython_key_completions_(self) -> list[str]:
        try:
            return self.list_function_names()
        except errors.RPCError:  # a module of a session that is over: people type its name all the same
            return []

    def get_function(self, name: str, query_imports: bool = False) -> PackedFunc:
        """Return a function of this module or, if asked for, of the modules that it imports.

        Raises:
            FunctionNotFoundError: there is none of that name. The message lists near names, and imported modules of
                kinds that cannot run here.
        """
        func: PackedFunc | None = get_global_func("ffi.ModuleGetFunction")(self, name, query_imports)
        if func is None:
            raise self._missing(name)
        return func

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Return whether ``get_function`` would find one."""
        return bool(get_global_func("ffi.ModuleImplementsFunction")(self, name, query_imports))

    def list_function_names(self) -> list[str]:
        """Return the names of the functions, where the module knows them; imported modules are not asked."""
        return list(get_global_func("portcall.ModuleFunctionNames")(self))

    def metadata(self, name: str) -> dict[str, Any]:
        """Return what the library says of a function, as tvm-ffi has it: ``type_schema``, a text of JSON, and ``doc``.

        What it does not say is left out; a module of a session says nothing.

        Raises:
            FunctionNotFoundError: the module has no such function.
        """
        from portcall._signature import metadata_of  # few programs ask, and it loads a lot

        found: dict[str, Any] = dict(metadata_of(_core.signature_text(self.get_function(name))))
        told = f"_doc_{name}"
        if self.type_key != _REMOTE and self.implements_function(told) and (doc := str(self.get_function(told)())):
            found["doc"] = doc
        return found

    @property
    def registered(self) -> list[str]:
        """What the library registered when it was loaded: names of global functions and keys of types, in order.

        Empty for other modules, and for a library that is linked with libtvm_ffi.so of tvm-ffi, and told that one.
        """
        return [] if self.type_key == _REMOTE else list(get_global_func("portcall.LibraryRegistered")(self))

    def _missing(self, name: str) -> errors.FunctionNotFoundError:
        names = self.list_function_names()
        what = f"a module of type {self.type_key!r} has no function {name!r}"
        runnable = get_global_func("portcall.ModuleIsRunnable")
        idle = sorted({m.type_key for m in self._walk() if not runnable(m)})
        if not runnable(self):
            what = f"a module of type {self.type_key!r} cannot run here, so it has no function {name!r}"
        elif idle:
            what += f" (it brings modules of types that cannot run here: {', '.join(idle)})"
        elif "vm_load_executable" in names:
            what += " (portcall.vm.create makes what runs its functions)"
        return not_found(what, name, names)

    def _walk(self) -> list[Module]:
        found = [self]
        for module in self.imported_modules:
            found.extend(module._walk())
        return found

    def __call__(self, *args: Any) -> Any:
        """Call the entry function."""
        return self.get_function(self.entry_name)(*args)

    @property
    def kind(self) -> str:
        """The kind of module: ``library``, ``cuda``, …"""
        return str(get_global_func("ffi.ModuleGetKind")(self))

    @property
    def type_key(self) -> str:
        """The same, by its older name."""
        return self.kind

    @property
    def entry_name(self) -> str:
        """The name of the entry function, as the compiler set it; ``main`` by default."""
        return str(get_global_func("portcall.ModuleEntryName")(self))

    @property
    def imported_modules(self) -> list[Module]:
        """The modules that this one looks for functions in."""
        return list(get_global_func("ffi.ModuleImports")(self))

    def import_module(self, other: Module) -> None:
        """Let compiled code of this module find the functions of ``other``.

        Raises:
            ValueError: ``other`` imports this module, directly or not.
        """
        get_global_func("ffi.ModuleImportModule")(self, other)

    def clear_imports(self) -> None:
        """Import nothing any more. Compiled code keeps the functions that it has looked up already."""
        if self.kind == _REMOTE:
            raise ValueError("the imports of a module of a session are its server's")
        get_global_func("ffi.ModuleClearImports")(self)

    def is_runnable(self) -> bool:
        """Return whether functions of this module can be called here: a kernel of a device that is not here cannot."""
        return bool(get_global_func("portcall.ModuleIsRunnable")(self))

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write the library that this module was loaded from, with what it brings, to another file.

        Raises:
            ValueError: the module is not of a library, or it imports one that its file does not have.
        """
        own = get_global_func("portcall.LibraryPath")(self) if self.kind == "library" else ""
        if not own:
            raise ValueError(
                f"a module of type {self.type_key!r} has no library to write; toolchain.create_shared makes one of "
                "sources and objects"
            )
        apart = sorted({m.kind for m in self._walk() if m is not self} & {"library", "functions", _REMOTE})
        if apart:
            raise ValueError(f"'{own}' does not have what the module imports, of types: {', '.join(apart)}")
        Path(path).write_bytes(Path(own).read_bytes())

    def save(self, path: str | os.PathLike[str], fmt: str = "") -> None:
        """Write the module to a file: its library, or the source that it keeps, in that format.

        Raises:
            ValueError: it has neither.
        """
        if self.kind == "library" and not fmt:
            self.export_library(path)
        else:
            Path(path).write_bytes(get_global_func("ffi.ModuleInspectSource")(self, fmt))

    def get_source(self, fmt: str = "") -> str:
        """Return the source that the module keeps.

        Raises:
            ValueError: it keeps none, or none of that format.
        """
        source: bytes = get_global_func("ffi.ModuleInspectSource")(self, fmt)
        return source.decode(errors="replace")

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | str,
        number: int = DEFAULTS.number,
        repeat: int = DEFAULTS.repeat,
        min_repeat_ms: int = DEFAULTS.min_repeat_ms,
        limit_zero_time_iterations: int = DEFAULTS.limit_zero_time_iterations,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms,
        repeats_to_cooldown: int = DEFAULTS.repeats_to_cooldown,
        cache_flush_bytes: int = 0,
        f_preproc: str = "",
    ) -> Callable[..., BenchmarkResult]:
        """Return a function that takes the arguments of ``func_name`` and times it, in native code.

        One call warms up. Then each of ``repeat`` measurements runs the function ``number`` times, or more often until
        the measurement takes ``min_repeat_ms`` milliseconds, and counts its mean time.

        Parameters:
            limit_zero_time_iterations: measurements of exactly zero time that are repeated before zero is believed.
            cooldown_interval_ms: pause after every ``repeats_to_cooldown`` measurements.
            cache_flush_bytes: bytes of memory to move before each measurement, so that caches are cold.
            f_preproc: name of a global function that gets the arguments before each measurement, untimed;
                ``cache_flush_cpu_non_first_arg`` flushes all arguments but the first.

        Raises:
            FunctionNotFoundError: the module has no such function.
            ValueError: a number that makes no sense, or a device of a session that the module is not of.
        """
        self.get_function(func_name)  # raises with similar names if it is missing
        if f_preproc and self.type_key != "rpc":  # a server looks among its own
            get_global_func(f_preproc)
        target = as_device(dev)
        target._check_serves(self)
        options = TimingOptions(
            number, repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown
        )
        evaluate = get_global_func("runtime.RPCTimeEvaluator")(
            self, func_name, target.device_type, target.device_id, *options, cache_flush_bytes, f_preproc
        )

        def run(*args: Any) -> BenchmarkResult:
            from portcall.bench._result import BenchmarkResult  # subpackages load on first use

            return BenchmarkResult.from_bytes(evaluate(*args))

        return run

    def __repr__(self) -> str:
        names = self._known_names()
        told = names or self.registered
        between = "" if not told else ": " if names else ", which registered "
        return f"<portcall.Module {self._origin()}{between}{_listed(told, _FEW)}>"

    def _repr_html_(self) -> str:
        facts = [("from", self._origin()), ("functions", _listed(self._known_names(), _MANY) or "not known")]
        if self.type_key != _REMOTE and self.imported_modules:
            facts.append(("imports", ", ".join(module._origin() for module in self.imported_modules)))
        return facts_as_html("portcall.Module", facts)

    def _origin(self) -> str:
        path = get_global_func("portcall.LibraryPath")(self) if self.type_key == "library" else ""
        return repr(path) if path else f"of type {self.type_key!r}"

    def _known_names(self) -> list[str]:
        """Return the names of the functions if no server has to be asked for them."""
        return [] if self.type_key == _REMOTE else self.list_function_names()


def _listed(names: list[str], most: int) -> str:
    more = f", … and {len(names) - most:,} more" if len(names) > most else ""
    return errors.printable(", ".join(names[:most]) + more)


_core.register_class(_core.TYPE_INDEX["Module"], Module)


_plugins: list[Module] = []


def load_module(path: str | os.PathLike[str], *, foreign: Literal["adopt"] | None = None) -> Module:
    """Load a shared library compiled by TVM (0.6 and later), by a tvm-ffi compiler, or with portcall's headers.

    The library is mapped once: loading the same file again gives the same module while that is alive, and a file that
    has changed since is loaded again. One that exports no function, but registers functions or types, gives a module
    without functions; ``Module.registered`` names what it registered.

    Objects (``.o``), archives (``.a``), sources in C or C++, and tar files (``.tar``) of those are linked first, to a
    library beside them, named as the file with ``.so`` appended.

    Parameters:
        foreign: what a library that was linked with ``libtvm_ffi.so`` runs on: the runtime of that name, from
            apache-tvm-ffi (None), or portcall's ("adopt"), which has its C functions. The first library that is adopted
            decides for all that the process loads afterwards.

    Raises:
        ModuleLoadError: the file is missing, is not such a library, is built for another machine, or
            needs symbols that no library provides; or it is to be adopted, and ``libtvm_ffi.so`` of apache-tvm-ffi is
            in the process already. The message names the problem.
        CompileError: the compiler or the linker failed; the message has its output.
    """
    if foreign not in (None, "adopt"):
        raise ValueError(f"foreign is 'adopt' or None, got {foreign!r}")
    text = os.fsdecode(path)
    if text.endswith(_TO_LINK):
        text = _linked(text)
    if foreign == "adopt":
        _take_foreign_name(text)
    try:
        return _load(text)
    except errors.ModuleLoadError as error:
        told = str(error)
        if foreign is None and f"linked with {_FOREIGN_RUNTIME}" in told:
            if _load_foreign_runtime():
                return _load(text)
            told += "; foreign='adopt' gives it portcall's runtime"
        raise errors.ModuleLoadError(told, path=text) from None


def load_plugin(path: str | os.PathLike[str]) -> Module:
    """Load a library that registers a kind of device or of module, and keep it for the life of the process.

    Other plug-ins are loaded when their kind is first used: those that come with portcall, those that the variable
    ``PORTCALL_DEVICES=kind=path:kind=path`` lists, and those of installed packages (entry points of the group
    ``portcall.devices``).

    Raises:
        ModuleLoadError: as ``load_module``.
    """
    plugin = load_module(path)
    _plugins.append(plugin)
    return plugin


@functools.cache
def session_library() -> Module:
    """Return what runs inside of a session, which stays loaded.

    Its functions are its own: no client can ask for them by name. The server without Python has the same parts.
    """
    return load_plugin(SESSION_LIBRARY)


def _linked(path: str) -> str:
    from portcall._compilers import create_shared  # subpackages load on first use

    try:
        return str(create_shared(path, f"{path}.so"))
    except (OSError, ValueError) as error:
        raise errors.ModuleLoadError(f"cannot link '{path}': {error}", path=path) from error


def _load(path: str) -> Module:
    module: Module = get_global_func("ffi.ModuleLoadFromFile")(path)
    return module


def _take_foreign_name(path: str) -> None:
    """Let libraries that need the other runtime get this one. The linker takes what is mapped under a name first."""

    def raiser(library: str | Path, mode: int) -> int | None:
        return ctypes.cast(ctypes.CDLL(str(library), mode).TVMFFIErrorSetRaised, ctypes.c_void_p).value

    try:
        named = raiser(_FOREIGN_RUNTIME, os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # nothing has the name
        ctypes.CDLL(str(_FORWARDER))
        return
    if named != raiser(IR_LIBRARY.with_name("libportcall.so"), os.RTLD_LAZY):
        raise errors.ModuleLoadError(
            f"cannot adopt '{path}': {_FOREIGN_RUNTIME} of another runtime is in the process already; load the library "
            "before that is imported, or without foreign='adopt'",
            path=path,
        )


def _load_foreign_runtime() -> bool:
    """Map the runtime that a library was linked with, from the package that ships it. False when it is not there."""
    spec = importlib.util.find_spec("tvm_ffi")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder, "lib", _FOREIGN_RUNTIME)
        if library.exists():
            runtime = ctypes.CDLL(str(library), mode=os.RTLD_LOCAL | os.RTLD_LAZY)
            for name in (
                "PyGILState_Ensure",
                "PyGILState_Release",
                "PyErr_CheckSignals",
            ):  # as its package registers them
                runtime.TVMFFIEnvRegisterCAPI(
                    name.encode(), ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
                )
            return True
    return False


def time_evaluator(function: Callable[..., Any], dev: Device | str = "cpu", **options: Any) -> Callable[..., Any]:
    """Return a function that takes the arguments of any function and times it, as ``Module.time_evaluator`` does.

    Functions of Python are timed with their call, those of a session with their way there and back.

    Parameters:
        dev: the device that is waited for.
        options: those of ``Module.time_evaluator``.

    Raises:
        ArgumentError: it is not callable.
        ValueError: a number that makes no sense.
    """
    return Module.from_functions({"function": function}).time_evaluator("function", dev, **options)


def system_lib(prefix: str = "") -> Module:
    """Return the functions of code that is linked into this process and registered itself, by name prefix."""
    module: Module = get_global_func("ffi.SystemLib")(prefix)
    return module
