# SPDX-License-Identifier: Apache-2.0
"""Libraries that are kept by what they were made of: sources, words for the compiler, the compiler, and all headers.

They lie in ``$XDG_CACHE_HOME/portcall/libraries`` (``~/.cache/portcall/libraries``), each written whole or not at all;
nothing is removed from there but by hand. Which headers a source includes is known when it was compiled: a list beside
the libraries has, for each set of sources and words, the headers of each time, with their digests, and the library.
One process compiles what several ask for at once; the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from portcall._compilers import (
    Flags,
    Language,
    Sources,
    StrPath,
    check_sources,
    checked_options,
    compile_and_link,
    compile_flags,
    compile_options,
    find_compiler,
    link_language,
    linked_with,
    processor,
)
from portcall._folders import cache_folder, working_folder

_FORM = 1  # of the lists
_LISTED = 32  # sets of headers of one source: the last ones
# What else compilers and linkers read from the environment.
_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")


def build(sources: StrPath | Iterable[StrPath], *, name: str = "", options: Sequence[str] = ()) -> Path:
    """Compile ``sources`` into a shared library for this machine, and keep it; return where it lies.

    What was compiled before, of the same sources, headers, options and compiler, is returned as it is: that starts no
    compiler, and takes milliseconds. Of processes that ask at once, one compiles.

    Parameters:
        sources, options: as for ``create_shared``. Libraries that ``-l`` links are not looked into.
        name: how the file begins; by default as the first source.

    Raises:
        CompileError: a source is wrong, or there is no compiler.
        FileNotFoundError: a source does not exist.
        ValueError: no sources, or one that cannot be compiled.
        PermissionError: others can write to the cache; the message says what to do.
    """
    paths = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    with working_folder() as unpacked:  # of archives
        plan = check_sources(paths, unpacked)
        given = [path.resolve() for path in map(Path, paths)]
        # Headers in quotation marks are looked for beside the source, and folders of options from here.
        key = {"places": [str(path.parent) for path in given], "here": os.getcwd() if options else ""}
        return find_or_build(name or given[0].stem, plan, given, options, key)


def find_or_build(
    name: str, plan: Sources, files: Sequence[Path], options: Sequence[str], more: Mapping[str, Any],
    own: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Return the library of a plan, which is compiled unless it is there.

    Parameters:
        files: what the plan was made of.
        more: what else tells two libraries apart.
        own: words for the compiler before the options, which tell nothing apart.
    """
    folder = cache_folder("libraries")
    words = _words(plan, options)
    began = time.time_ns()
    contents = [_digest(path) for path in files]
    key = _key({"form": _FORM, "files": contents, "words": words, **more})
    known = folder / f"{name}-{key}.json"
    found = _look_up(known)
    if found is None:
        with _locked(known.with_suffix(".lock")):
            found = _look_up(known)  # another process made it meanwhile
            if found is None:
                found = _make(known, name, key, plan, (*own, *options), files, began)
    return found


def _make(
    known: Path, name: str, key: str, plan: Sources, options: Sequence[str], files: Sequence[Path], began: int
) -> Path:
    linker = find_compiler(link_language(plan))
    flags = Flags(compile_options(options), linker.shared_flags(), (*linked_with(plan, linker), *options, "-lm"))
    with working_folder(".making-", known.parent) as folder:
        made = compile_and_link(plan, folder / "library.so", folder, linker, flags)
        listed = {path for each in folder.glob("*.d") for path in _headers(each)}
        listed -= {str(path) for path, _ in plan.compiled}
        digests = {path: _digest(path) for path in sorted(listed) if not path.startswith(f"{known.parent}/")}
        library = known.parent / f"{name}-{_key({'of': key, 'headers': digests})}.so"
        os.replace(made, library)
        # What was written meanwhile may have been read before or after that.
        outside = [str(path) for path in files if not path.is_relative_to(known.parent)]
        if all(os.stat(path).st_mtime_ns < began for path in (*digests, *outside)):
            entries = [entry for entry in _entries(known) if entry["library"] != library.name]
            made_now = {"headers": digests, "library": library.name, "size": library.stat().st_size}
            text = json.dumps([*entries[1 - _LISTED :], made_now])
            new = folder / "list.json"
            new.write_text(text, encoding="utf-8")
            os.replace(new, known)
    return library


def _look_up(known: Path) -> Path | None:
    """Return the library whose headers are those that are there now."""
    digests: dict[str, str] = {}
    for entry in reversed(_entries(known)):
        library = known.parent / str(entry["library"])
        whole = library.is_file() and library.stat().st_size == entry["size"]
        if whole and all(_same(path, digest, digests) for path, digest in entry["headers"].items()):
            return library
    return None


def _same(path: str, digest: str, known: dict[str, str]) -> bool:
    if path not in known:
        try:
            known[path] = _digest(path)
        except OSError:
            known[path] = ""
    return known[path] == digest


def _entries(known: Path) -> list[dict[str, Any]]:
    """Return what a list says; a damaged one says nothing."""
    try:
        entries = json.loads(known.read_text(encoding="utf-8"))
        types = {"library": str, "headers": dict, "size": int}
        return [entry for entry in entries if all(isinstance(entry[name], kind) for name, kind in types.items())]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _words(plan: Sources, options: Sequence[str]) -> list[Any]:
    """Return all that compilers and linker are told, and what they say of themselves."""
    languages: list[Language] = [link_language(plan), *(language for _, language in plan.compiled)]
    tools = [find_compiler(language) for language in dict.fromkeys(languages)]
    told: list[Any] = [[*tool.command, tool.version(), *compile_flags(tool), *tool.shared_flags()] for tool in tools]
    told += [list(checked_options(options)), [platform.machine(), *(path.suffix for path, _ in plan.compiled)]]
    told.append([os.environ.get(variable) for variable in _VARIABLES])
    if any("native" in str(word) for words in told for word in words):
        told.append(processor())
    return told


def _headers(listing: Path) -> list[str]:
    """Return what a source was compiled from, as make is told: names after a colon, escaped."""
    text = listing.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", " ")
    _, _, names = text.partition(": ")
    found = re.findall(r"(?:\\[ #]|\$\$|\S)+", names)
    return [os.path.abspath(re.sub(r"\\([ #])", r"\1", name).replace("$$", "$")) for name in found]


def _digest(path: StrPath) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _key(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which stays; without one where the file system has none."""
    with open(path, "wb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
