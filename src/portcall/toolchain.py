# SPDX-License-Identifier: Apache-2.0
"""C and C++ sources to libraries that portcall loads, and to programs that link its core.

``create_shared`` and ``create_executable`` write a file where they are told to. ``build`` and ``load_inline`` keep what
they made in a cache, and compile only what was never compiled before. The rules of compilers and flags are those of all
four:

* This machine's code is compiled by the system compiler: ``$CXX`` or ``$CC`` where set, else the first of the usual
  names on PATH. Code for another machine, or on a machine without a compiler, is compiled by the ``ziglang`` package.
* C sources are compiled as C11, C++ sources as C++17, both with ``-O3 -fPIC`` and for any processor of the machine's
  kind. The words of ``$CFLAGS`` or ``$CXXFLAGS`` follow, then the caller's options: the last of them wins.
* The headers of portcall are found, and those of tvm-ffi where apache-tvm-ffi is installed.
* A library links nothing of portcall's: it finds the core when it is loaded.
* Every failure of a compiler is a CompileError with the command and all that the compiler wrote.
"""

from portcall._build_cache import build
from portcall._compilers import (
    SUFFIXES,
    WASM,
    Compiler,
    check_output,
    compilers,
    create_executable,
    create_shared,
    find_compiler,
    include_dir,
    library_path,
)
from portcall._inline import load_inline

__all__ = [
    "SUFFIXES",
    "WASM",
    "Compiler",
    "build",
    "check_output",
    "compilers",
    "create_executable",
    "create_shared",
    "find_compiler",
    "include_dir",
    "library_path",
    "load_inline",
]
