# SPDX-License-Identifier: Apache-2.0
"""Compile what the tests send: ``kernels.py SOURCE FOLDER``. Prints ``done``.

Writes ``kernels.wasm``, a library, and ``bundle.wasm``: exp(exp(x) + w), w being a parameter.
"""

import sys
from pathlib import Path

import numpy as np

from portcall.graph import GraphBuilder, export_bundle
from portcall.toolchain import create_shared

if __name__ == "__main__":
    source, folder = sys.argv[1], Path(sys.argv[2])
    library = create_shared(source, folder / "kernels.wasm", target="wasm32")
    builder = GraphBuilder()
    x = builder.input("x", (100,))
    w = builder.param("w", np.linspace(-1, 0, 100, dtype="float32"))
    shifted = builder.call("add", [builder.call("exp", [x], (100,)), w], (100,))
    builder.output(builder.call("exp", [shifted], (100,), name="y"))
    export_bundle(folder / "bundle.wasm", builder.graph(), library, builder.params)
    print("done")
