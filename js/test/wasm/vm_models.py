# SPDX-License-Identifier: Apache-2.0
"""Compile what the tests of the VM run: ``vm_models.py FOLDER [webgpu]``. Prints ``done``.

Writes ``rows.wasm``, relu(x @ w) for any number of rows; ``language.wasm``, a language model for the host or for
WebGPU, its ``weights``, and ``expected.json``: ids that follow a prompt, and logits, by this machine.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = "1"  # read when TVM is imported
ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "vm"))

import language_model as language  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnx.numpy_helper  # noqa: E402
import tvm  # noqa: E402

import portcall  # noqa: E402
import portcall.compile  # noqa: E402
import portcall.vm  # noqa: E402

PROMPT = [1, 2, 3, 4, 5]


def rows() -> onnx.ModelProto:
    w = onnx.numpy_helper.from_array(np.arange(-16, 16, dtype="float32").reshape(8, 4), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"], ["z"])]
    float32 = onnx.TensorProto.FLOAT
    x, z = (onnx.helper.make_tensor_value_info(name, float32, ["n", n]) for name, n in (("x", 8), ("z", 4)))
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "rows", [x], [z], [w]), opset_imports=[
        onnx.helper.make_opsetid("", 17)
    ])  # fmt: skip


if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), (sys.argv[2:] or ["wasm32"])[0]
    language.CONFIG |= {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ffn": 64, "vocab": 128}
    portcall.compile.onnx(rows(), target="wasm32", runtime="vm", check=False).save(folder / "rows.wasm")
    module, params = language.make_module(tvm.target.Target("llvm"))
    portcall.compile.relax(module, runtime="vm").save(folder / "language.so")
    if target == "webgpu":
        module, params = language.make_module(tvm.target.Target(portcall.compile._target._WEBGPU))
    portcall.compile.relax(module, target, runtime="vm").save(folder / "language.wasm")
    language.write_shards(folder / "weights", language.make_weights(params), size=20_000)
    model = portcall.vm.language(folder / "language.so", folder / "weights", tokens=64)
    with model.sequence() as sequence:
        logits = sequence.feed(PROMPT)
    found = {"ids": list(model.generate(PROMPT, 12)), "logits": [float(each) for each in logits]}
    (folder / "expected.json").write_text(json.dumps(found))
    print("done")
