# SPDX-License-Identifier: Apache-2.0
"""Compile the kernels of the tests: ``kernels.py SOURCE INCLUDE OUT``. Prints ``done``."""

import subprocess
import sys
from pathlib import Path

# What every engine has; without extended_const Node 20 cannot load it.
COMPILE = (
    "cc -target wasm32-freestanding -mcpu=generic+simd128-extended_const -O2 -fPIC -fvisibility=default -ffreestanding"
)
LINK = "wasm-ld --experimental-pic -shared --import-memory --import-table --export-dynamic --strip-all"


def zig(*words):
    subprocess.run([sys.executable, "-m", "ziglang", *words], check=True)


if __name__ == "__main__":
    source, include, out = sys.argv[1:]
    object_file = Path(out).with_suffix(".o")
    zig(*COMPILE.split(), "-I", include, "-c", source, "-o", str(object_file))
    zig(*LINK.split(), "--unresolved-symbols=import-dynamic", str(object_file), "-o", out)
    print("done")
