# SPDX-License-Identifier: Apache-2.0
"""Machines, the needs of libraries, and whether they fit: here, or on a remote machine.

Three steps, of which the second happens where the library is to run: its needs (``Needs``), what of that is not
there (``Unmet``), and the words for it (``problems_of``). What passes between them are plain facts, which JSON carries.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portcall._core import PackedFunc
from portcall._function import convert, get_global_func
from portcall._module import IR_LIBRARY, session_library
from portcall.inspect._elf import Build

# Library: the package that carries it in its lib folder, and what to give to pip.
PACKAGES = {
    "libtvm_ffi.so": ("tvm_ffi", "apache-tvm-ffi"),
    "libtvm_runtime.so": ("tvm", "apache-tvm"),
    "libtvm_compiler.so": ("tvm", "apache-tvm"),
}

# The ways of calling a library's functions that this runtime knows, by name, and who compiles for them.
ABIS = {
    "modern": "TVM 0.22 or later, tvm-ffi, portcall's headers",
    "modern 0.21": "TVM 0.21",
    "classic": "TVM 0.6 to 0.20",
}
PLAIN = "plain"  # unknown convention: a library that others depend on, for instance
RUNTIME_PREFIXES = ("TVM", "Portcall")
# Limits of a question from a client: libraries, names, characters.
MOST_LIBRARIES, MOST_NAMES, MOST_CHARACTERS = 256, 100_000, 1 << 24
# How many symbols are named in words; the facts have them all.
NAMED = 5


@dataclass(frozen=True)
class Machine:
    """A machine, as a compiled library sees it.

    Attributes:
        build: what its programs are compiled for.
        system: ``linux``.
        libc, libc_version: the C library, such as ``glibc`` and ``2.36``; empty if unknown.
        target: what to give to a cross compiler, such as ``aarch64-linux-gnu``.
        portcall: the version of the runtime there.
        abis: the calling conventions of libraries that it loads: ``modern``, ``modern 0.21``, ``classic``; none where
            the program is static and loads no libraries.
    """

    build: Build
    system: str
    libc: str
    libc_version: str
    target: str
    portcall: str
    abis: tuple[str, ...]

    def __str__(self) -> str:
        system = ", ".join(filter(None, (self.system, f"{self.libc} {self.libc_version}".strip())))
        return f"{self.build}, {system}"

    @classmethod
    def from_dict(cls, facts: Any) -> Machine:
        """Make a machine of what ``to_json`` made of one.

        Raises:
            ValueError: the facts are others.
        """
        words = {name: text_in(facts, name) for name in ("system", "libc", "libc_version", "target", "portcall")}
        return cls(build=build_in(facts), abis=names_in(facts, "abis", MOST_NAMES), **words)


@dataclass(frozen=True)
class Needs:
    """What a library needs of the machine that is to run it.

    Attributes:
        build: the machine that it is compiled for.
        abi: how its functions are called: one of ``ABIS``, or ``plain``.
        needed, runpath: the libraries that it asks for, and the folders in which to look first.
        versions: for each library, the versions of its symbols that are asked for.
        contexts: its variables that a loader fills.
        symbols: what others must provide.
    """

    build: Build
    abi: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    versions: Mapping[str, tuple[str, ...]]
    contexts: tuple[str, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Unmet:
    """What of a library's needs is not there.

    Attributes:
        libraries: the names, and who asks for each.
        versions: for each library, the versions of its symbols that it is too old for.
        contexts: variables that the loader does not know.
        symbols: those that no library provides.
    """

    libraries: Mapping[str, str]
    versions: Mapping[str, tuple[str, ...]]
    contexts: tuple[str, ...]
    symbols: tuple[str, ...]

    @classmethod
    def from_dict(cls, facts: Any) -> Unmet:
        """Make of what ``to_json`` made of some what it was.

        Raises:
            ValueError: the facts are others, or too many.
        """
        libraries = mapping_in(facts, "libraries", MOST_NAMES)
        versions = mapping_in(facts, "versions", MOST_LIBRARIES)
        return cls(
            libraries={name: text_in(libraries, name) for name in libraries},
            versions={library: names_in(versions, library, MOST_NAMES) for library in versions},
            contexts=names_in(facts, "contexts", MOST_NAMES),
            symbols=names_in(facts, "symbols", MOST_NAMES),
        )


# ---- Facts as text -------------------------------------------------------------------------------------------------


def to_json(facts: Any) -> str:
    return json.dumps(facts, default=vars)


def from_json(text: str) -> Any:
    """Return the facts in a stranger's text.

    Raises:
        ValueError: the text is too long, or no JSON.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text):,} characters of facts are too many (limit {MOST_CHARACTERS:,})")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot parse the facts as JSON: {error}") from None


def text_in(facts: Any, name: str) -> str:
    value = mapping(facts).get(name)
    if not isinstance(value, str):
        raise ValueError(f"'{name}' is {value!r}, which is not a str")
    return value


def names_in(facts: Any, name: str, most: int) -> tuple[str, ...]:
    value = mapping(facts).get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"'{name}' is not a list of names")
    if len(value) > most:
        raise ValueError(f"'{name}' has {len(value)} names (limit {most})")
    return tuple(value)


