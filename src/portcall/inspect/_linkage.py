# SPDX-License-Identifier: Apache-2.0
"""Follow what the dynamic linker would do with a library here: which files it would open, what they offer.

The search follows ld.so(8): what is loaded already, run path, LD_LIBRARY_PATH, the folders of ld.so.conf, the default
folders; then the packages named in PACKAGES, whose libraries portcall loads itself. Files are read, never loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import platform
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from portcall._input import open_input
from portcall._module import IR_LIBRARY
from portcall.inspect._elf import Build, ElfError, ElfFile, read_build, read_elf

# Library: the package that carries it in its lib folder, and what to give to pip.
PACKAGES = {
    "libtvm_ffi.so": ("tvm_ffi", "apache-tvm-ffi"),
    "libtvm_runtime.so": ("tvm", "apache-tvm"),
    "libtvm_compiler.so": ("tvm", "apache-tvm"),
}
CORE = "libportcall.so"


class Linkage:
    """The libraries that one library would bring into this process, found by name and read once each.

    Parameters:
        file: where the library lies, or will; it is not read.
        needed, runpath: what it asks for, and the folders in which to look first.

    Attributes:
        found: where each library lies that it asks for itself; empty text where nothing was found.
        not_found: for each library that could not be found, who asks for it first, directly or not.
    """

    def __init__(self, file: Path, needed: Iterable[str], runpath: Iterable[str]) -> None:
        self.build = this_build()
        self.opened: set[Path] = set()
        self.not_found: dict[str, str] = {}
        self.found = {name: str(place or "") for name, place in self.follow(file.resolve(), needed, runpath, "it")}

    def without(self, symbols: set[str]) -> set[str]:
        """Return those of the symbols that neither this process nor any of the libraries provides."""
        left = symbols - provided_by_runtime(symbols) - provided_by_process(symbols, self.found)
        for path in self.opened if left else ():  # reading the symbols of all these files is slow, and seldom needed
            with open_mapped(path) as data:
                left = left - {symbol.name for symbol in read_elf(data).symbols if symbol.defined}
        return left

    def version_gaps(self, wanted: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (library, versions of its symbols that are wanted and that are not in the one found here)."""
        files = {path: elf_of(path) for path in self.opened}
        offers = {elf.soname or path.name: elf.versions_defined for path, elf in files.items()}
        for library, versions in wanted.items():
            gap = sorted(set(versions) - offers.get(library, frozenset(versions)))
            if gap:
                yield library, tuple(gap)

    def follow(
        self, file: Path, needed: Iterable[str], runpath: Iterable[str], asker: str
    ) -> list[tuple[str, Path | None]]:
        """Open the libraries that a file needs, and theirs; return where those lie that it needs itself."""
        folders = search_folders(file, runpath)
        own = found = [(name, self.find(name, folders)) for name in needed]
        left = deque([(found, asker)])
        while left:  # in the order of the dynamic linker
            found, asker = left.popleft()
            for name, place in found:
                if place is not None and place not in self.opened:
                    self.opened.add(place)
                    if not is_loaded(name):  # a loaded library has all that it needs
                        elf = elf_of(place)
                        folders = search_folders(place, elf.runpath)
                        left.append(([(each, self.find(each, folders)) for each in elf.needed], name))
                elif place is None and not is_loaded(name):
                    self.not_found.setdefault(name, asker)
        return own

    def find(self, name: str, folders: Iterable[Path]) -> Path | None:
        """Return the first file of that name that is for this machine, as the linker passes over others."""
        places = [Path(name)] if "/" in name else [folder / name for folder in folders]
        if name in PACKAGES:
            spec = importlib.util.find_spec(PACKAGES[name][0])
            places += [Path(folder, "lib", name) for folder in (spec and spec.submodule_search_locations) or ()]
        for place in places:
            try:
                if place.is_file() and elf_of(place.resolve()).build == self.build:
                    return place.resolve()
            except (ElfError, OSError):
                continue
        return None


