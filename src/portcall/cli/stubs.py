# SPDX-License-Identifier: Apache-2.0
"""``portcall stubs``: a Python module with the types of a library's functions and classes."""

from __future__ import annotations

import os
from pathlib import Path

import click

import portcall
from portcall.cli._command import Command
from portcall.cli._errors import CommandError
from portcall.cli._output import print_json, print_line
from portcall.cli._stubs import stubs_of

EXAMPLES = """
portcall stubs kernels.so -o kernels.py
portcall stubs kernels.so                       print it
python -c 'import kernels; kernels.add(1, 2)'
mypy program.py                                 knows what kernels.add takes and gives
"""


@click.command("stubs", cls=Command, examples=EXAMPLES)
@click.argument("library", type=click.Path(exists=True, dir_okay=False))
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="The module to write, NAME.py.")
def command(library: str, output: str | None, json_to: str | None) -> None:
    """The module loads LIBRARY, by its path from where the module lies, and has its functions, and the global functions
    and types that it registers. Type checkers and editors see what they take and give, as the library tells it:
    portcall's headers always do, tvm-ffi's with -DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1. The library is loaded.
    """
    if output is not None and not (output.endswith(".py") and Path(output).stem.isidentifier()):
        raise CommandError(
            f"'{output}' is not a module that can be imported", "", f"-o {Path(library).stem.split('.')[0]}.py"
        )
    module = portcall.load_module(library)
    away = os.path.relpath(os.path.realpath(library), os.path.dirname(os.path.realpath(output or "module.py")))
    text, found = stubs_of(module, os.path.basename(library), f"Path(__file__).resolve().parent / {away!r}")
    if output is not None:
        Path(output).write_text(text, encoding="utf-8")
    if json_to is not None:
        print_json({"library": library, "module": output, "text": text, **found}, json_to)
    elif output is None:
        click.echo(text, nl=False)
    else:
        count = {name: len(names) for name, names in found.items()}
        print_line(f"{output}: {count['functions'] + count['globals']} functions, {count['types']} types")
