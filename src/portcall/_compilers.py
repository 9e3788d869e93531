# SPDX-License-Identifier: Apache-2.0
"""Compilers, and what is compiled and linked by them.

Rules:

* This machine's code is compiled by the system compiler: ``$CXX`` or ``$CC`` where set, else the first of the usual
  names on PATH. Code for another machine, or on a machine without a compiler, is compiled by the ``ziglang`` package.
* C sources are compiled as C11, C++ sources as C++17, both with ``-O3 -fPIC`` and for any processor of the machine's
  kind. The words of ``$CFLAGS`` or ``$CXXFLAGS`` follow, then the caller's options: the last of them wins.
* A library links nothing of portcall's: its ``TVMFFI*``, ``TVMBackend*`` and ``Portcall*`` symbols stay undefined and
  are bound when it is loaded, those of ``portcall/ir.h`` too. ELF libraries are linked for lazy
  binding, which leaves the loader every way to do so.
* The headers of tvm-ffi are found where apache-tvm-ffi is installed, after all others.
* A library for ``wasm32`` joins the memory of the core in WebAssembly. The C library's functions that it calls stay
  undefined as well; the core has those of kernels. Its code uses vectors (simd128), which every engine has.
* A program links the core, and ``libportcall_ir`` if it calls that.
* An output appears whole or not at all: it is made in a folder beside its place and then renamed.
* Every failure of a compiler is a CompileError with the command and all that the compiler wrote. A step that does not
  end within ``STEP_LIMIT`` is one.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from portcall._archive import members_of, open_archive
from portcall._folders import folder_beside
from portcall.errors import CompileError
from portcall.extras import EXTRAS

Language = Literal["c", "c++"]
StrPath = str | os.PathLike[str]

LANGUAGE_OF_SUFFIX: dict[str, Language] = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++"}
LINKED_SUFFIXES = (".o", ".a")
WASM = "wasm32"
NO_EXCEPTIONS = (
    " C++ is compiled without exceptions here, as always for wasm32, and portcall's headers for C++ need them: write"
    " the kernel in C, with <portcall/c_api.h>"
)
NO_TVM_FFI = " the headers of tvm-ffi (<tvm/ffi/...>) are not installed: pip install apache-tvm-ffi"
# Names of zig: with vectors, and without constant expressions that Node 20 does not know.
WASM_COMPILING = ("-target", "wasm32-wasi", "-mcpu=generic+simd128-extended_const")
WASM_LINKING = (
    "--experimental-pic", "-shared", "--import-memory", "--import-table", "--export-dynamic", "--strip-all",
    "--unresolved-symbols=import-dynamic",
)  # fmt: skip
SUFFIXES = (*LANGUAGE_OF_SUFFIX, *LINKED_SUFFIXES, ".tar")
SYSTEM_NAMES: dict[Language, tuple[str, ...]] = {"c": ("cc", "gcc", "clang"), "c++": ("c++", "g++", "clang++")}
ENVIRONMENT: dict[Language, str] = {"c": "CC", "c++": "CXX"}
ENVIRONMENT_FLAGS: dict[Language, str] = {"c": "CFLAGS", "c++": "CXXFLAGS"}
ZIG_COMMAND: dict[Language, str] = {"c": "cc", "c++": "c++"}
STANDARD: dict[Language, str] = {"c": "-std=gnu11", "c++": "-std=c++17"}
STEP_LIMIT = 1200.0  # seconds; zig's first build of a C++ library takes minutes on a small board
INSTALL_HINT = f"install one (Debian: apt install g++) or the ziglang package ({EXTRAS['zig'].command})"


@dataclass(frozen=True)
class Compiler:
    """A compiler of one language, as the words that start it.

    Attributes:
        language: ``c`` or ``c++``.
        command: the program and its fixed arguments, such as ``("/usr/bin/c++",)``.
        origin: where it comes from: ``$CXX``, ``PATH`` or ``ziglang``.
        target: the machine it compiles for, such as ``aarch64-linux-gnu``; empty means this one.
        name: its program's name: ``c++``, ``zig``.
    """

    language: Language
    command: tuple[str, ...]
    origin: str
    target: str = ""

    @property
    def name(self) -> str:
        return "zig" if self.origin == "ziglang" else Path(self.command[0]).name

    def version(self) -> str:
        """Return the first line of ``--version``, or a note in brackets when the program does not answer."""
        command = (*zig_program(), "version") if self.origin == "ziglang" else (*self.command, "--version")
        try:
            first = output_of(command).strip().partition("\n")[0]
        except subprocess.CalledProcessError as error:
            return f"(does not run: exit {error.returncode})"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"(does not run: {error})"
        if not first:
            return "(does not run: exit 0)"
        return f"zig {first}" if self.origin == "ziglang" else first

    def is_gcc(self) -> bool:
        """Tell whether it is GCC, whatever its name is."""
        try:
            return "Free Software Foundation" in output_of((*self.command, "--version"))
        except (OSError, subprocess.SubprocessError):
            return False

    def flags(self) -> tuple[str, ...]:
        """Return what each compile step gets before the words of the environment and the caller's options."""
        flags = [STANDARD[self.language], "-O3", "-fPIC"]
        if self.origin == "ziglang":
            flags.append("-fno-sanitize=undefined")  # on by default there, where a caller asks for -O0
        elif self.language == "c++" and self.is_gcc():
            flags.append(
                "-fno-gnu-unique"
            )  # such variables would be one for all libraries of a process, on any runtime
        if self.target.startswith("wasm"):
            flags.append("-fvisibility=default")  # hidden by default there, so nothing would be exported
        if self.target == WASM and self.language == "c++":
            flags += ("-fno-exceptions", "-fno-rtti")  # their library would have to be in the core
        return tuple(flags)

    def shared_flags(self) -> tuple[str, ...]:
        """Return what the link step of a library gets beside the caller's options."""
        if self.target == WASM:
            return WASM_LINKING
        if self.target.startswith("wasm"):
            return ("-mexec-model=reactor", "-rdynamic", "-Wl,--import-symbols", "-s")
        flags = ("-shared", "-Wl,-z,lazy", "-Wl,--as-needed")
        # Such a library carries its own C++ library: 240 KB stripped, 1.7 MB otherwise.
        return (*flags, "-s") if self.origin == "ziglang" else flags


