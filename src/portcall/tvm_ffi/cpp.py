# SPDX-License-Identifier: Apache-2.0
"""Builds C++ sources on tvm-ffi's headers, by ``portcall.toolchain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portcall import _inline, _module, toolchain
from portcall._module import Module
from portcall.tvm_ffi._load import keep, load_module

__all__ = ["build", "build_inline", "load", "load_inline"]

_Words = Sequence[str] | str | None


def load_inline(
    name: str,
    *,
    cpp_sources: _Words = None,
    cuda_sources: _Words = None,
    functions: Mapping[str, str] | Sequence[str] | str | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    keep_module_alive: bool = True,
) -> Module:
    """Compile C++ as text, unless that was done before, and load it: ``portcall.toolchain.load_inline``.

    Raises:
        NotImplementedError: there are sources of CUDA.
    """
    path = build_inline(
        name, cpp_sources=cpp_sources, cuda_sources=cuda_sources, functions=functions, extra_cflags=extra_cflags,
        extra_ldflags=extra_ldflags, extra_include_paths=extra_include_paths,
    )  # fmt: skip
    return keep(_module.load_module(path), keep_module_alive)


def build_inline(
    name: str,
    *,
    cpp_sources: _Words = None,
    cuda_sources: _Words = None,
    functions: Mapping[str, str] | Sequence[str] | str | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
) -> str:
    """Compile C++ as text, unless that was done before, and return the path of the library.

    Raises:
        NotImplementedError: there are sources of CUDA.
    """
    _refuse(cuda_sources)
    source = cpp_sources if isinstance(cpp_sources, str) else "\n".join(cpp_sources or ())
    words = _options(extra_cflags, extra_ldflags, extra_include_paths)
    return str(_inline.build_inline(source, functions or (), name=name, options=words))


def build(
    name: str,
    *,
    sources: _Words = None,
    cpp_files: _Words = None,
    cuda_files: _Words = None,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
) -> str:
    """Compile files, unless that was done before, and return the path of the library: ``portcall.toolchain.build``.

    Raises:
        NotImplementedError: there are sources of CUDA.
    """
    _refuse(cuda_files)
    files = [file for each in (sources, cpp_files) for file in ([each] if isinstance(each, str) else each or ())]
    words = _options(extra_cflags, extra_ldflags, extra_include_paths)
    return str(toolchain.build(files, name=name, options=words))


def load(
    name: str,
    *,
    sources: _Words = None,
    cpp_files: _Words = None,
    cuda_files: _Words = None,
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str] | None = None,
    keep_module_alive: bool = True,
) -> Module:
    """Compile files, unless that was done before, and load the library."""
    path = build(
        name, sources=sources, cpp_files=cpp_files, cuda_files=cuda_files, extra_cflags=extra_cflags,
        extra_ldflags=extra_ldflags, extra_include_paths=extra_include_paths,
    )  # fmt: skip
    return load_module(path, keep_module_alive)


def _refuse(cuda: _Words) -> None:
    if cuda:
        raise NotImplementedError(
            "sources of CUDA are not compiled here: compile them by nvcc -c, and give the object to build()"
        )


def _options(*given: Sequence[str] | None) -> list[str]:
    compiling, linking, folders = (list(words or ()) for words in given)
    return [*compiling, *(f"-I{folder}" for folder in folders), *linking]
