# SPDX-License-Identifier: Apache-2.0
"""Compile the kernels of the tests: ``kernels.py SOURCE OUT``. Prints ``done``."""

import sys

from portcall.toolchain import create_shared

if __name__ == "__main__":
    source, out = sys.argv[1:]
    create_shared(source, out, target="wasm32")
    print("done")