@functools.cache
def output_of(command: tuple[str, ...]) -> str:
    """Return what a program that tells its version prints. It is asked once in a process, or until it answers.

    Raises:
        OSError, subprocess.SubprocessError: it does not start, takes a minute, or fails.
    """
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def include_dir() -> Path:
    """Return the folder to give to a compiler as ``-I``, so that ``#include <portcall/...>`` works."""
    places = [folder / "include" for folder in package_folders()]
    places += [folder.parents[1] / "core" / "include" for folder in package_folders() if len(folder.parents) > 1]
    return first_existing(places, "portcall/c_api.h", "portcall's headers")


def library_path() -> Path:
    """Return the core as a shared library, for a C or C++ program to link: ``portcall/lib/libportcall.so``."""
    places = [folder / "lib" for folder in package_folders()]
    return first_existing(places, "libportcall.so", "portcall's core library") / "libportcall.so"


def create_shared(
    sources: StrPath | Iterable[StrPath],
    output: StrPath,
    target: str | None = None,
    options: Sequence[str] = (),
    language: Language | None = None,
) -> Path:
    """Compile ``sources`` and link them into the shared library ``output``; return its absolute path.

    Parameters:
        sources: C (.c) and C++ (.cc .cpp .cxx) sources, objects (.o) and archives (.a) to link, and tar files (.tar) of
            those; one or several.
        output: the file to make; its folder must exist. ``load_module`` wants the suffix ``.so``.
        target: another machine, such as ``aarch64-linux-gnu`` or ``riscv64-linux-gnu``; ``wasm32`` is a tab or
            Node, for sources in C (docs/javascript.md); None is this one.
            The first C++ library for a new machine takes a minute, because zig first builds a C++ runtime.
        options: further words for each compile step and for the link step, those that begin with ``-l`` for the link
            step only; for ``wasm32`` for the compile steps only. ``("-march=native",)`` makes faster code that runs on
            processors like this one only, so that it is not for libraries that are sent to other machines.
        language: as what to link; ``"c"`` needs no C++ library. By default C++, unless all sources are C.

    Raises:
        CompileError: a source is wrong, or there is no compiler for that target.
        FileNotFoundError: a source, or the output's folder, does not exist.
        ValueError: no sources, or one of a kind not listed above; a tar file that is damaged, or holds none.
    """
    place = check_output(output)
    with folder_beside(place) as folder:
        plan = check_sources(sources, folder)
        linker = find_compiler(language or link_language(plan), target)
        extra = Flags(compile_options(options), linker.shared_flags(), (*linked_with(plan, linker), *options, "-lm"))
        if target == WASM:
            linker = Compiler("c", (*zig_program(), "wasm-ld"), "ziglang", WASM)
            extra = Flags(compile_options(options), linker.shared_flags(), ())
        return compile_and_link(plan, place, folder, linker, extra)


