# SPDX-License-Identifier: Apache-2.0
"""Follow what the dynamic linker would do with a library here: which files it would open, what they offer.

The search follows ld.so(8): run path, LD_LIBRARY_PATH, the folders of ld.so.conf, the default folders; then the
packages named in PACKAGES, whose libraries portcall loads itself. Files are read, never loaded.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from portcall._elf import ElfError, ElfFile, read_elf

# Library: the package that carries it in its lib folder, and what to give to pip.
PACKAGES = {
    "libtvm_ffi.so": ("tvm_ffi", "apache-tvm-ffi"),
    "libtvm_runtime.so": ("tvm", "apache-tvm"),
    "libtvm_compiler.so": ("tvm", "apache-tvm"),
}


class Linkage:
    """The libraries that one library would bring into this process, found by name and read once each.

    Attributes:
        machine: what this process runs on; a library for another machine is not followed.
        native: the library is for this machine.
        found: where each library lies that it asks for itself; empty text where nothing was found.
        not_found: (name, who asks for it), for all that could not be found, direct or not.
    """

    def __init__(self, file: Path, elf: ElfFile) -> None:
        self.elf = elf
        self.read: dict[Path, ElfFile] = {}
        self.opened: dict[Path, ElfFile] = {}
        self.not_found: list[tuple[str, str]] = []
        program = Path(sys.executable).resolve()
        try:
            process = self.elf_of(program)
            self.machine = process.machine
        except (ElfError, OSError):  # a Python that is no readable ELF program offers no symbols
            process, self.machine = None, platform.machine()
        self.native = elf.machine == self.machine
        self.found = dict.fromkeys(elf.needed, "")
        if self.native:
            self.follow(file.resolve(), elf, "it")
            folders = search_folders(file.resolve(), elf)
            self.found = {name: str(self.find(name, folders) or "") for name in elf.needed}
            if process is not None:
                self.follow(program, process, program.name)

    def symbols(self) -> set[str]:
        """Return the names of all that the libraries, and this process's own program, define."""
        return {symbol.name for elf in self.opened.values() for symbol in elf.symbols if symbol.defined}

    def version_gaps(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield (library, versions of its symbols that the library asks for and that are not in the one found here)."""
        offers = {elf.soname or path.name: elf.versions_defined for path, elf in self.opened.items()}
        for library, versions in self.elf.versions_needed.items():
            gap = sorted(set(versions) - offers.get(library, frozenset(versions)))
            if gap:
                yield library, tuple(gap)

    def follow(self, file: Path, elf: ElfFile, asker: str) -> None:
        """Open the libraries that ``elf`` needs, and theirs."""
        self.opened[file] = elf
        folders = search_folders(file, elf)
        for name in elf.needed:
            place = self.find(name, folders)
            if place is None:
                self.not_found.append((name, asker))
            elif place not in self.opened:
                self.follow(place, self.elf_of(place), name)

    def find(self, name: str, folders: Iterable[Path]) -> Path | None:
        """Return the first file of that name that is for the same machine, as the linker passes over others."""
        places = [Path(name)] if "/" in name else [folder / name for folder in folders]
        if name in PACKAGES:
            spec = importlib.util.find_spec(PACKAGES[name][0])
            places += [Path(folder, "lib", name) for folder in (spec and spec.submodule_search_locations) or ()]
        for place in places:
            try:
                if place.is_file() and self.elf_of(place.resolve()).machine == self.elf.machine:
                    return place.resolve()
            except (ElfError, OSError):
                continue
        return None

    def elf_of(self, path: Path) -> ElfFile:
        if path not in self.read:
            with open_mapped(path) as data:
                self.read[path] = read_elf(data)
        return self.read[path]


def open_mapped(file: Path) -> mmap.mmap:
    """Return the bytes of a file without copying them; an empty file is an ElfError."""
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            raise ElfError("the file is empty")
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def search_folders(file: Path, elf: ElfFile) -> list[Path]:
    """Return the folders in which the linker looks for what ``elf`` needs, in its order."""
    own = [text.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(file.parent)) for text in elf.runpath]
    own += [text for text in os.environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    triplet = f"{platform.machine()}-linux-gnu"
    default = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    return [*map(Path, own), *configured_folders(Path("/etc/ld.so.conf")), *map(Path, default)]


def configured_folders(file: Path) -> Iterator[Path]:
    """Yield the folders that ld.so.conf lists; its ``include`` lines are followed one level deep."""
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
