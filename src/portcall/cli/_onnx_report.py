# SPDX-License-Identifier: Apache-2.0
"""What ``portcall inspect`` says of an ONNX model before it is compiled; the compiler is large, and not loaded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from portcall.bench import format_size
from portcall.cli._errors import CommandError
from portcall.cli._output import listed, print_facts, print_line
from portcall.extras import needed

LONGEST = 24  # letters of the name of an extent; there are formulas
Shape = list["int | str"]  # of extents that are fixed, the names of others; "?" for those without a name


@dataclass(frozen=True)
class OnnxFile:
    """A model as its file has it.

    Attributes:
        inputs, outputs: type and shape by name; no shape where the rank is not known, or for what is no tensor.
        opsets: the version of each set of operators, by its domain.
        operators: how often each operator is there, those of branches and loops too.
        weights, weights_nbytes: how many constants there are, and their size.
    """

    path: str
    inputs: Mapping[str, tuple[str, Shape | None]]
    outputs: Mapping[str, tuple[str, Shape | None]]
    opsets: Mapping[str, int]
    producer: str
    operators: Mapping[str, int]
    weights: int
    weights_nbytes: int

    @property
    def open_inputs(self) -> list[str]:
        """The inputs whose shapes are not fixed."""
        return [name for name, (_, shape) in self.inputs.items() if shape is None or not all_fixed(shape)]

    def to_dict(self) -> dict[str, object]:
        def values(known: Mapping[str, tuple[str, Shape | None]]) -> list[dict[str, object]]:
            return [{"name": name, "type": dtype, "shape": shape} for name, (dtype, shape) in known.items()]

        return {
            "path": self.path,
            "kind": "onnx",
            "nbytes": os.path.getsize(self.path),
            "inputs": values(self.inputs),
            "outputs": values(self.outputs),
            "opsets": dict(self.opsets),
            "producer": self.producer,
            "operators": dict(self.operators),
            "weights": self.weights,
            "weights_nbytes": self.weights_nbytes,
        }

    def show(self, everything: bool) -> None:
        print_facts(self.facts(everything))
        if self.open_inputs:
            name = self.open_inputs[0]
            extents = "x".join(str(n) if isinstance(n, int) else "?" for n in self.inputs[name][1] or ["?"])
            print_line(f"--shape fixes dimensions that are open, with a number for each ?: --shape '{name}={extents}'")

    def facts(self, everything: bool) -> Iterator[tuple[str, str]]:
        made_by = f", made by {self.producer}" if self.producer else ""
        yield "model", f"{self.path} ({format_size(os.path.getsize(self.path))}), an ONNX model{made_by}"
        for name, values in (("inputs", self.inputs), ("outputs", self.outputs)):
            yield name, listed([f"{key}  {text_of(*value)}" for key, value in values.items()], everything) or "none"
        yield "opset", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        yield "weights", f"{self.weights}, {format_size(self.weights_nbytes)}"
        operators = [f"{name} x {count}" for name, count in self.operators.items()]
        yield f"{sum(self.operators.values())} nodes", listed(operators, everything) or "none"


def all_fixed(shape: Sequence[int | str]) -> bool:
    return all(isinstance(extent, int) for extent in shape)


def text_of(dtype: str, shape: Shape | None) -> str:
    if shape is None:
        return dtype
    return f"{dtype}[{', '.join(text if len(text) <= LONGEST else '?' for text in map(str, shape))}]"


def open_onnx(path: str) -> OnnxFile:
    """Read a model, without what lies in files beside it.

    Raises:
        CommandError: it is not an ONNX model, or is damaged.
        OSError: it cannot be read.
    """
    with needed("compile", "reading ONNX models"):
        import onnx
        from google.protobuf.message import DecodeError
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        model = onnx.ModelProto()
    if not model.HasField("graph"):
        raise CommandError(
            f"'{path}' is not an ONNX model, or it was cut off", "", "copy or export it again", kind="ModelError"
        )
    operators, weights = Counter[str](), list[Any]()
    collect(model.graph, operators, weights)
    constants = {tensor.name for tensor in model.graph.initializer}
    return OnnxFile(
        path=path,
        inputs={value.name: type_of(value.type) for value in model.graph.input if value.name not in constants},
        outputs={value.name: type_of(value.type) for value in model.graph.output},
        opsets={each.domain: each.version for each in model.opset_import},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        operators=dict(operators.most_common()),
        weights=len(weights),
        weights_nbytes=sum(prod(tensor.dims) * bits_of(tensor.data_type) for tensor in weights) // 8,
    )


def collect(graph: Any, operators: Counter[str], weights: list[Any]) -> None:
    """Count the operators of a graph and of its branches and loops, and list their constants."""
    weights += graph.initializer
    for node in graph.node:
        operators[f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
        for attribute in node.attribute:
            if attribute.HasField("t"):
                weights.append(attribute.t)
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                collect(inner, operators, weights)


def type_of(of_value: Any) -> tuple[str, Shape | None]:
    """Return a value's type and, for a tensor of known rank, its shape."""
    kind = of_value.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind or "unknown").removesuffix("_type"), None
    tensor = of_value.tensor_type
    shape = [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim
    ]
    return name_of(tensor.elem_type), shape if tensor.HasField("shape") else None


def name_of(element: int) -> str:
    """Return the name of an element type, as NumPy has it; that of ONNX for text and other things."""
    import onnx

    try:
        return "string" if element == onnx.TensorProto.STRING else str(onnx.helper.tensor_dtype_to_np_dtype(element))
    except KeyError:
        return f"type {element}"


def bits_of(element: int) -> int:
    """Return the size of an element; 0 for text, and for types that are not known."""
    import onnx

    if element == onnx.TensorProto.STRING:
        return 0
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        return 0
    return 4 if str(dtype) in ("int4", "uint4", "float4_e2m1fn") else 8 * int(dtype.itemsize)
