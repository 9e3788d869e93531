# SPDX-License-Identifier: Apache-2.0
"""Say what a compiled library is, what it offers and what it needs, without loading it.

A library that does not load gives obscure errors, late. This reads the file instead: machine, calling convention,
functions, modules inside, and for this machine also whether each library, each symbol and each symbol version it
asks for is there. Nothing of the library runs.

The layouts of names and blobs are those of docs/abi.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from portcall import _blob, _elf
from portcall._function import get_global_func
from portcall._linkage import PACKAGES, Linkage, open_mapped
from portcall.errors import ModuleLoadError
from portcall.toolchain import library_path

__all__ = ["Dependency", "LibraryReport", "inspect_library"]

PREFIX = "__tvm_ffi_"
SPECIAL_PREFIX = "__tvm_ffi__"
ENTRY = "main"
# Variables and blobs that a loader reads, by era. TVM 0.21 had names of its own, and functions without a prefix.
LIBRARY_CONTEXTS = ("__tvm_ffi__library_ctx", "__tvm_ffi_library_ctx", "__tvm_module_ctx")
MODERN_BLOBS = {"__tvm_ffi__library_bin": _blob.read_modern, "__tvm_ffi_library_bin": _blob.read_classic}
CLASSIC_BLOB = "__tvm_dev_mblob"
CLASSIC_ENTRY = "__tvm_main__"
ERA_0_21 = ("__tvm_ffi_library_ctx", "__tvm_ffi_library_bin")
CLASSIC_MARKS = ("__tvm_module_ctx", "__TVMFuncCall", "__TVMAPISetLastError", CLASSIC_ENTRY, CLASSIC_BLOB)
# Context variables: each is filled with the address of the function whose name follows the two underscores.
CONTEXT_PREFIXES = ("__TVM",)
KNOWN_CONTEXTS = frozenset(
    f"__{name}"
    for name in (
        "TVMFFIFunctionCall",
        "TVMFFIErrorSetRaisedFromCStr",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "TVMFFIEnvModLookupFromImports",
        "TVMFFIHandleInitOnce",
        "TVMBackendAllocWorkspace",
        "TVMBackendFreeWorkspace",
        "TVMBackendParallelLaunch",
        "TVMBackendParallelBarrier",
        "TVMBackendGetFuncFromEnv",
        "TVMFuncCall",
        "TVMAPISetLastError",
    )
)
# What only code written in C++ on the headers imports, never code that TVM's compiler generates.
CPP_IMPORTS = frozenset(
    ("TVMFFIGetTypeInfo", "TVMFFITypeGetOrAllocIndex", "TVMFFIBacktrace", "TVMFFIErrorMoveFromRaised")
)
RUNTIME_PREFIXES = ("TVM", "Portcall")
PORTCALL_MARK = "portcall_abi_version"


@dataclass(frozen=True)
class Dependency:
    """A library that is asked for by name (DT_NEEDED).

    Attributes:
        name: the name asked for.
        path: where it was found; empty when it was not, or when the library is for another machine.
    """

    name: str
    path: str


@dataclass(frozen=True)
class LibraryReport:
    """What a library is, offers and needs.

    Attributes:
        path: the file.
        nbytes: its size.
        machine: ``x86_64``, ``aarch64`` …, as in a compiler's target.
        kind: ``shared``, ``executable`` or ``object``.
        abi: ``modern`` (TVM 0.22 and later, tvm-ffi, portcall), ``modern 0.21``, ``classic`` (TVM 0.6-0.20) or
            ``plain`` (nothing that says how its functions are called).
        origin: who seems to have made it, in words.
        functions: the functions that can be called by name; for ``plain``, every function it exports.
        entry: the library names an entry function.
        documented: functions that carry their types or documentation.
        contexts: variables that a loader fills in.
        modules: the modules inside, the first one the root; empty when it carries none.
        needed: the libraries it asks for.
        runtime_imports: functions of the runtime that it calls, which portcall provides when it loads the library.
        other_imports: how many other symbols it asks for.
        missing: symbols that it must have and nobody here provides.
        problems: what will go wrong when it is loaded or called, each a sentence with a remedy; empty is good.
    """

    path: str
    nbytes: int
    machine: str
    kind: str
    abi: str
    origin: str
    functions: tuple[str, ...]
    entry: bool
    documented: tuple[str, ...]
    contexts: tuple[str, ...]
    modules: tuple[_blob.EmbeddedModule, ...]
    needed: tuple[Dependency, ...]
    runtime_imports: tuple[str, ...]
    other_imports: int
    missing: tuple[str, ...]
    problems: tuple[str, ...]


def inspect_library(path: str | os.PathLike[str]) -> LibraryReport:
    """Return what the library at ``path`` is, offers and needs; the library is read, not loaded.

    Raises:
        ModuleLoadError: the file does not exist, or is no ELF file that can be read.
    """
    file = Path(path)
    try:
        with open_mapped(file) as data:
            elf = _elf.read_elf(data)
            defined = {symbol.name: symbol for symbol in elf.symbols if symbol.defined}
            modules, problems = read_modules(elf, data, defined)
            nbytes = len(data)
    except OSError as error:
        raise ModuleLoadError(f"cannot read library '{file}': {error.strerror or error}", path=file) from error
    except _elf.ElfError as error:
        raise ModuleLoadError(f"cannot read library '{file}': {error}", path=file) from error
    wanted = {symbol.name for symbol in elf.symbols if not symbol.defined and not symbol.weak}
    abi = calling_convention(defined)
    runtime = sorted(name for name in wanted if name.startswith(RUNTIME_PREFIXES))
    linkage = Linkage(file, elf)
    missing = missing_symbols(linkage, wanted)
    contexts = sorted(name for name in defined if name.startswith(CONTEXT_PREFIXES) or name in LIBRARY_CONTEXTS)
    problems += [
        *kind_problems(elf),
        *module_problems(abi, modules),
        *linkage_problems(linkage, missing),
        *context_problems(contexts),
    ]
    return LibraryReport(
        path=str(file),
        nbytes=nbytes,
        machine=elf.machine,
        kind=elf.kind,
        abi=abi,
        origin=origin(abi, wanted, defined),
        functions=tuple(sorted(exported(abi, defined))),
        entry=f"{PREFIX}{ENTRY}" in defined or CLASSIC_ENTRY in defined,
        documented=tuple(sorted(documented(defined))),
        contexts=tuple(contexts),
        modules=modules,
        needed=tuple(starmap(Dependency, linkage.found.items())),
        runtime_imports=tuple(runtime),
        other_imports=len(wanted) - len(runtime),
        missing=tuple(missing),
        problems=tuple(problems),
    )


def calling_convention(defined: Iterable[str]) -> str:
    names = set(defined)
    if names.intersection(ERA_0_21):
        return "modern 0.21"
    if any(name.startswith((PREFIX, "__TVMFFI")) for name in names):
        return "modern"
    return "classic" if names.intersection(CLASSIC_MARKS) else "plain"


def origin(abi: str, wanted: set[str], names: Iterable[str]) -> str:
    if abi == "plain":
        return "no sign of TVM, tvm-ffi or portcall"
    if abi == "classic":
        return "TVM 0.6 to 0.20"
    if abi == "modern 0.21":
        return "TVM 0.21"
    if PORTCALL_MARK in names:
        return "C++ on portcall's headers"
    if wanted & CPP_IMPORTS:
        return "C++ on the tvm-ffi headers"
    generated = "TVMFFIErrorSetRaisedFromCStrParts" in wanted or any(name.startswith("__TVM") for name in names)
    return "TVM 0.22 or later" if generated else "C or C++ on the tvm-ffi ABI"


def exported(abi: str, defined: dict[str, _elf.Symbol]) -> Iterator[str]:
    for name, symbol in defined.items():
        if abi == "modern":
            if name.startswith(PREFIX) and not name.startswith(SPECIAL_PREFIX) and name != f"{PREFIX}{ENTRY}":
                yield name.removeprefix(PREFIX)
        elif symbol.function and not name.startswith("_"):
            yield name


def documented(defined: Iterable[str]) -> set[str]:
    found = set()
    for name in defined:
        for mark in ("metadata_", "doc_"):
            if name.startswith(SPECIAL_PREFIX + mark):
                found.add(name.removeprefix(SPECIAL_PREFIX + mark))
    return found


def read_modules(
    elf: _elf.ElfFile, data: _elf.Buffer, defined: dict[str, _elf.Symbol]
) -> tuple[tuple[_blob.EmbeddedModule, ...], list[str]]:
    for name, read in (*MODERN_BLOBS.items(), (CLASSIC_BLOB, _blob.read_classic)):
        if name in defined and elf.kind != "object":
            try:
                return read(elf.content(data, defined[name])), []
            except (_blob.BlobError, _elf.ElfError) as error:
                return (), [f"the modules inside ({name}) cannot be read: {error}; build the library again"]
    return (), []


def missing_symbols(linkage: Linkage, wanted: set[str]) -> list[str]:
    """Return the symbols that nobody provides; for another machine, those that only the core could provide."""
    core = {symbol.name for symbol in linkage.elf_of(library_path()).symbols if symbol.defined}
    if linkage.native:
        return sorted(wanted - core - linkage.symbols())
    return sorted(name for name in wanted - core if name.startswith(RUNTIME_PREFIXES))


def kind_problems(elf: _elf.ElfFile) -> Iterator[str]:
    if elf.kind == "object":
        yield "this is an object file, not a library: link it first, with portcall.toolchain.create_shared"
    if elf.kind == "executable":
        yield "this is a program, not a library"


def module_problems(abi: str, modules: Iterable[_blob.EmbeddedModule]) -> Iterator[str]:
    for kind in dict.fromkeys(module.kind for module in modules):
        loader = f"ffi.Module.load_from_bytes.{kind}"
        if kind != _blob.LIBRARY and (abi == "classic" or get_global_func(loader, allow_missing=True) is None):
            yield f"it carries a module of kind '{kind}', which nothing here runs: what calls into it will fail"


def context_problems(contexts: Iterable[str]) -> Iterator[str]:
    for name in contexts:
        if name not in KNOWN_CONTEXTS and name not in LIBRARY_CONTEXTS:
            yield f"it expects '{name}' to be filled in, which portcall does not know: calling it may crash"


def linkage_problems(linkage: Linkage, missing: Iterable[str]) -> Iterator[str]:
    if not linkage.native:
        yield (
            f"it is made for {linkage.elf.machine} and this machine is {linkage.machine}: it loads there, not here; "
            "compile it again for this machine, or run it on the other one"
        )
    for name, asker in linkage.not_found:
        remedy = f"pip install {PACKAGES[name][1]}" if name in PACKAGES else "install it, or set LD_LIBRARY_PATH"
        yield f"{asker} needs {name}, which was not found: {remedy}"
    for library, versions in linkage.version_gaps():
        yield (f"it needs {', '.join(versions)} of {library}, which is older here: build it on a system as old as this")
    for name in missing:
        yield f"it needs the symbol '{name}', which nobody provides: add the source or library that defines it"
