# SPDX-License-Identifier: Apache-2.0
"""Types of parameters, read from the words in which TVM writes them."""

from __future__ import annotations

import pytest

from portcall.vm import Parameter


@pytest.mark.parametrize(
    ("text", "kind", "dtype", "shape"),
    [
        ('R.Tensor((n, 4), dtype="float32")', "tensor", "float32", ("n", 4)),
        ('R.Tensor((), dtype="bool")', "tensor", "bool", ()),
        ('R.Tensor((n * 2, m + T.min(n, 3)), dtype="int8")', "tensor", "int8", ("n * 2", "m + T.min(n, 3)")),
        ('R.Tensor((T.int64(2), T.int64(3)), dtype="float32")', "tensor", "float32", (2, 3)),
        ('R.Tensor(dtype="float16", ndim=2)', "tensor", "float16", None),
        ("R.Shape([k, 2])", "shape", "", ("k", 2)),
        ("R.Shape(ndim=2)", "shape", "", None),
        ('R.Prim("int64")', "number", "int64", None),
        ("T.int64", "number", "int64", None),
        ("T.float32", "number", "float32", None),
        ('R.Callable((R.Tensor((4,), dtype="float32"),), R.Object)', "function", "", None),
        ("R.Object", "", "", None),
        ("", "", "", None),
    ],
)
def test_parameter_kind_dtype_and_shape(text: str, kind: str, dtype: str, shape: object) -> None:
    parameter = Parameter("x", text)
    assert (parameter.kind, parameter.dtype, parameter.shape) == (kind, dtype, shape)
    assert parameter.items == ()


@pytest.mark.parametrize("name", ["R.Tuple", "T.Tuple"])
def test_parameter_items_are_named_by_place(name: str) -> None:
    inner = f'{name}(R.Tensor((3,), dtype="float32"), T.int64)'
    parameter = Parameter("t", f'{name}(R.Tensor((2, 3), dtype="float32"), {inner})')
    assert parameter.kind == "tuple"
    assert parameter.items == (Parameter("t.0", 'R.Tensor((2, 3), dtype="float32")'), Parameter("t.1", inner))
    assert [(each.name, each.shape, each.dtype) for each in parameter.items[1].items] == [
        ("t.1.0", (3,), "float32"),
        ("t.1.1", None, "int64"),
    ]
