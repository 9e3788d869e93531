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


def linear(columns: int, steps: int, weights: tuple[int, int] | None = None) -> Any:
    """Return a module with a product of one row, and of any number of them with a bias and what follows.

    Parameters:
        weights: the bits of an integer, and how many have the same factor, as MLC-LLM writes weights; or None.
    """
    from tvm import te, tirx
    from tvm.relax.frontend import nn

    def unpacked(words: Any, factors: Any) -> Any:
        bits, group = weights or (0, 0)
        shape, word, most = (columns, steps), 32 // bits, (1 << bits) - 1

        def integer(i: Any, k: Any) -> Any:
            shifted = tirx.shift_right(words[i, k // word], (k % word * bits).astype("uint32"))
            return tirx.bitwise_and(shifted, tirx.const(most, "uint32")).astype("float32")

        integers = te.compute(shape, integer)
        return te.compute(
            shape, lambda i, k: (integers[i, k] - tirx.const(most // 2, "float32")) * factors[i, k // group]
        )

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.bias = nn.Parameter((columns,), "float32")
            if weights is None:
                self.w = nn.Parameter((columns, steps), "float32")
            else:
                self.q = nn.Parameter((columns, steps * weights[0] // 32), "uint32")
                self.s = nn.Parameter((columns, -(-steps // weights[1])), "float32")

        def one(self, x: Any) -> Any:
            w = self.w if weights is None else nn.op.tensor_expr_op(unpacked, "dequantize", [self.q, self.s])
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


def test_relax_product_with_groups_of_another_size_warns_and_runs() -> None:
    with pytest.warns(UserWarning, match="groups of 12"):
        made = portcall.compile.relax(linear(11, 96, (4, 12)), runtime="vm")
    assert (made.kernels[RULE], sum(made.kernels.values())) == (2, 3)
    check(made.load(), *grouped(11, 96, 4, 12))


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "riscv64-linux-gnu", "wasm32"])
def test_relax_products_for_another_machine(triple: str, tmp_path: Path) -> None:
    made = portcall.compile.relax(linear(6, 64, (4, 32)), triple, runtime="vm")
    assert made.kernels == {RULE: 2}
    assert not made.runs_here
    path = made.save(tmp_path / "model.so")
    if triple != "wasm32":
        with pytest.raises(portcall.errors.PortcallError):
            portcall.load_module(path)
