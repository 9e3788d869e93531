# SPDX-License-Identifier: Apache-2.0
"""``portcall config``: what Makefiles and CMake need to compile and link with portcall."""

from __future__ import annotations

import shlex

import click

import portcall
from portcall.cli._command import Command
from portcall.cli._output import print_facts, print_json
from portcall.toolchain import include_dir, library_path

EXAMPLES = """
portcall config                                                       all of it
c++ -std=c++17 -shared -fPIC $(portcall config --includes) kernels.cc -o kernels.so
c++ -std=c++17 $(portcall config --includes) host.cc $(portcall config --ldflags) -o host
cmake -B build -Dportcall_DIR="$(portcall config --cmake)"            find_package(portcall)
"""
WHAT = {
    "includes": "The folder of the headers, as -I.",
    "ldflags": "What links a program: -L, -rpath and the libraries. Libraries that portcall loads need nothing.",
    "libs": "The libraries alone, as -l.",
    "cmake": "The folder of the CMake package, for -Dportcall_DIR=.",
    "tvm_compat": "A source that, compiled with TVM's headers, puts its C++ classes on portcall.",
    "version": "The version alone.",
}


@click.command("config", cls=Command, examples=EXAMPLES)
@click.option("--includes", is_flag=True, help=WHAT["includes"])
@click.option("--ldflags", is_flag=True, help=WHAT["ldflags"])
@click.option("--libs", is_flag=True, help=WHAT["libs"])
@click.option("--cmake", is_flag=True, help=WHAT["cmake"])
@click.option("--tvm-compat", is_flag=True, help=WHAT["tvm_compat"])
@click.option("--version", is_flag=True, help=WHAT["version"])
def command(json_to: str | None, **wanted: bool) -> None:
    """What is asked for is one line, words of a shell; without an option, all is shown by name."""
    facts = settings()
    asked = [facts[name] for name, on in wanted.items() if on]
    if json_to is not None:
        print_json(facts, json_to)
    elif asked:
        click.echo(" ".join(asked))
    else:
        print_facts(list(facts.items()))


def settings() -> dict[str, str]:
    library = library_path()
    # What needs portcall_ir says so by using it.
    libs = "-Wl,--push-state,--as-needed -lportcall_ir -Wl,--pop-state -lportcall"
    return {
        "includes": shlex.quote(f"-I{include_dir()}"),
        "ldflags": f"{shlex.join([f'-L{library.parent}', f'-Wl,-rpath,{library.parent}'])} {libs}",
        "libs": libs,
        "cmake": str(library.with_name("cmake") / "portcall"),
        "tvm_compat": str(include_dir().with_name("core") / "tvm_compat" / "tvm_compat.cc"),
        "version": portcall.__version__,
    }
