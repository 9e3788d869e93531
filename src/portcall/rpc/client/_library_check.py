# SPDX-License-Identifier: Apache-2.0
"""Check a library before upload: can the server's machine load it?

The name on the server decides, as for loading: shared libraries are checked as a whole, objects and archives of
objects for the machine that they are compiled for. Other files are sent unchecked.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portcall import errors
from portcall._archive import members_of, open_archive
from portcall.inspect._elf import Buffer, ElfError, read_build
from portcall.inspect._library import kind_problems, needs_of
from portcall.inspect._machine import Machine, Unmet, compile_for, from_json, mapping, problems_of, to_json
from portcall.inspect._mapped import open_mapped
from portcall.inspect._seal import damage_of
from portcall.inspect._wasm import read_library

_LIBRARY = re.compile(r"\.(so(\.\d+)*|wasm)$")
_HEADER = 64  # bytes that name the machine an object is for


@dataclass(frozen=True)
class Answer:
    """What a machine says of itself and, where it was asked, of a library's needs."""

    machine: Machine
    unmet: Unmet | None

    @classmethod
    def from_text(cls, text: str) -> Answer:
        """Read what a server said.

        Raises:
            ValueError: it said something else.
        """
        facts = mapping(printable(from_json(text)))
        unmet = Unmet.from_dict(facts["unmet"]) if "unmet" in facts else None
        return cls(Machine.from_dict(facts.get("machine")), unmet)

    @property
    def good(self) -> bool:
        """Nothing is unmet."""
        return self.unmet is None or not any(vars(self.unmet).values())


def printable(value: Any) -> Any:
    """Return facts without what a terminal would obey."""
    if isinstance(value, str):
        return "".join(filter(str.isprintable, value))
    if isinstance(value, list):
        return [printable(item) for item in value]
    return {printable(name): printable(item) for name, item in value.items()} if isinstance(value, dict) else value


Ask = Callable[[str, str], Answer | None]  # a name on the server, and needs as JSON or no text; None: it cannot tell


def check(source: Path | memoryview, name: str, peer: str, ask: Ask) -> None:
    """Refuse a file that a server could not load under its name, if it can tell.

    Raises:
        ModuleLoadError: the server's machine is another one, or lacks what the library needs; the message says what.
    """
    suffix = Path(name).suffix
    if _LIBRARY.search(name):
        problems = library_problems(source, name, ask)
    elif suffix in (".o", ".tar"):
        answer = ask("", "")
        problems = [] if answer is None else list(object_problems(source, suffix, answer.machine))
    else:
        return
    if problems:
        what = f"'{source if isinstance(source, Path) else name}' will not load on {peer}"
        raise errors.ModuleLoadError(
            f"{what}: {'; '.join(problems)}. upload(…, check=False) sends it all the same",
            path=source if isinstance(source, Path) else name,
            problems=problems,
        )


def library_problems(source: Path | memoryview, name: str, ask: Ask) -> list[str]:
    try:
        with opened(source) as data:
            elf = read_library(data)
            damage = damage_of(data, elf.end)
    except ElfError as error:
        answer = ask("", "")
        return [str(error)] if answer is not None else []
    needs = needs_of(elf)
    answer = ask(name, to_json(needs))
    if answer is None or answer.unmet is None:
        return [damage] if damage else []
    return [
        *filter(None, (damage,)),
        *kind_problems(elf.kind),
        *problems_of(needs, answer.machine, answer.unmet, here=False),
    ]


def object_problems(source: Path | memoryview, suffix: str, machine: Machine) -> Iterator[str]:
    """Yield each object that is for another machine; what they need is known once they are linked, on the server."""
    try:
        for name, start in objects(source, suffix):
            build = read_build(start)
            if build != machine.build:
                yield f"{name} is made for {build} and that machine is {machine}: {compile_for(machine.target)}"
    except Exception as error:  # each way to compress an archive has its own errors
        yield f"it cannot be read: {error}"


def objects(source: Path | memoryview, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the first bytes of the object, or of each object in the archive."""
    if suffix == ".o":
        with opened(source) as data:
            yield "it", data[:_HEADER]
        return
    file, called = (source, source.name) if isinstance(source, Path) else (io.BytesIO(source), "it")
    with open_archive(file, called) as archive:
        for member in members_of(archive):
            if member.isreg() and member.name.endswith(".o"):
                content = archive.extractfile(member)
                assert content is not None
                with content:
                    yield f"its member '{member.name}'", content.read(_HEADER)


@contextlib.contextmanager
def opened(source: Path | memoryview) -> Iterator[Buffer]:
    if isinstance(source, memoryview):
        yield bytes(source)
        return
    with open_mapped(source) as data:
        yield data