def create_executable(sources: StrPath | Iterable[StrPath], output: StrPath, options: Sequence[str] = ()) -> Path:
    """Compile ``sources`` into the program ``output``, linked with portcall; return its absolute path.

    The program runs on this machine and needs no Python: it finds the core where it lies now (rpath).
    Arguments and errors are those of ``create_shared``.
    """
    place, core = check_output(output), library_path()
    ir = ("-Wl,--as-needed", str(core.with_name("libportcall_ir.so")), "-Wl,--no-as-needed")
    libraries = (*ir, str(core), f"-Wl,-rpath,{core.parent}", "-lm", "-lpthread")
    with folder_beside(place) as folder:
        plan = check_sources(sources, folder)
        linker = find_compiler(link_language(plan))
        extra = Flags(compile_options(options), (), (*linked_with(plan, linker), *options, *libraries))
        return compile_and_link(plan, place, folder, linker, extra)


def find_compiler(language: Language = "c++", target: str | None = None) -> Compiler:
    """Return the compiler that ``create_shared`` would use for a language and a target.

    Raises:
        CompileError: no compiler was found; the message names the package to install or the variable to correct.
        ValueError: ``target`` does not have the form machine-system or machine-system-abi.
    """
    if target is not None and not is_this_machine(target):
        return zig_compiler(language, target)
    candidates = system_compilers(language)
    if candidates:
        return candidates[0]
    return zig_compiler(language, "")


def compilers() -> tuple[Compiler, ...]:
    """Return every compiler that is there, the one that would be used first for each language in front."""
    found: list[Compiler] = []
    for language in ("c", "c++"):
        found += system_compilers(language)
        if zig_is_installed():
            found.append(zig_compiler(language, ""))
    return tuple(found)


@dataclass(frozen=True)
class Sources:
    """Checked inputs: what to compile, with its language, and what to link as it is."""

    compiled: tuple[tuple[Path, Language], ...]
    linked: tuple[Path, ...]


@dataclass(frozen=True)
class Flags:
    """Flags of each compile step and of the link step."""

    compiling: tuple[str, ...]
    before_objects: tuple[str, ...]
    after_objects: tuple[str, ...]


def words_of(variable: str) -> list[str]:
    """Return the words of a variable of the environment, split as a shell does.

    Raises:
        CompileError: a quote in it has no end.
    """
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise CompileError(f"${variable} is '{os.environ[variable]}': {error}; correct it or unset it") from error


def compile_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options of the compile steps: all but libraries, of which some compilers warn there."""
    return tuple(option for option in checked_options(options) if not option.startswith("-l"))


def checked_options(options: Sequence[str]) -> Sequence[str]:
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise TypeError(f"options takes a list of words, such as ['-O2', '-lz'], got {options!r}")
    return options


def linked_with(sources: Sources, linker: Compiler) -> list[str]:
    """Return the environment's words for the link step: what compiling got, such as -fsanitize=, linking needs too."""
    return words_of(ENVIRONMENT_FLAGS[linker.language]) if sources.compiled else []


