# SPDX-License-Identifier: Apache-2.0
"""The libraries that portcall's tests load, compiled once by real compilers and cached by content.

Rules: this module imports the standard library only, the compilers run in processes of their own; a cache
entry is named by a hash of everything that went into it and appears by one rename, complete; of several
processes that want an entry (pytest-xdist) one builds it and the others wait; a build that fails raises, no
test is skipped for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).parent


class KernelBuildError(RuntimeError):
    """A build script failed; the message holds all that it and its compiler printed."""


@dataclass(frozen=True)
class Group:
    """One build script, the sources it reads and the packages it takes code from."""

    script: str
    sources: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


GROUPS = {
    "tvm": Group("tvm_kernels.py", packages=("apache-tvm", "apache-tvm-ffi")),
    "graph": Group("graph_kernels.py", packages=("apache-tvm", "apache-tvm-ffi")),
    "squeezenet": Group("squeezenet_kernels.py", ("onnx_layers.py",), ("apache-tvm", "apache-tvm-ffi", "onnx")),
    "tvm_ffi": Group(
        "tvm_ffi_kernels.py",
        (
            "tvm_ffi_kernels.cc",
            "tvm_ffi_alloc.cc",
            "tvm_ffi_objects.cc",
            "tvm_ffi_containers.cc",
            "tvm_ffi_hooks.cc",
        ),
        ("apache-tvm-ffi",),
    ),
    "devices": Group("device_kernels.py", packages=("apache-tvm", "apache-tvm-ffi")),
    "c": Group("c_kernels.py", ("classic_abi.h", "classic_kernels.c", "classic06_kernels.c", "modern_kernels.c")),
}


def build_all(cache_dir: Path) -> dict[str, Path]:
    """Return every library by name, building those that ``cache_dir`` lacks: ten seconds the first time.

    Raises:
        KernelBuildError: a compiler, or a package that the build needs, is missing or failed.
    """
    with ThreadPoolExecutor(len(GROUPS)) as pool:
        built = list(pool.map(lambda group: build_group(group, cache_dir), GROUPS))
    return {name: path for libraries in built for name, path in libraries.items()}


def build_group(group: str, cache_dir: Path) -> dict[str, Path]:
    """Return the libraries of one of GROUPS by name; ``c`` needs nothing but a C compiler.

    Blocks while another process builds the same ones. Raises what ``build_all`` raises.
    """
    entry = _build_entry(GROUPS[group], cache_dir)
    manifest = json.loads((entry / "manifest.json").read_text())
    return {name: entry / library["path"] for name, library in manifest.items()}


def system_lib_objects(libraries: dict[str, Path]) -> list[Path]:
    """Return the object files of the system library, for a program to link statically."""
    library = libraries["syslib"]
    manifest = json.loads((library.parent / "manifest.json").read_text())
    return [library.parent / path for path in manifest["syslib"]["objects"]]


def _build_entry(group: Group, cache_dir: Path) -> Path:
    entry = cache_dir / f"{Path(group.script).stem}-{_fingerprint(group)}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(entry.with_suffix(".lock")):
        if not entry.exists():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=cache_dir))
            try:
                _run_script(group.script, unfinished)
                unfinished.rename(entry)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return entry


def _run_script(script: str, outdir: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SOURCES / script), str(outdir)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = f"{done.stdout}{done.stderr}"
        raise KernelBuildError(f"{script} exited with {done.returncode}; it needs a C and a C++ compiler:\n{output}")


def _fingerprint(group: Group) -> str:
    """Hash what decides the result: sources, package versions, compilers, the machine they compile for."""
    digest = hashlib.sha256()
    for name in ("_build.py", group.script, *group.sources):
        digest.update(name.encode() + b"\0" + (SOURCES / name).read_bytes())
    for package in group.packages:
        try:
            digest.update(f"{package}={metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError as error:
            raise KernelBuildError(f"{group.script} needs the package {package}: pip install {package}") from error
    for compiler in (os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")):
        digest.update(f"{compiler}\n{_version_of(compiler)}\n{os.uname().machine}\n".encode())
    return digest.hexdigest()[:16]


def _version_of(compiler: str) -> str:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise KernelBuildError(f"the tests need a working compiler {compiler!r}: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
