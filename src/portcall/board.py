# SPDX-License-Identifier: Apache-2.0
"""Compile ``portcall-server``, the server without Python, for any machine, from the sources in this package.

Rules:

* ``ziglang`` compiles, for this machine too: the program runs on systems older than this one.
* Everything is in one file: the core, the server and the C++ library.
* For Android, whose C library zig does not have, the compiler is that of Android's NDK.
* Objects, and programs without kernels, are kept by what they are made of, in ``$XDG_CACHE_HOME/portcall/board``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from portcall import _compilers, toolchain
from portcall._archive import members_of, open_archive
from portcall._core import __version__
from portcall._folders import cache_folder, folder_beside
from portcall.errors import CompileError

FOLDERS = ("runtime", "classic", "loader", "rpc", "graph", "session", "board")
# Of the library for graphs of objects: their binary form, in which they are arguments and results.
BY_VALUE = tuple(f"ir/{name}.cc" for name in ("binary_read", "binary_write", "enum", "load", "text", "types", "walk"))
APART = ("session/library.cc", "session/serving.cc")  # for programs of which a server is a part
HEADERS = ("facts", "bytes", "include", "ir", "lm", "vm")  # the sources include these, too
ABOVE = ("ir", "lm", "vm", "session", "board")  # what the other folders do not include
__all__ = ["TARGETS", "build_server"]

PACKED = "core.tar.bz2"  # the sources in the wheel: scripts/pack_sources.py
# With the oldest C library that the program runs on, where that is not the oldest one that zig knows.
OLDEST = {
    "x86_64-linux-gnu": ".2.17",
    "aarch64-linux-gnu": ".2.17",
    "arm-linux-gnueabihf": ".2.17",
    "riscv64-linux-gnu": ".2.30",
}
TARGETS = (*OLDEST, *(f"{machine}-linux-musl" for machine in ("x86_64", "aarch64", "riscv64")), "arm-linux-musleabihf")
# The target of NDK's clang ends with the oldest version of Android: 28, which is Android 9, if no other is given.
ANDROID = re.compile(r"(?:aarch64|x86_64|riscv64)-linux-android(\d*)")
OLDEST_ANDROID = "28"
# Without tables for functions that throw nothing; those that exceptions pass have theirs. Operator new is not exported:
# a library with another C++ library could not catch what it throws.
FLAGS = (
    "-std=c++17", "-Oz", "-DNDEBUG", "-DPORTCALL_SMALL_CLOSURES", "-fPIC", "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables", "-ffunction-sections", "-fdata-sections", "-fvisibility=hidden",
    "-fvisibility-inlines-hidden", "-fvisibility-global-new-delete-hidden", "-Wno-deprecated",
    "-fno-sanitize=undefined", "-DPORTCALL_BUILDING", "-fomit-frame-pointer",
)  # fmt: skip
# Targets that are optimized as a whole, with the C++ library: a tenth smaller, and as fast. Others were not tried.
# Their frames have a pointer: the tables for exceptions are smaller by more than it takes.
WHOLE = ("x86_64-linux-gnu",)


def source_folder() -> Path:
    """Return the folder with the core's sources: the checkout's, or of the package's archive, unpacked once.

    Raises:
        FileNotFoundError: the package is damaged.
        PermissionError: others can write to the cache.
    """
    folders = _compilers.package_folders()
    for folder in folders:
        if len(folder.parents) > 1 and (folder.parents[1] / "core" / "board").is_dir():
            return folder.parents[1] / "core"
    return unpacked(_compilers.first_existing(folders, PACKED, "the server's sources") / PACKED)


def unpacked(archive: Path) -> Path:
    """Return the cache's folder with what is in an archive."""
    made = cache_folder("board") / f"core-{hashlib.sha256(archive.read_bytes()).hexdigest()[:24]}"
    if not made.is_dir():
        with folder_beside(made) as folder, open_archive(archive, str(archive)) as opened:
            new = Path(folder, "core")
            for member in members_of(opened):
                content = opened.extractfile(member)
                assert content is not None
                (new / member.name).parent.mkdir(parents=True, exist_ok=True)
                (new / member.name).write_bytes(content.read())
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(new, made)
    return made


def zig(target: str) -> toolchain.Compiler:
    """Return zig as a C++ compiler for a machine, and for the oldest C library that the program runs on.

    Raises:
        CompileError: ziglang is missing.
    """
    return _compilers.zig_compiler("c++", target + OLDEST.get(target, ""))


def ndk_compiler(target: str, ndk: str | os.PathLike[str]) -> toolchain.Compiler:
    """Return the NDK's C++ compiler for a version of Android.

    The layout is that of NDK r19 and later (developer.android.com/ndk/guides/other_build_systems).

    Raises:
        ValueError: the target is none of Android.
        FileNotFoundError: the folder has no compiler of an NDK.
    """
    found = ANDROID.fullmatch(target)
    if not found:
        raise ValueError(f"an NDK compiles for Android, not for '{target}' (such as aarch64-linux-android)")
    folder = Path(ndk, "toolchains", "llvm", "prebuilt")
    program = next(iter(sorted(folder.glob("*/bin/clang++"))), None)
    if program is None:
        raise FileNotFoundError(f"'{ndk}' is not the folder of an NDK: there is no {folder}/*/bin/clang++")
    words = f"--target={target}{'' if found[1] else OLDEST_ANDROID}"
    return toolchain.Compiler("c++", (str(program), words), "NDK", target)


