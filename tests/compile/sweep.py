# SPDX-License-Identifier: Apache-2.0
"""Each operator with every type that ONNX allows for it, and with axes without elements, beside the references.

    python tests/compile/sweep.py [PATTERN]

The node tests of onnx are the templates: a test is taken with another type, or with all extents of one size as 0. A
case is right where onnxruntime or onnx's own reference says the same, refused where the compiler says why (ModelError),
unknown where no reference can run it, and else wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported

import numpy as np
import onnx
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

from compile import node_tests
from compile.random_models import session_of

DTYPES = (
    "float16",
    "float32",
    "float64",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
PER_OPERATOR = 2  # templates


@functools.cache
def templates() -> dict[str, Any]:
    """Return node tests of one node that pass, a few for each operator."""
    passing = set(node_tests.PASSES.read_text().split())
    found: dict[str, list[str]] = {}
    for name, case in node_tests.cases().items():
        nodes = case.model.graph.node
        if name in passing and len(nodes) == 1 and not case.model.functions:
            of = found.setdefault(nodes[0].op_type, [])
            shapes = {tuple(node_tests.array_of(each).shape) for each in case.data_sets[0][0]}
            if len(of) < PER_OPERATOR and all(np.prod(shape) < 5000 for shape in shapes):
                of.append(name)
    return {name: node_tests.cases()[name] for names in found.values() for name in names}


def names() -> list[str]:
    return [f"{name}:{change}" for name, case in templates().items() for change in _changes(case)]


def _changes(case: Any) -> Iterator[str]:
    model = case.model
    node, inputs = model.graph.node[0], _inputs(case)
    opset = {entry.domain: entry.version for entry in model.opset_import}
    try:
        schema = defs.get_schema(node.op_type, opset.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return
    words = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for word, allowed in words.items():
        of = [k for k, name in enumerate(node.input) if name and _formal(schema, k).type_str == word]
        if not of or not any(node.input[k] in inputs for k in of):
            continue
        now = {str(inputs[node.input[k]].dtype) for k in of if node.input[k] in inputs}
        for dtype in DTYPES:
            kind = {"float32": "float", "float64": "double"}.get(dtype, dtype)
            if f"tensor({kind})" in allowed and now != {dtype}:
                yield f"{word}={dtype}"
    free = [name for name in inputs if name not in node_tests.FIXED]
    for extent in sorted({n for name in free for n in inputs[name].shape if n}):
        yield f"{extent}=0"


def _formal(schema: Any, place: int) -> Any:
    return schema.inputs[min(place, len(schema.inputs) - 1)]


def _inputs(case: Any) -> dict[str, Any]:
    given = map(node_tests.array_of, case.data_sets[0][0])
    return dict(zip([value.name for value in case.model.graph.input], given, strict=True))


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the model of a case, its inputs, and which of them are constants."""
    test, _, change = name.partition(":")
    case = templates()[test]
    word, _, value = change.partition("=")
    model, inputs = onnx.ModelProto(), _inputs(case)
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    if word.isdigit():
        for each in [name for name in inputs if name not in node_tests.FIXED]:
            array = inputs[each]
            inputs[each] = array[tuple(slice(0) if n == int(word) else slice(None) for n in array.shape)]
    else:
        opset = {entry.domain: entry.version for entry in model.opset_import}
        schema = defs.get_schema(node.op_type, opset.get(node.domain, 1), node.domain)
        for place, each in enumerate(node.input):
            if each in inputs and _formal(schema, place).type_str == word:
                with np.errstate(all="ignore"):
                    inputs[each] = inputs[each].astype(value)
    for info in model.graph.input:
        array = inputs[info.name]
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        )
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in node.output if each)
    inferred = onnx.shape_inference.infer_shapes(model)
    return inferred, inputs


def expected(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """Return what each reference says that can run the model."""
    found = []
    kinds = [helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in model.graph.output]
    for make in (session_of, ReferenceEvaluator):
        try:
            results = make(model).run(None, inputs)  # the reference computes some in NumPy's types
            found.append([np.asarray(each, kind) for each, kind in zip(results, kinds, strict=True)])
        except Exception:  # the references have classes of their own, or none
            continue
    return found


def judge(name: str) -> str:
    """Return "right", or "refused", "unknown" or "wrong" with the reason."""
    import portcall
    from portcall.errors import ModelError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = made(name)
        said = expected(model, inputs)
        fixed = {key: inputs.pop(key) for key in list(inputs) if key in node_tests.FIXED and len(inputs) > 1}
        try:
            shapes = {key: array.shape for key, array in inputs.items()}
            executor = portcall.compile.onnx(model, shapes=shapes, constants=fixed, check=False, runtime="graph").load()
            executor.run(**inputs)
            got = [executor.get_output(number).numpy() for number in range(len(model.graph.output))]
        except ModelError as error:
            bug = "bug" in str(error) or "InternalError" in str(error) or "malformed" in str(error)
            return f"{'poorly ' if bug and said else ''}refused: {str(error).splitlines()[-1].strip()[:300]}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error).strip()[-300:]}"
    if not said:
        return "unknown: no reference runs it"
    reasons = [_difference(got, other) for other in said]
    return "right" if "" in reasons else f"wrong: {reasons[0]}"


def _difference(got: list[Any], said: list[Any]) -> str:
    for number, (mine, theirs) in enumerate(zip(got, said, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"output {number} is {mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}"
        rtol = 2e-2 if theirs.dtype == np.float16 else 1e-3
        if not np.allclose(
            mine.astype("float64"), theirs.astype("float64"), rtol, max(rtol / 10, 1e-5), equal_nan=True
        ):
            return f"output {number} is {mine.reshape(-1)[:4]}, expected {theirs.reshape(-1)[:4]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    wanted = fnmatch.filter(names(), given.pattern)
    if given.list:
        print(len(wanted))
        return
    node_tests.report(
        {k: "passed" if v == "right" else v for k, v in node_tests.run_all(wanted, given.jobs, judge).items()}
    )


if __name__ == "__main__":
    main()