def mapping_in(facts: Any, name: str, most: int) -> dict[str, Any]:
    value = mapping(mapping(facts).get(name))
    if len(value) > most:
        raise ValueError(f"'{name}' has {len(value)} names (limit {most})")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("the facts do not have the expected form")
    return value


def build_in(facts: Any) -> Build:
    build = mapping(mapping(facts).get("build"))
    bits = build.get("bits")
    if not isinstance(bits, int):
        raise ValueError(f"'bits' is {bits!r}, which is not a number")
    return Build(text_in(build, "machine"), bits, text_in(build, "byte_order"))


# ---- What is here --------------------------------------------------------------------------------------------------


@functools.cache
def this_machine() -> Machine:
    """Return what this process runs on."""
    return Machine.from_dict(describe("", "")["machine"])


def known_contexts() -> frozenset[str]:
    """Return the names of the variables in a library that the loader here fills; compiled code may add some."""
    return frozenset(get_global_func("portcall.loader.ContextNames")())


def unmet_here(needs: Needs, file: Path) -> tuple[Unmet, dict[str, str]]:
    """Return what a library would not find in this process if it lay at ``file``, and where the libraries lie it needs.

    Files are read, never loaded. A library for another machine finds nothing; of the symbols that it needs only
    those count that the runtime should have.
    """
    unmet = describe(str(file.resolve().parent), to_json(needs))["unmet"]
    return Unmet.from_dict(unmet), unmet["found"]


def describe(folder: str, needs: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(session_library()["machine"](folder, needs, *beside()))
    return facts


def beside() -> tuple[PackedFunc, str]:
    """Return what this process has for a library beside what the dynamic linker finds, as core/session takes it."""
    return convert(place_of), str(IR_LIBRARY)


def place_of(library: str) -> str:
    """Return where a package has a library, which portcall loads itself; empty for nowhere."""
    if library in PACKAGES:
        spec = importlib.util.find_spec(PACKAGES[library][0])
        for folder in (spec and spec.submodule_search_locations) or ():
            place = Path(folder, "lib", library)
            if place.is_file():
                return str(place)
    return ""


# ---- Words ---------------------------------------------------------------------------------------------------------


def problems_of(needs: Needs, machine: Machine, unmet: Unmet, *, here: bool) -> Iterator[str]:
    """Yield why a library will not run on a machine, each a sentence with a remedy; the machine is this one or not."""
    this, there = ("this", "") if here else ("that", " there")
    if not machine.abis:
        yield f"the program{there} is static and loads no libraries: link kernels into it, and use system_lib()"
        return
    if needs.build != machine.build:
        way_out = "run it on the other one, or " if here else ""
        yield f"it is made for {needs.build} and {this} machine is {machine}: {way_out}{compile_for(machine.target)}"
        return  # what it needs beside that is another machine's, too
    if needs.abi not in (PLAIN, *machine.abis):
        yield (
            f"its functions are called in the {needs.abi} way ({ABIS[needs.abi]}), and portcall {machine.portcall}"
            f"{there} knows {', '.join(machine.abis)}: compile it with what makes those"
        )
    for name, asker in unmet.libraries.items():
        yield f"{asker} needs {name}, which was not found{there}: {remedy(name, machine, here)}"
    for library, versions in unmet.versions.items():
        wanted = f"it needs {', '.join(versions)} of {library}"
        if machine.libc == "glibc" and all(version.startswith("GLIBC_") for version in versions):
            target = f"{machine.target}.{machine.libc_version}"
            yield f"{wanted} and {this} machine has glibc {machine.libc_version}: {compile_for(target)}"
        else:
            yield f"{wanted}, which is older {'here' if here else 'there'}: build it on a system as old as {this}"
    perhaps = unmet.libraries or unmet.versions
    way_out = "perhaps that library does" if perhaps else "add the source or library that defines it"
    for name in unmet.symbols[:NAMED]:
        yield f"it needs the symbol '{name}', which no library{there} provides: {way_out}"
    if len(unmet.symbols) > NAMED:
        yield f"it needs {len(unmet.symbols) - NAMED} more symbols that no library{there} provides"
    for name in unmet.contexts:
        runtime = "portcall" if here else f"portcall {machine.portcall} there"
        yield f"it expects '{name}', a variable that {runtime} does not fill in: calling it may crash"


def compile_for(target: str) -> str:
    return f"compile it with portcall compile … --target {target}"


def remedy(library: str, machine: Machine, here: bool) -> str:
    """Return what to do where a machine does not have a library."""
    if library in PACKAGES:
        return f"pip install {PACKAGES[library][1]}"
    for_musl, for_glibc = library == "libc.so" or library.startswith("libc.musl-"), library == "libc.so.6"
    if (for_musl and machine.libc == "glibc") or (for_glibc and machine.libc == "musl"):
        return f"it is the C library of another system; {compile_for(machine.target)}"
    if here:
        return "install it, or set LD_LIBRARY_PATH"
    return "install it there, or upload it first and link with -Wl,-rpath,$ORIGIN"
