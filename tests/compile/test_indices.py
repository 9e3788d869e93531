# SPDX-License-Identifier: Apache-2.0
"""Indices that are inputs of a model, some of them out of range: memory of others is neither read nor written."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import portcall
from compile.reference import check, make, onnxruntime_outputs, outputs

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


def opened(proto: Any) -> Any:
    """Return a model whose table is an input, too, with a number of rows that is not fixed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    table = changed.graph.initializer.pop(0)
    changed.graph.input.append(helper.make_tensor_value_info("table", table.data_type, ["rows", 3]))
    return changed


@pytest.mark.parametrize("runtime", ["graph", "vm", "open"])
@pytest.mark.parametrize("name", MODELS)
def test_index_out_of_range_stays_inside_of_the_table(name: str, runtime: str) -> None:
    proto = MODELS[name]
    compiled = (opened(proto), "vm") if runtime == "open" else (proto, runtime)
    made: Any = portcall.compile.onnx(compiled[0], runtime=cast(Any, compiled[1])).load()
    table = numpy_helper.to_array(proto.graph.initializer[0])

    def run(indices: Any) -> Any:
        if runtime != "graph":
            return made(indices, *[table] * (runtime == "open")).numpy()
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


def test_a_constant_index_out_of_range_stays_inside_of_the_table() -> None:
    node = helper.make_node("GatherElements", ["table", "indices"], ["y"], axis=0)
    proto = make([node], {"table": [ROWS, 3]}, ["y"], {"indices": np.array([[-1, 1 << 30, -(1 << 30)]])})
    expected = [[TABLE[-1, 0], TABLE[-1, 1], TABLE[0, 2]]]
    made = portcall.compile.onnx(proto, runtime="graph", check=False)
    np.testing.assert_array_equal(outputs(made, {"table": TABLE})[0], expected)
    machine = portcall.compile.onnx(proto, runtime="vm", check=False).load()
    np.testing.assert_array_equal(machine(TABLE).numpy(), expected)


def test_onehot_has_the_type_of_its_values() -> None:
    weights = {"depth": np.array(4), "values": np.array([0.5, 2], "float32")}
    proto = make([helper.make_node("OneHot", ["x", *weights], ["y"])], {"x": [3]}, ["y"], weights)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    check(proto, {"x": np.array([3, -1, 9])})


def test_expand_to_a_shape_that_is_an_input() -> None:
    proto = make([helper.make_node("Expand", ["x", "shape"], ["y"])], {"x": [1, 3], "shape": [2]}, ["y"])
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    machine = portcall.compile.onnx(proto, runtime="vm", check=False).load()
    x = np.arange(3, dtype="float32").reshape(1, 3)
    for shape in ([4, 1], [2, 3], [0, 1]):
        np.testing.assert_array_equal(machine(x, np.array(shape)).numpy(), x * np.ones(shape, "float32"))
