# SPDX-License-Identifier: Apache-2.0
"""``python -m portcall.tvm_ffi script.py`` runs a script in which ``import tvm_ffi`` gives ``portcall.tvm_ffi``."""

import os
import runpy
import sys

from portcall.tvm_ffi import install

USAGE = "usage: python -m portcall.tvm_ffi [-m MODULE | SCRIPT] [ARGUMENT ...]"


def main(words: list[str]) -> None:
    if not words or (words[0] in ("-h", "--help", "-m") and len(words) < 2):
        sys.exit(USAGE)
    install()
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # as Python has it for a script
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
