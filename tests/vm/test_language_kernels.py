# SPDX-License-Identifier: Apache-2.0
"""Kernels of a language model's cache that ``portcall.compile.relax`` writes, beside NumPy, onnxruntime and TVM's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import portcall

pytestmark = pytest.mark.peers
HEADS, KEYS, WIDTH, PAGE = 4, 2, 24, 16
SCALE = WIDTH**-0.5
TOLERANCE = 1e-5
LENGTHS = (5, 0, 41, 16)  # tokens of each sequence


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gives a cache's kernels by name."""
    from tvm import ir, relax, tirx
    from tvm.relax.frontend.nn.llm import kv_cache

    builder = relax.BlockBuilder()
    size = tirx.Var("size", "int64")
    sizes = (KEYS, HEADS, WIDTH)
    made = [
        builder.add_func(function, name)
        for name, function in {
            "batch_prefill_ragged_kv": kv_cache._attention_prefill_ragged_cpu(*sizes, WIDTH, "float32", {}),
            "batch_prefill_paged_kv_cpu": kv_cache._attention_prefill_cpu(*sizes, "float32", False, {}),
            "batch_decode_paged_kv_cpu": kv_cache._attention_decode_cpu(*sizes, "float32", False, {}),
            "batch_decode_paged_kv_cpu_sliding_window": kv_cache._attention_decode_cpu(*sizes, "float32", True, {}),
        }.items()
    ]
    with builder.function("create", [relax.Var("size_", relax.ShapeType([size]))]):
        parts = [relax.Tuple([ir.StringImm("tirx"), each]) for each in made]
        create = "vm.builtin.paged_attention_kv_cache_create"
        builder.emit_func_output(relax.call_pure_packed(create, *parts, ty_args=relax.AnyType()))
    compiled = portcall.compile.relax(builder.get(), runtime="vm")
    assert compiled.kernels["attention"] == 4
    library = portcall.load_module(compiled.save(tmp_path_factory.mktemp("kernels") / "kernels.so"))
    return lambda name: library.get_function(name, query_imports=True)


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def attention(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Return the results for queries [n, heads, width], and the logarithms of the sums to base 2."""
    q, k, v = (each.astype("float64") for each in (q, k, v))
    k, v = (each.repeat(HEADS // KEYS, axis=1) for each in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * SCALE
    if causal:
        last = len(k) - len(q) + np.arange(len(q))[:, None]
        scores = np.where(np.arange(len(k)) <= last, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - most)
    total = powers.sum(axis=-1, keepdims=True)
    logarithms = (most + np.log(total))[..., 0].T * np.log2(np.e)
    return np.einsum("hqk,khd->qhd", powers / total, v), logarithms


class Pages:
    """Keys and values of some sequences, in pages in any order."""

    def __init__(self) -> None:
        counts = [-(-length // PAGE) for length in LENGTHS]
        self.indptr = np.cumsum([0, *counts]).astype("int32")
        self.table = np.random.default_rng(3).permutation(sum(counts) + 2)[: sum(counts)].astype("int32")
        self.pages = random(sum(counts) + 2, 2, KEYS, PAGE, WIDTH, seed=4)
        self.last = np.array([(length - 1) % PAGE + 1 if length else 0 for length in LENGTHS], "int32")

    def of(self, sequence: int) -> tuple[Any, Any]:
        """Return keys and values [tokens, heads, width] of a sequence."""
        own = self.pages[self.table[self.indptr[sequence] : self.indptr[sequence + 1]]]
        rows = own.transpose(1, 0, 3, 2, 4).reshape(2, -1, KEYS, WIDTH)[:, : LENGTHS[sequence]]
        return rows[0], rows[1]


def close(found: Any, expected: Any) -> bool:
    return bool(np.abs(found.numpy() - expected).max() <= TOLERANCE * max(1, np.abs(expected).max()))


def run(kernel: Any, *arguments: Any, causal: tuple[int, ...] = ()) -> tuple[Any, Any]:
    queries = arguments[0]
    output, lse = portcall.empty(queries.shape, "float32"), portcall.empty(queries.shape[:2], "float32")
    zeros = [portcall.tensor(np.zeros(n, "int32")) for n in (len(LENGTHS), len(queries))]
    kernel(*(portcall.tensor(each) for each in arguments), *zeros, output, lse, *causal, 0, 1.0, 1e4, SCALE)
    return output, lse


def test_attention_of_one_query_over_pages(kernels: Any) -> None:
    pages, q = Pages(), random(len(LENGTHS), HEADS, WIDTH)
    found = run(kernels("batch_decode_paged_kv_cpu"), q, pages.pages, pages.indptr, pages.table, pages.last)
    for i, length in enumerate(LENGTHS):
        if length:
            expected = attention(q[i : i + 1], *pages.of(i), causal=False)
        else:
            expected = np.zeros((1, HEADS, WIDTH)), np.full((1, HEADS), -5e4)
        assert all(close(one[i : i + 1], right) for one, right in zip(found, expected, strict=True))


def test_attention_of_one_query_over_a_window_of_pages(kernels: Any) -> None:
    pages, q = Pages(), random(len(LENGTHS), HEADS, WIDTH)
    lengths = np.stack([pages.last, [0, 0, 9, 3], [0, 0, 4, 1]]).astype("int32")  # of the last page, begin, kept tokens
    kernel = kernels("batch_decode_paged_kv_cpu_sliding_window")
    found = run(kernel, q, pages.pages, pages.indptr, pages.table, lengths)
    for i in (0, 2, 3):
        k, v = (np.concatenate([each[: lengths[2, i]], each[lengths[1, i] :]]) for each in pages.of(i))
        expected = attention(q[i : i + 1], k, v, causal=False)
        assert all(close(one[i : i + 1], right) for one, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_several_queries_over_pages(kernels: Any, causal: int) -> None:
    pages, counts = Pages(), [2, 0, 7, 16]
    indptr = np.cumsum([0, *counts]).astype("int32")
    q = random(int(indptr[-1]), HEADS, WIDTH)
    arguments = (q, indptr, pages.pages, pages.indptr, pages.table, pages.last)
    found = run(kernels("batch_prefill_paged_kv_cpu"), *arguments, causal=(causal,))
    for i, (begin, end) in enumerate(itertools.pairwise(indptr)):
        if end > begin:
            expected = attention(q[begin:end], *pages.of(i), causal=bool(causal))
            assert all(close(one[begin:end], right) for one, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_a_prompt(kernels: Any, causal: int) -> None:
    indptr = np.array([0, 3, 3, 40, 41], "int32")
    q, k, v = random(41, HEADS, WIDTH), random(41, KEYS, WIDTH, seed=1), random(41, KEYS, WIDTH, seed=2)
    output, lse = portcall.empty(q.shape, "float32"), portcall.empty(q.shape[:2], "float32")
    places = [np.zeros(41, "int32"), np.zeros(4, "int32")]
    kernels("batch_prefill_ragged_kv")(
        *map(portcall.tensor, (q, indptr, k, v, indptr, *places)), output, lse, causal, 0, 1.0, 1e4, SCALE
    )
    for begin, end in itertools.pairwise(indptr):
        if end > begin:
            expected = attention(q[begin:end], k[begin:end], v[begin:end], causal=bool(causal))
            assert all(close(one[begin:end], right) for one, right in zip((output, lse), expected, strict=True))


def test_attention_is_that_of_onnxruntime(kernels: Any) -> None:
    q, k, v = random(9, HEADS, WIDTH), random(9, KEYS, WIDTH, seed=1), random(9, KEYS, WIDTH, seed=2)
    names = {"q": HEADS, "k": KEYS, "v": KEYS}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 9, h * WIDTH]) for n, h in names.items()]
    inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, KEYS, 0, WIDTH]) for n in ("past_k", "past_v")]
    inputs += [helper.make_tensor_value_info(n, TensorProto.INT32, shape) for n, shape in (("last", [1]), ("all", []))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "present_k", "present_v")]
    node = helper.make_node(
        "GroupQueryAttention", [each.name for each in inputs], [each.name for each in outputs],
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=KEYS, scale=SCALE,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "a", inputs, outputs), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    nothing = np.zeros((1, KEYS, 0, WIDTH), "float32")
    feeds = {name: each.reshape(1, 9, -1) for name, each in (("q", q), ("k", k), ("v", v))}
    feeds |= {"past_k": nothing, "past_v": nothing, "last": np.array([8], "int32"), "all": np.array(9, "int32")}
    expected = session.run(["y"], feeds)[0].reshape(9, HEADS, WIDTH)
    indptr, places = np.array([0, 9], "int32"), np.zeros(9, "int32")
    output, lse = portcall.empty(q.shape, "float32"), portcall.empty(q.shape[:2], "float32")
    kernels("batch_prefill_ragged_kv")(
        *map(portcall.tensor, (q, indptr, k, v, indptr, places, places[:1])), output, lse, 1, 0, 1.0, 1e4, SCALE
    )
    assert close(output, expected)


def test_language_model_has_the_logits_of_tvms_kernels(compiled: Path, tmp_path: Path) -> None:
    import tvm

    from vm import language_model

    module, _ = language_model.make_module(tvm.target.Target("llvm"))
    made = portcall.compile.relax(module, runtime="vm")
    assert made.kernels["attention"] == 4
    assert made.kernels["rotation"] == 1
    ids = np.random.default_rng(0).integers(0, language_model.CONFIG["vocab"], 80)
    answers = []
    for library in (compiled / "language.so", made.save(tmp_path / "ours.so")):
        model = portcall.vm.language(library, compiled / "weights", tokens=256, chunk=64)
        with model.sequence() as one:
            found = [one.feed(ids[:37]), *(one.feed([i]) for i in ids[37:40]), one.feed(ids[40:57])]
            with one.fork() as two:
                found += [*model.decode([one, two], ids[60:62]), *model.decode([two, one], ids[62:64])]
                one.pop(9)
                found += [one.feed(ids[64:67]), two.feed(ids[67:])]
        answers.append(np.stack(found))
    assert np.abs(answers[0] - answers[1]).max() <= TOLERANCE * np.abs(answers[0]).max()
