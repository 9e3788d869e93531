# SPDX-License-Identifier: Apache-2.0
"""Read a library: machine, calling convention, functions, embedded modules, problems.

The layouts of names and blobs are those of docs/abi.md.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from portcall._function import get_global_func
from portcall._module import GRAPH_KINDS, VM_KINDS, VM_LIBRARY
from portcall._signature import shown
from portcall.errors import ModuleLoadError, PortcallError
from portcall.inspect import _elf, _embedded, _wasm
from portcall.inspect._cursor import BlobError
from portcall.inspect._kernels import LAYOUTS
from portcall.inspect._machine import (
    ABIS,
    PLAIN,
    RUNTIME_PREFIXES,
    Needs,
    known_contexts,
    problems_of,
    this_machine,
    unmet_here,
)
from portcall.inspect._mapped import open_mapped
from portcall.inspect._seal import damage_of

PREFIX = "__tvm_ffi_"
SPECIAL_PREFIX = "__tvm_ffi__"  # of what belongs to the compiler
SPECIAL = re.compile(SPECIAL_PREFIX + "(?!_)")  # a function's own name may begin with underscores
ENTRY = "main"
# Blobs that a loader reads, by era. TVM 0.21 had other names, and functions without a prefix.
MODERN_BLOBS = {"__tvm_ffi__library_bin": _embedded.read_modern, "__tvm_ffi_library_bin": _embedded.read_classic}
CLASSIC_BLOB = "__tvm_dev_mblob"
CLASSIC_ENTRY = "__tvm_main__"
SYSTEM_LIBRARIES = (
    "libc.so",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libpthread.so",
    "libgcc_s.so",
    "libstdc++.so",
    "ld-linux",
)
# Context variables: each is filled with the address of the function whose name follows the two underscores.
CONTEXT_PREFIXES = ("__TVM",)
# What only code written in C++ on the headers imports, never code that TVM's compiler generates.
CPP_IMPORTS = frozenset(
    ("TVMFFIGetTypeInfo", "TVMFFITypeGetOrAllocIndex", "TVMFFIBacktrace", "TVMFFIErrorMoveFromRaised")
)
PORTCALL_MARK = "portcall_abi_version"
# What portcall/signature.h writes: what it is about, a name, a signature. Names that are longer are not looked at.
MOST_SEARCHED = 1 << 26  # a bundle's parameters follow its library
SIGNED = re.compile(rb"\x7fportcall (exports|registers) ([^\x00-\x1f]{1,200})\0([^\x00-\x1f]{0,4000})\0")


@dataclass(frozen=True)
class Dependency:
    """A library that is asked for by name (DT_NEEDED).

    Attributes:
        name: the name asked for.
        path: where it was found; empty when it was not, or when the library is for another machine.
    """

    name: str
    path: str

    @property
    def of_system(self) -> bool:
        """Whether it is one of the compiler's or of the C library, by its name."""
        return self.name.startswith(SYSTEM_LIBRARIES)


@dataclass(frozen=True)
class LibraryReport:
    """What a library is, offers and needs.

    Attributes:
        path: the file.
        nbytes: its size.
        machine: ``x86_64``, ``aarch64`` …, as in a compiler's target.
        kind: ``shared``, ``executable`` or ``object``.
        abi: ``modern`` (TVM 0.22 and later, tvm-ffi, portcall), ``modern 0.21``, ``classic`` (TVM 0.6-0.20) or
            ``plain`` (unknown).
        origin: who seems to have made it, in words.
        functions: the functions that can be called by name; for ``plain``, every function it exports.
        signatures: the C++ types of functions, by name, such as ``(TensorView, float) -> Tensor``; of those that were
            compiled with portcall's headers.
        globals: the global functions that it registers when it is loaded, if it records them, with signatures;
            empty text where it is not known.
        entry: the library names an entry function.
        documented: functions that carry their types or documentation.
        contexts: variables that a loader fills in.
        modules: the modules inside, the first one the root; empty when it carries none.
        needed: the libraries it asks for.
        runtime_imports: functions of the runtime that it calls, which portcall provides when it loads the library.
        other_imports: how many other symbols it asks for.
        missing: symbols that it needs and no library here provides.
        problems: problems when it is loaded or called, each a sentence with a remedy; empty if none.
    """

    path: str
    nbytes: int
    machine: str
    kind: str
    abi: str
    origin: str
    functions: tuple[str, ...]
    signatures: Mapping[str, str]
    globals: Mapping[str, str]
    entry: bool
    documented: tuple[str, ...]
    contexts: tuple[str, ...]
    modules: tuple[_embedded.EmbeddedModule, ...]
    needed: tuple[Dependency, ...]
    runtime_imports: tuple[str, ...]
    other_imports: int
    missing: tuple[str, ...]
    problems: tuple[str, ...]


