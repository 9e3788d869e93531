# SPDX-License-Identifier: Apache-2.0
"""Compile the kernel of the benchmark: ``kernels.py FOLDER`` makes kernels.wasm and kernels.so there."""

import sys
from pathlib import Path

from portcall.toolchain import create_shared

if __name__ == "__main__":
    folder, source = Path(sys.argv[1]), Path(__file__).with_name("kernels.c")
    create_shared(source, folder / "kernels.wasm", target="wasm32", options=["-O3"])
    create_shared(source, folder / "kernels.so", options=["-O3"])
