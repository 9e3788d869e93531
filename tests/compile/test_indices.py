# SPDX-License-Identifier: Apache-2.0
"""Indices that are inputs of a model, some of them out of range: memory of others is neither read nor written."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import portcall
from compile.reference import onnxruntime_outputs

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
ROWS = 5
TABLE = np.arange(3 * ROWS, dtype="float32").reshape(ROWS, 3)


def model(operator: str, table: Any, indices: tuple[int, ...], updates: Any = None, **attributes: Any) -> Any:
    constants = {"table": table} if updates is None else {"table": table, "updates": updates}
    node = helper.make_node(
        operator, ["table", "indices", *(["updates"] if updates is not None else [])], ["y"], **attributes
    )
    graph = helper.make_graph(
        [node], "indexed", [helper.make_tensor_value_info("indices", TensorProto.INT64, indices)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(table.dtype), None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


MODELS = {
    "gather": model("Gather", TABLE, (4,)),
    "gather-integers": model("Gather", TABLE.astype("int32"), (4,)),
    "elements": model("GatherElements", TABLE, (4, 3), axis=0),
    "nd": model("GatherND", TABLE, (4, 1)),
    "scatter-elements": model("ScatterElements", TABLE, (1, 3), np.ones((1, 3), "float32"), axis=0),
    "scatter-nd": model("ScatterND", TABLE, (2, 1), np.ones((2, 3), "float32")),
}


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("name", MODELS)
def test_index_out_of_range_stays_inside_of_the_table(name: str, runtime: Literal["graph", "vm"]) -> None:
    proto = MODELS[name]
    made: Any = portcall.compile.onnx(proto, runtime=runtime).load()

    def run(indices: Any) -> Any:
        if runtime == "vm":
            return made(indices).numpy()
        made.run(indices=indices)
        return made.get_output(0).numpy()

    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    inside = (np.arange(np.prod(shape)) % (2 * ROWS) - ROWS).reshape(shape).astype("int64")
    if name != "scatter-nd":  # two updates of one row have no order
        np.testing.assert_array_equal(run(inside), onnxruntime_outputs(proto, {"indices": inside})[0])
    for outside in (ROWS, -ROWS - 1, 1 << 40, -(1 << 62)):
        found = run(np.full(shape, outside, "int64"))
        if name == "gather":
            assert np.isnan(found).all()
        elif name.startswith("scatter"):
            row = 0 if outside < 0 else ROWS - 1
            assert (found[row] == 1).all()
            np.testing.assert_array_equal(np.delete(found, row, 0), np.delete(TABLE, row, 0))
        else:
            assert set(found.reshape(-1)) <= set(TABLE[0 if outside < 0 else ROWS - 1])