def inspect_library(path: str | os.PathLike[str]) -> LibraryReport:
    """Return a report on the library at ``path``; the library is read, not loaded.

    Raises:
        ModuleLoadError: the file does not exist, or is neither a readable ELF file nor WebAssembly.
    """
    file = Path(path)
    with reading(file) as data:
        elf = _wasm.read_library(data)
        defined = symbols_of(elf)
        modules, _, problems = read_modules(elf, data, defined)
        problems += filter(None, (damage_of(data, elf.end),))
        nbytes = len(data)
        signed = signatures_of(data) if PORTCALL_MARK in defined else []
    needs = needs_of(elf)
    unmet, found = unmet_here(needs, file)
    runtime = [name for name in needs.symbols if name.startswith(RUNTIME_PREFIXES)]
    problems += [
        *kind_problems(elf.kind),
        *module_problems(needs.abi, modules),
        *problems_of(needs, this_machine(), unmet, here=True),
    ]
    return LibraryReport(
        path=str(file),
        nbytes=nbytes,
        machine=elf.build.machine,
        kind=elf.kind,
        abi=needs.abi,
        origin=origin(needs, defined),
        functions=tuple(sorted(exported(needs.abi, defined))),
        signatures={name: text for what, name, text in signed if what == "exports" and text},
        globals={name: text for what, name, text in signed if what == "registers"},
        entry=f"{PREFIX}{ENTRY}" in defined or CLASSIC_ENTRY in defined,
        documented=tuple(sorted(documented(defined))),
        contexts=needs.contexts,
        modules=modules,
        needed=tuple(Dependency(name, found.get(name, "")) for name in dict.fromkeys(needs.needed)),
        runtime_imports=tuple(runtime),
        other_imports=len(needs.symbols) - len(runtime),
        missing=unmet.symbols,
        problems=tuple(problems),
    )


def embedded_payload(path: str | os.PathLike[str], kinds: Collection[str]) -> bytes | None:
    """Return what the library at ``path`` carries for the loader of a module of one of these kinds; None for nothing.

    In the layout of TVM 0.6 to 0.20, which does not record where a payload ends, all bytes that follow are returned.

    Raises:
        ModuleLoadError: as for ``inspect_library``.
    """
    with reading(Path(path)) as data:
        elf = _wasm.read_library(data)
        modules, table, _ = read_modules(elf, data, symbols_of(elf))
    found = next((module for module in modules if module.kind in kinds), None)
    if found is None:
        return None
    return table[found.offset :] if found.nbytes is None else table[found.offset : found.offset + found.nbytes]


@contextlib.contextmanager
def reading(file: Path) -> Iterator[mmap.mmap]:
    """Yield the bytes of a library; errors become a ModuleLoadError that names it."""
    try:
        with open_mapped(file) as data:
            yield data
    except OSError as error:
        raise ModuleLoadError(f"cannot read library '{file}': {error.strerror or error}", path=file) from error
    except _elf.ElfError as error:
        raise ModuleLoadError(f"cannot read library '{file}': {error}", path=file) from error


def symbols_of(elf: _elf.ElfFile) -> dict[str, _elf.Symbol]:
    return {symbol.name: symbol for symbol in elf.symbols if symbol.defined}


def needs_of(elf: _elf.ElfFile) -> Needs:
    """Return the needs of a library."""
    defined = {symbol.name for symbol in elf.symbols if symbol.defined}
    contexts = known_contexts()
    return Needs(
        build=elf.build,
        abi=calling_convention(symbol for symbol in elf.symbols if symbol.defined),
        needed=elf.needed,
        runpath=elf.runpath,
        versions=elf.versions_needed,
        contexts=tuple(sorted(name for name in defined if name.startswith(CONTEXT_PREFIXES) or name in contexts)),
        symbols=tuple(sorted({symbol.name for symbol in elf.symbols if not symbol.defined and not symbol.weak})),
    )