def unpack(archive: Path, folder: Path) -> Iterator[Path]:
    """Yield what an archive holds to compile and link, each in its own folder."""
    place = Path(tempfile.mkdtemp(dir=folder))
    found = False
    with open_archive(archive, str(archive)) as members:
        for number, member in enumerate(members_of(members)):
            path = place / str(number) / Path(member.name).name
            data = members.extractfile(member) if path.suffix in SUFFIXES[:-1] else None
            if data is not None:
                path.parent.mkdir()
                path.write_bytes(data.read())
                found = True
                yield path
    if not found:
        raise ValueError(f"'{archive}' holds nothing to link: {' '.join(SUFFIXES[:-1])}")


def check_sources(sources: StrPath | Iterable[StrPath], folder: StrPath) -> Sources:
    """Sort the sources by what is done with them; archives are unpacked into ``folder``."""
    paths = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not paths:
        raise ValueError(f"no sources: give at least one file of {' '.join(SUFFIXES)}")
    compiled: list[tuple[Path, Language]] = []
    linked: list[Path] = []
    for path in map(Path, paths):
        if path.suffix in LINKED_SUFFIXES:
            linked.append(path.resolve())
        elif path.suffix in LANGUAGE_OF_SUFFIX:
            compiled.append((path.resolve(), LANGUAGE_OF_SUFFIX[path.suffix]))
        elif path.suffix != ".tar":
            raise ValueError(f"cannot compile '{path}': its suffix '{path.suffix}' is not one of {' '.join(SUFFIXES)}")
        if not path.is_file():
            raise FileNotFoundError(f"source '{path}' does not exist or is not a file")
        if path.suffix == ".tar":
            inside = check_sources(list(unpack(path, Path(folder))), folder)
            compiled += inside.compiled
            linked += inside.linked
    return Sources(tuple(compiled), tuple(linked))


def check_output(output: StrPath) -> Path:
    """Return the absolute path of a file that is to be written.

    Raises:
        FileNotFoundError: its folder does not exist.
        IsADirectoryError: it is a folder.
    """
    path = Path(output)
    path = path.parent.resolve() / path.name
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{output}': the folder '{path.parent}' does not exist; create it first")
    if path.is_dir() or not path.name:
        raise IsADirectoryError(f"cannot write '{output}': it is a folder; name a file in it")
    return path


def link_language(sources: Sources) -> Language:
    """Return ``c`` only for pure C: linking as C++ works for all objects and archives."""
    return "c" if not sources.linked and all(language == "c" for _, language in sources.compiled) else "c++"


def compile_and_link(sources: Sources, output: Path, folder: StrPath, linker: Compiler, extra: Flags) -> Path:
    """Compile and link in a folder beside the output, and rename.

    Beside each object is a file that lists what it was compiled from (``.d``, as make reads it).
    """
    objects: list[str] = []
    for number, (source, language) in enumerate(sources.compiled):
        compiler = find_compiler(language, linker.target or None)
        made = str(Path(folder, f"{number}-{source.stem}.o"))
        flags = (*compile_flags(compiler), *extra.compiling, "-MD", "-MF", made[:-1] + "d")
        execute((*compiler.command, *flags, "-c", str(source), "-o", made), f"compiling '{source}'")
        objects.append(made)
    objects += map(str, sources.linked)
    made = str(Path(folder, output.name))
    command = (*linker.command, *extra.before_objects, *objects, *extra.after_objects, "-o", made)
    execute(command, f"linking '{output}'")
    if not os.path.exists(made):
        raise CompileError(
            f"linking '{output}' made no file: an option, such as -c or -E, ends it before", command=command
        )
    os.replace(made, output)
    return output


def compile_flags(compiler: Compiler) -> tuple[str, ...]:
    """Return what a compile step gets before the caller's options."""
    headers = (f"-I{include_dir()}", *(f"-isystem{folder}" for folder in tvm_ffi_headers()))
    return (*compiler.flags(), *headers, *words_of(ENVIRONMENT_FLAGS[compiler.language]))


def tvm_ffi_headers() -> list[Path]:
    """Return the folders of the headers of tvm-ffi and DLPack, where apache-tvm-ffi is installed."""
    spec = importlib.machinery.PathFinder.find_spec("tvm_ffi")  # not what stands for it in this process
    for folder in (spec.submodule_search_locations or []) if spec else []:
        places = [Path(folder, "include"), Path(folder, "3rdparty", "dlpack", "include")]
        if (places[0] / "tvm" / "ffi").is_dir():
            return [place for place in places if place.is_dir()]
    return []


