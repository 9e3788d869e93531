# SPDX-License-Identifier: Apache-2.0
"""Products with weights that are parameters, as language models have them, say what NumPy says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from compile.reference import largest_error

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
TOLERANCE = 2e-6
RULE = "product with a parameter"
ROWS = (1, 2, 3, 7, 39)


def unpacked(columns: int, steps: int, weights: tuple[int, int]) -> Any:
    """Return a function that computes weights from words and factors."""
    from tvm import te, tirx

    def write(words: Any, factors: Any) -> Any:
        bits, group = weights
        shape, word, most = (columns, steps), 32 // bits, (1 << bits) - 1

        def integer(i: Any, k: Any) -> Any:
            shifted = tirx.shift_right(words[i, k // word], (k % word * bits).astype("uint32"))
            return tirx.bitwise_and(shifted, tirx.const(most, "uint32")).astype("float32")

        integers = te.compute(shape, integer)
        return te.compute(
            shape, lambda i, k: (integers[i, k] - tirx.const(most // 2, "float32")) * factors[i, k // group]
        )

    return write


def linear(columns: int, steps: int, weights: tuple[int, int] | None = None) -> Any:
    """Return a module with a product of one row, and of any number of them with a bias and what follows.

    Parameters:
        weights: the bits of an integer, and how many have the same factor, as MLC-LLM writes weights; or None.
    """
    from tvm.relax.frontend import nn

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.bias = nn.Parameter((columns,), "float32")
            if weights is None:
                self.w = nn.Parameter((columns, steps), "float32")
            else:
                self.q = nn.Parameter((columns, steps * weights[0] // 32), "uint32")
                self.s = nn.Parameter((columns, -(-steps // weights[1])), "float32")

        def one(self, x: Any) -> Any:
            w = (
                self.w
                if weights is None
                else nn.op.tensor_expr_op(unpacked(columns, steps, weights), "dequantize", [self.q, self.s])
            )
            return nn.op.matmul(x, nn.op.permute_dims(w))

        def many(self, x: Any) -> Any:
            return nn.op.silu(self.one(x) + self.bias)

    spec = {"one": {"x": nn.spec.Tensor((1, 1, steps), "float32")}}
    return Model().export_tvm(spec={**spec, "many": {"x": nn.spec.Tensor((1, "n", steps), "float32")}})[0]


def check(machine: Any, parameters: list[Any], weights: Any) -> None:
    random = np.random.default_rng(2)
    bias = random.standard_normal(weights.shape[0]).astype("float32")
    for rows in ROWS:
        x = random.standard_normal((1, rows, weights.shape[1])).astype("float32")
        product = x @ weights.T
        if rows == 1:
            found = machine["one"](x, bias, *parameters).numpy()
            assert largest_error(found, product.astype("float32")) <= TOLERANCE
        expected = (product + bias) / (1 + np.exp(-product - bias))
        found = machine["many"](x, bias, *parameters).numpy()
        assert largest_error(found, expected.astype("float32")) <= TOLERANCE


@pytest.mark.parametrize(
    ("columns", "steps", "target"), [(37, 64, "native"), (6, 83, "native"), (5, 40, "native:x86-64")]
)
def test_relax_product_of_any_rows_with_a_parameter(columns: int, steps: int, target: str) -> None:
    made = portcall.compile.relax(linear(columns, steps), target, runtime="vm")
    assert made.kernels == {RULE: 2}
    weights = np.random.default_rng(1).standard_normal((columns, steps)) / steps**0.5
    check(made.load(), [weights.astype("float32")], weights.astype("float32").astype("float64"))


def grouped(columns: int, steps: int, bits: int, group: int) -> tuple[list[Any], Any]:
    """Return words and factors, and the weights that they stand for."""
    random, word = np.random.default_rng(1), 32 // bits
    words = random.integers(0, 1 << 32, (columns, steps // word), dtype="uint32")
    factors = (random.standard_normal((columns, -(-steps // group))) / (1 << bits)).astype("float32")
    integers = (words[:, :, None] >> (np.arange(word, dtype="uint32") * bits)) & ((1 << bits) - 1)
    weights = integers.reshape(columns, steps).astype("float64") - ((1 << bits) - 1) // 2
    return [words, factors], weights * np.repeat(factors, group, axis=1)[:, :steps]


@pytest.mark.parametrize(("bits", "group", "target"), [(4, 32, "native"), (8, 32, "native"), (4, 16, "native:x86-64")])
def test_relax_product_with_integers_in_groups(bits: int, group: int, target: str) -> None:
    made = portcall.compile.relax(linear(11, 96, (bits, group)), target, runtime="vm")
    assert made.kernels == {RULE: 2}
    check(made.load(), *grouped(11, 96, bits, group))


@pytest.mark.parametrize("group", [12, 40])  # 96 steps are no multiple of 40
def test_relax_product_with_groups_of_another_size_warns_and_runs(group: int) -> None:
    with pytest.warns(UserWarning, match=f"groups of {group}"):
        made = portcall.compile.relax(linear(11, 96, (4, group)), runtime="vm")
    assert (made.kernels[RULE], sum(made.kernels.values())) == (2, 3)
    check(made.load(), *grouped(11, 96, 4, group))


def test_relax_runs_what_cannot_be_lowered_with_tvms_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no such pass")

    monkeypatch.setattr("portcall.compile._vm.lower_functions", fail)
    with pytest.warns(UserWarning, match="no such pass"):
        made = portcall.compile.relax(linear(5, 16), runtime="vm")
    assert made.kernels == {}
    weights = np.random.default_rng(1).standard_normal((5, 16)).astype("float32")
    check(made.load(), [weights], weights.astype("float64"))


@pytest.mark.parametrize("square", [False, True])  # a product of a matrix with itself
def test_relax_keeps_kernels_beside_words_in_other_places(square: bool) -> None:
    """Bytes that become rows, and words on the left of a product and on its right."""
    from tvm import relax, tirx

    builder, rows, size = relax.BlockBuilder(), tirx.Var("n", "int64"), 32
    shapes = {"x": ([rows, size], "uint8"), "q": ([size, 4], "uint32"), "s": ([size, 4], "float32"),
              "w": ([size, size], "float32")}  # fmt: skip
    x, q, s, w = variables = [relax.Var(name, relax.TensorType(*each)) for name, each in shapes.items()]

    def product(a: Any, b: Any) -> Any:
        return builder.emit(relax.op.matmul(a, relax.op.permute_dims(b)))

    with builder.function("main", variables):
        with builder.dataflow():
            words = builder.emit_te(unpacked(size, size, (4, 8)), q, s)
            products = [product(w, words), product(words, w), *[product(w, w)] * square]
            rest = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.astype(x, "float32"))))
            results = builder.emit_output(relax.Tuple([*products, product(rest, w)]))
        builder.emit_func_output(results)
    made = portcall.compile.relax(builder.get(), runtime="vm")
    assert made.kernels if square else made.kernels[RULE]
    (words_, factors), matrix = grouped(size, size, 4, 8)
    random = np.random.default_rng(2)
    right, given = random.standard_normal((size, size)).astype("float32"), random.integers(0, 9, (3, size))
    found = made.load()["main"](given.astype("uint8"), words_, factors, right)
    powers = np.exp(given - given.max(axis=1, keepdims=True))
    expected = [right @ matrix.T, matrix @ right.T, *[right @ right.T] * square,
                powers / powers.sum(axis=1, keepdims=True) @ right.T]  # fmt: skip
    for one, two in zip(found, expected, strict=True):
        assert largest_error(one.numpy(), two.astype("float32")) <= TOLERANCE


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "riscv64-linux-gnu", "wasm32"])
def test_relax_products_for_another_machine(triple: str, tmp_path: Path) -> None:
    made = portcall.compile.relax(linear(6, 64, (4, 32)), triple, runtime="vm")
    assert made.kernels == {RULE: 2}
    assert not made.runs_here
    path = made.save(tmp_path / "model.so")
    if triple != "wasm32":
        with pytest.raises(portcall.errors.PortcallError):
            portcall.load_module(path)