def calling_convention(symbols: Iterable[_elf.Symbol]) -> str:
    """Return how the functions of a library with these symbols are called, as the loader decides it."""
    names: tuple[list[str], list[str]] = ([], [])
    for symbol in symbols:
        names[symbol.function].append(symbol.name)
    objects, functions = names
    return str(get_global_func("portcall.loader.Abi")(functions, objects))


def origin(needs: Needs, names: Iterable[str]) -> str:
    if needs.abi == PLAIN:
        return "no sign of TVM, tvm-ffi or portcall"
    if needs.abi != "modern":
        return ABIS[needs.abi]
    if PORTCALL_MARK in names:
        return "C++ on portcall's headers"
    if CPP_IMPORTS.intersection(needs.symbols):
        return "C++ on the tvm-ffi headers"
    generated = "TVMFFIErrorSetRaisedFromCStrParts" in needs.symbols or any(name.startswith("__TVM") for name in names)
    return "TVM 0.22 or later" if generated else "C or C++ on the tvm-ffi ABI"


def exported(abi: str, defined: dict[str, _elf.Symbol]) -> Iterator[str]:
    for name, symbol in defined.items():
        if abi == "modern":
            own = symbol.function and name.startswith(PREFIX) and not SPECIAL.match(name)
            if own and name != f"{PREFIX}{ENTRY}":
                yield name.removeprefix(PREFIX)
        elif symbol.function and not name.startswith("_"):
            yield name


def signatures_of(data: mmap.mmap) -> list[tuple[str, str, str]]:
    """Return the functions that a library records: ``exports`` or ``registers``, name, signature; by name."""
    found = (
        [part.decode(errors="replace") for part in match.groups()] for match in SIGNED.finditer(data, 0, MOST_SEARCHED)
    )
    return sorted((what, name, shown(text)) for what, name, text in found)


def documented(defined: Iterable[str]) -> set[str]:
    found = set()
    for name in defined:
        for mark in ("metadata_", "doc_"):
            if name.startswith(SPECIAL_PREFIX + mark):
                found.add(name.removeprefix(SPECIAL_PREFIX + mark))
    return found


def read_modules(
    elf: _elf.ElfFile, data: _elf.Buffer, defined: dict[str, _elf.Symbol]
) -> tuple[tuple[_embedded.EmbeddedModule, ...], bytes, list[str]]:
    """Return the embedded modules, their table, and problems with it."""
    for name, read in (*MODERN_BLOBS.items(), (CLASSIC_BLOB, _embedded.read_classic)):
        if name in defined and elf.kind != "object":
            try:
                table = elf.content(data, defined[name])
                return read(table), table, []
            except (BlobError, _elf.ElfError) as error:
                return (), b"", [f"the modules inside ({name}) cannot be read: {error}; build the library again"]
    return (), b"", []


def kind_problems(kind: str) -> Iterator[str]:
    if kind == "object":
        yield "this is an object file, not a library: link it first, with portcall.toolchain.create_shared"
    if kind == "executable":
        yield "this is a program, not a library"


def load_plugin_of(kind: str) -> None:
    """Load the plug-in for a kind of module; what is wrong with it is said when the library is loaded."""
    with contextlib.suppress(PortcallError):
        get_global_func("portcall.LoadPlugin")(kind)


def module_problems(abi: str, modules: Collection[_embedded.EmbeddedModule]) -> Iterator[str]:
    for kind in dict.fromkeys(module.kind for module in modules):
        load_plugin_of(kind)
        loader = f"ffi.Module.load_from_bytes.{kind}"
        known = (_embedded.LIBRARY, *GRAPH_KINDS, *(VM_KINDS if VM_LIBRARY.exists() else ()))
        unread = any(module.kind == kind and module.kernels is None for module in modules)
        unread_classic = unread and abi == "classic"  # where a module ends is not known
        if kind in LAYOUTS and unread and not unread_classic:
            yield f"it carries a module of kind '{kind}' that is damaged: build the library again"
        elif kind not in known and (unread_classic or get_global_func(loader, allow_missing=True) is None):
            yield f"it carries a module of kind '{kind}', which portcall cannot run here: calls into it will fail"