@functools.cache
def this_build() -> Build:
    """Return what this process's program is compiled for; the kernel may be for more than that."""
    try:
        with open_mapped(Path(sys.executable).resolve()) as data:
            return read_build(data)
    except (ElfError, OSError):
        return Build(platform.machine(), 8 * ctypes.sizeof(ctypes.c_void_p), sys.byteorder)


# ---- What is loaded already ----------------------------------------------------------------------------------------


@functools.cache
def linker() -> Any:
    """Return the functions of the dynamic linker."""
    functions = ctypes.CDLL(None)
    functions.dlopen.restype = functions.dlsym.restype = ctypes.c_void_p
    functions.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    functions.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    functions.dlclose.argtypes = (ctypes.c_void_p,)
    return functions


@contextlib.contextmanager
def loaded(name: str | None) -> Iterator[int | None]:
    """Give a handle of what this process has loaded under a library's name, None for nothing; nothing is loaded.

    The name None stands for what every library of the process sees. A path is never loaded under its own name.
    """
    handle = None
    if name is None or (name and "/" not in name):
        handle = linker().dlopen(name and os.fsencode(name), os.RTLD_LAZY | os.RTLD_NOLOAD)
    try:
        yield handle
    finally:
        if handle:
            linker().dlclose(handle)


def is_loaded(name: str) -> bool:
    with loaded(name) as handle:
        return handle is not None


def provided_by_process(symbols: Iterable[str], libraries: Iterable[str]) -> set[str]:
    """Return those of the symbols that are in this process already, for all to see or in one of the libraries."""
    left, provided = set(symbols), set[str]()
    for name in (None, *libraries):
        with loaded(name) as handle:
            if handle:
                provided |= {symbol for symbol in left if linker().dlsym(handle, os.fsencode(symbol))}
                left -= provided
    return provided


def provided_by_runtime(symbols: Iterable[str]) -> set[str]:
    """Return those of the symbols that the core has, or the library beside it that is loaded when it is needed."""
    wanted = set(symbols)
    provided = provided_by_process(wanted, (CORE,))
    if any(name.startswith("Portcall") for name in wanted - provided):
        with open_mapped(IR_LIBRARY) as data:
            provided |= wanted & {symbol.name for symbol in read_elf(data).symbols if symbol.defined}
    return provided


# ---- What lies on the disk -----------------------------------------------------------------------------------------


def elf_of(path: Path) -> ElfFile:
    """Return the contents of a file without its symbols; a file that has not changed is read once."""
    facts = path.stat()
    return read_once(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def read_once(path: Path, *_: int) -> ElfFile:
    with open_mapped(path) as data:
        return read_elf(data, symbols=False)


def open_mapped(file: Path) -> mmap.mmap:
    """Return the bytes of a file without copying them; an empty file is an ElfError."""
    with open_input(file) as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            raise ElfError("the file is empty")
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def search_folders(file: Path, runpath: Iterable[str]) -> list[Path]:
    """Return the folders in which the linker looks for what a file with that run path needs, in its order."""
    own = [text.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(file.parent)) for text in runpath]
    own += [text for text in os.environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    triplet = f"{platform.machine()}-linux-gnu"
    default = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    return [*map(Path, own), *configured_folders(), *map(Path, default)]


@functools.cache
def configured_folders() -> tuple[Path, ...]:
    """Return the folders that ld.so.conf lists, as it was when this was asked first."""
    return tuple(listed_folders(Path("/etc/ld.so.conf")))


def listed_folders(file: Path) -> Iterator[Path]:
    """Yield the folders that such a file lists; its ``include`` lines are followed one level deep."""
    for line in read_lines(file):
        word, _, rest = line.partition(" ")
        if word != "include":
            yield Path(line)
            continue
        pattern = file.parent / rest.strip()
        for included in sorted(pattern.parent.glob(pattern.name)):
            yield from map(Path, read_lines(included))


def read_lines(file: Path) -> list[str]:
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    return [line for line in lines if line]
