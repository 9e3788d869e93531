# SPDX-License-Identifier: Apache-2.0
"""What compiled models compute, as graphs and, with extents in front that are not known, on the Relax VM."""

from __future__ import annotations

from typing import Any

import onnx

import portcall


def opened(model: Any) -> Any:
    """Return a model whose inputs have extents in front that are not known; equal ones stay equal."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for value in made.graph.input:
        for extent in value.type.tensor_type.shape.dim[:1]:
            if extent.dim_value > 1:
                extent.dim_param = f"extent{extent.dim_value}"
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made


def computed(model: Any, feeds: dict[str, Any], is_open: bool) -> list[Any]:
    """Return the results of a model that is compiled."""
    if is_open:
        machine = portcall.compile.onnx(opened(model), check=False, runtime="vm").load()
        found = machine(*(feeds[each.name] for each in machine.signature().parameters))
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]
    executor = portcall.compile.onnx(model, check=False, runtime="graph").load()
    executor.run(**feeds)
    return [executor.get_output(number).numpy() for number in range(len(model.graph.output))]