def execute(command: Sequence[str], action: str) -> None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            timeout=STEP_LIMIT,
        )  # fmt: skip
    except OSError as error:
        raise CompileError(f"{action} failed: '{command[0]}' does not start: {error}", command=command) from error
    except subprocess.TimeoutExpired as error:
        text = f"{action} failed: no end after {STEP_LIMIT:g} s.\nThe command was:\n  {shlex.join(command)}"
        raise CompileError(text, command=command) from error
    if done.returncode != 0:
        hint = NO_EXCEPTIONS if "with exceptions disabled" in done.stdout else ""
        if re.search(r"fatal error: '?tvm/ffi/", done.stdout) and not tvm_ffi_headers():
            hint = NO_TVM_FFI
        text = f"{action} failed (exit {done.returncode}):{hint}\n{done.stdout}"
        text += f"\nThe command was:\n  {shlex.join(command)}"
        raise CompileError(text, command=command, output=done.stdout)


def system_compilers(language: Language) -> list[Compiler]:
    """Return the system's compilers of a language: the one that the environment names alone, or all on PATH."""
    variable = ENVIRONMENT[language]
    words = words_of(variable)
    if words:
        program = shutil.which(words[0])
        if program is None:
            raise CompileError(
                f"${variable} names the compiler '{words[0]}', which does not exist; correct it or unset it",
                command=words,
            )
        return [Compiler(language, (program, *words[1:]), f"${variable}")]
    programs: dict[str, str] = {}  # by the file behind the name: cc is often gcc
    for name in SYSTEM_NAMES[language]:
        found = shutil.which(name)
        if found is not None:
            programs.setdefault(os.path.realpath(found), found)
    return [Compiler(language, (program,), "PATH") for program in programs.values()]


def zig_is_installed() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def zig_program() -> tuple[str, ...]:
    return (sys.executable, "-m", "ziglang")


def zig_compiler(language: Language, target: str) -> Compiler:
    if not zig_is_installed():
        if target:
            raise CompileError(
                f"compiling for '{target}' needs the ziglang package: {EXTRAS['zig'].command} (this machine is "
                f"{this_machine()})"
            )
        raise CompileError(f"no {language} compiler found; {INSTALL_HINT}")
    command = (*zig_program(), ZIG_COMMAND[language])
    name = re.sub(r"^armv[67]\w*-", "arm-", target)  # Linux says armv7l, which zig does not know
    words = WASM_COMPILING if target == WASM else ("-target", name) if target else ()
    return Compiler(language, (*command, *words), "ziglang", target)


def this_machine() -> str:
    return f"{platform.machine()}-{sys.platform}"


def processor() -> list[str]:
    """Return what tells processors apart: what a cluster's shared home is used by may differ."""
    wanted = ("model name", "flags", "Features", "CPU part", "isa")
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return [platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})]


def is_this_machine(target: str) -> bool:
    """Tell whether the system compiler makes code for ``target``: same machine, same system, same C library."""
    if target == WASM:
        return False
    parts = target.split("-")
    if len(parts) not in (2, 3) or not all(parts):
        raise ValueError(f"target '{target}' is not of the form machine-system[-abi], such as aarch64-linux-gnu")
    ours = platform.machine().replace("arm64", "aarch64").replace("AMD64", "x86_64")
    if parts[:2] != [ours, sys.platform]:
        return False
    return len(parts) == 2 or (parts[2] == "gnu") == (platform.libc_ver()[0] == "glibc")


def package_folders() -> list[Path]:
    """Return the folders that portcall consists of: two in an editable install (sources, and what was built)."""
    spec = importlib.util.find_spec("portcall")
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(__file__).resolve().parent, *(Path(place).resolve() for place in locations or ())]


def first_existing(places: Sequence[Path], member: str, what: str) -> Path:
    for place in places:
        if (place / member).exists():
            return place
    looked = ", ".join(dict.fromkeys(map(str, places)))
    raise FileNotFoundError(f"{what} ({member}) not found in {looked}; install portcall again")