def compiler_for(target: str, ndk: str | os.PathLike[str] | None) -> toolchain.Compiler:
    if ndk is not None:
        return ndk_compiler(target, ndk)
    if ANDROID.fullmatch(target):
        raise CompileError(f"a program for '{target}' needs Android's NDK: give its folder (--ndk, ndk=)")
    return zig(target)


def link_options(target: str, with_kernels: bool) -> tuple[str, ...]:
    if ANDROID.fullmatch(target):  # its C library has the threads
        return ("-static-libstdc++", "-rdynamic")
    if "musl" not in target:
        return ("-rdynamic", "-lpthread")
    return ("-static",) if with_kernels else ("-dynamic", "-rdynamic")


def build_server(
    target: str,
    output: str | os.PathLike[str],
    linked: Sequence[str | os.PathLike[str]] = (),
    ndk: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    vm: bool = False,
) -> Path:
    """Make the program for a machine; return its absolute path.

    Parameters:
        target: one of ``TARGETS``, or another name that zig has.
        linked: objects and archives with kernels, found by ``system_lib``. A program for musl is static then, and
            loads no libraries.
        ndk: the folder of Android's NDK, for ``aarch64-linux-android`` and ``x86_64-linux-android``; a number at the
            end is the API level of the oldest version of Android that the program runs on.
        progress: called with how many sources are compiled and how many there are, first with none.
        vm: whether the program has the machine that runs models of TVM's Relax VM.

    Raises:
        CompileError: ziglang is missing, or does not know the target; or a target of Android has no NDK.
        FileNotFoundError: one of ``linked``, the NDK's compiler, or the output's folder, does not exist.
        ValueError: an NDK was given for another system.
        PermissionError: others can write to the cache of objects.
    """
    place = _compilers.check_output(output)
    for path in linked:
        if not Path(path).is_file():
            raise FileNotFoundError(f"'{path}' does not exist or is not a file")
    core = source_folder()
    wide = ("-D_FILE_OFFSET_BITS=64",) if target.startswith("arm") else ()  # files of any size, on 32 bits too
    whole = ("-flto", "-Oz", "-fno-omit-frame-pointer") if target in WHOLE else ()
    compiler = compiler_for(target, ndk)
    flags = (*compiler.command, *FLAGS, *wide, *whole, f'-DPORTCALL_VERSION="{__version__}"', f"-I{core}",
             f"-I{core}/include", f"-I{toolchain.include_dir()}")  # fmt: skip
    folders = (*FOLDERS, "lm", "vm") if vm else FOLDERS
    sources = [path for folder in folders for path in sorted((core / folder).rglob("*.cc"))]
    for name in APART:
        sources.remove(core / name)
    sources += [core / name for name in BY_VALUE]
    made_by = "\0".join((*flags, compiler.version())).encode()

    def folder_of(path: Path) -> str:
        return path.relative_to(core).parts[0]

    headers = [path for folder in (*FOLDERS, *HEADERS) for path in sorted((core / folder).rglob("*.h"))]
    known = {  # the core includes nothing of the server and of objects
        above: hashlib.sha256(
            made_by + b"".join(path.read_bytes() for path in headers if above or folder_of(path) not in ABOVE)
        ).digest()
        for above in (False, True)
    }
    cache = cache_folder("board")

    def compile_one(source: Path) -> Path:
        content = known[folder_of(source) in ABOVE] + source.read_bytes()
        made = cache / f"{source.stem}-{hashlib.sha256(content).hexdigest()[:24]}.o"
        if not made.is_file():
            with folder_beside(made) as folder:
                new = Path(folder, made.name)
                _compilers.execute((*flags, "-c", str(source), "-o", str(new)), f"compiling '{source}'")
                os.replace(new, made)
        return made

    objects: list[str] = []
    tell = progress or (lambda done, of: None)
    tell(0, len(sources))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for made in pool.map(compile_one, sources):
            objects.append(str(made))
            tell(len(objects), len(sources))
    small = (*whole, "-Wl,--gc-sections", "-Wl,--hash-style=gnu", "-s")
    words = (*compiler.command, *objects, *map(str, linked), *link_options(target, bool(linked)), *small, "-ldl", "-o")
    # The objects' names say what is in them; those of the linked ones do not.
    kept = None if linked else cache / f"server-{hashlib.sha256(repr(words).encode()).hexdigest()[:24]}"
    if kept is None or not kept.is_file():
        with folder_beside(kept or place) as folder:
            new = Path(folder, place.name)
            _compilers.execute((*words, str(new)), f"linking '{output}'")
            os.replace(new, kept or place)
    if kept is not None:
        with folder_beside(place) as folder:
            os.replace(shutil.copy(kept, Path(folder, place.name)), place)
    return place
