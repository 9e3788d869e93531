# SPDX-License-Identifier: Apache-2.0
"""C++ in a Python source: compiled when it was never compiled before, and loaded."""

from __future__ import annotations

import json
import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from portcall._build_cache import find_or_build
from portcall._compilers import NO_TVM_FFI, Sources, tvm_ffi_headers
from portcall._folders import cache_folder, working_folder
from portcall._module import Module, load_module
from portcall.errors import CompileError

# By which a source says that it is for tvm-ffi's headers. One library has either those or portcall's.
_OF_TVM_FFI = re.compile(r"\btvm\s*::\s*ffi\b|\bTVM_FFI_|[<\"]tvm/ffi/")
_PORTCALL = ("#include <portcall/portcall.h>", "PORTCALL_EXPORT_TYPED({name}, {name})")
_TVM_FFI = (
    "\n".join(
        f"#include <tvm/ffi/{name}.h>" for name in ("container/tensor", "dtype", "error", "extra/c_env_api", "function")
    ),
    "TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name});",
)
_DOC = """extern "C" __attribute__((visibility("default")))
int __tvm_ffi__doc_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {{
  static const char text[] = {text};
  TVMFFIByteArray bytes{{text, sizeof(text) - 1}};
  return TVMFFIStringFromByteArray(&bytes, result);
}}"""


def load_inline(
    source: str,
    functions: str | Iterable[str] | Mapping[str, str] = (),
    *,
    name: str = "inline",
    options: Sequence[str] = (),
) -> Module:
    """Compile a C++ source, unless that was done before, and load it::

        lib = toolchain.load_inline("int add(int a, int b) { return a + b; }", ["add"])
        lib.add(1, 2)

    A source that has the names of tvm-ffi (``tvm::ffi::…``, ``TVM_FFI_…``) gets the headers of tvm-ffi, which come with
    apache-tvm-ffi; any other gets ``<portcall/portcall.h>``.

    Parameters:
        functions: names of functions of the source, in the global namespace, to be functions of the module: one,
            several, or a mapping to their documentation. A source may export others itself
            (``PORTCALL_EXPORT_TYPED``), or register global functions and types.
        name: of the source in messages of the compiler, ``NAME.cc``, and how the library's file begins.
        options: further words for the compiler, as for ``create_shared``.

    Raises:
        CompileError: the source is wrong. Lines in ``output`` are those of the Python file in which the source stands
            as it is, or else those of the source.
        ValueError: a name that is not one of a function.
        PermissionError: others can write to the cache; the message says what to do.
    """
    return load_module(build_inline(source, functions, name=name, options=options))


def build_inline(
    source: str,
    functions: str | Iterable[str] | Mapping[str, str] = (),
    *,
    name: str = "inline",
    options: Sequence[str] = (),
) -> Path:
    """Compile a C++ source as ``load_inline`` does, and return where the library lies."""
    text, wanted = _checked(source, functions, name)
    for_tvm_ffi = bool(_OF_TVM_FFI.search(text))
    if for_tvm_ffi and not tvm_ffi_headers():
        raise CompileError(f"compiling '{name}.cc' failed:{NO_TVM_FFI}")
    includes, export = _TVM_FFI if for_tvm_ffi else _PORTCALL
    exports = [f'#line {number} "functions="\n{export.format(name=each)}' for number, each in enumerate(wanted, 1)]
    exports += [_DOC.format(name=each, text=json.dumps(doc)) for each, doc in wanted.items() if doc]
    with working_folder(".source-", cache_folder("libraries")) as folder:
        file, first = folder / f"{name}.cc", folder / "first.h"
        file.write_text("\n".join((text, *exports, "")), encoding="utf-8")
        first.write_text(includes + "\n", encoding="utf-8")
        own = (f"-ffile-prefix-map={folder}/=", "-include", str(first), "-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1")
        plan = Sources(((file, "c++"),), ())
        try:
            return find_or_build(name, plan, [file], options, {"before": includes}, own)
        except CompileError as error:
            raise _told(error, text, folder, file.name) from None


def _checked(source: str, functions: str | Iterable[str] | Mapping[str, str], name: str) -> tuple[str, dict[str, str]]:
    if not isinstance(source, str):
        raise TypeError(f"load_inline takes C++ as text, got {type(source).__name__}; for files there is build()")
    if not re.fullmatch(r"\w[\w.+-]{,99}", name):
        raise ValueError(f"name {name!r} becomes the name of a file: at most 100 letters, digits and . _ + -")
    if isinstance(functions, Mapping):
        wanted = dict(functions)
    elif functions is None:
        raise TypeError("functions= takes names, or a mapping of names to their documentation, got None")
    else:
        wanted = dict.fromkeys([functions] if isinstance(functions, str) else functions, "")
    for each, doc in wanted.items():
        if not isinstance(doc, str):
            raise TypeError(f"the documentation of {each!r} in functions= is {type(doc).__name__}, not text")
        if not isinstance(each, str) or not re.fullmatch(r"[A-Za-z]\w*", each, re.ASCII):
            raise ValueError(f"{each!r} in functions= is not a function's name in the global namespace, such as add")
    return source, wanted


def _told(error: CompileError, source: str, folder: Path, file: str) -> CompileError:
    """Return the error with the places that the user knows: lines of the Python file, if the source stands in it."""
    script, begin = _place(source)

    def line(found: re.Match[str]) -> str:
        return f"{script}:{int(found[1]) + begin}" if script else f"{file}:{found[1]}"

    def known(text: str) -> str:
        text = re.sub(rf"{re.escape(f'{folder}/{file}')}:(\d+)", line, text)
        return text.replace(f"{folder}/", "")

    output = known(error.output)
    message = str(error).replace(error.output, output).replace(f"'{folder}/{file}'", f"'{file}'", 1)
    return CompileError(message, command=error.command, output=output)


def _place(source: str) -> tuple[str, int]:
    """Return the file in which a source stands, and how many lines are before it; empty where it cannot be told."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and str(caller.f_globals.get("__name__")).startswith("portcall."):
        caller = caller.f_back
    if caller is None or "\n" not in source.strip():
        return "", 0
    script = caller.f_code.co_filename
    before, found, after = "".join(linecache.getlines(script, caller.f_globals)).partition(source)
    return (script, before.count("\n")) if found and source not in after else ("", 0)
