# SPDX-License-Identifier: Apache-2.0
"""Language models that apache-tvm compiled, on caches of our own: what TVM's cache answers, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import Shape, get_global_func
from vm.compiled import language_model
from vm.language_model import CONFIG, SIZES, history

pytestmark = pytest.mark.peers


def weights(folder: Path) -> list[portcall.Tensor]:
    found = {}
    for shard in json.loads((folder / "weights" / "tensor-cache.json").read_text())["records"]:
        blob = (folder / "weights" / shard["dataPath"]).read_bytes()
        for r in shard["records"]:
            values = np.frombuffer(blob, r["dtype"], r["nbytes"] // 4, r["byteOffset"]).reshape(r["shape"])
            found[r["name"]] = portcall.tensor(values)
    return [found[name] for name in json.loads((folder / "params.json").read_text())]


def machine(folder: Path) -> portcall.vm.VirtualMachine:
    return portcall.vm.create(portcall.load_module(folder / "language.so"))


def made(vm: portcall.vm.VirtualMachine, **sizes: int) -> Any:
    names = ("sequences", "tokens", "chunk", "page", "windows")
    given = [sizes.get(name, default) for name, default in zip(names, SIZES, strict=True)]
    return vm["create_tir_paged_kv_cache"](*(Shape([size]) for size in given))


@pytest.fixture
def vm(compiled: Path) -> portcall.vm.VirtualMachine:
    return machine(compiled)


@pytest.fixture
def cache(vm: portcall.vm.VirtualMachine) -> Any:
    return made(vm)


def state(name: str, *args: Any) -> Any:
    return get_global_func(f"vm.builtin.kv_state_{name}")(*args)


def of_cache(name: str, *args: Any) -> Any:
    return get_global_func(f"vm.builtin.attention_kv_cache_{name}")(*args)


def answers_are_those_of_tvm(folder: Path) -> bool:
    answers = history(machine(folder), get_global_func, Shape, portcall.tensor, weights(folder))
    return bool(answers == json.loads((folder / "history.json").read_text()))


def test_logits_are_those_of_tvm_bit_for_bit(compiled: Path) -> None:
    assert answers_are_those_of_tvm(compiled)


def test_logits_of_compiled_functions_are_those_of_tvm_bit_for_bit(cache_dir: Path) -> None:
    assert answers_are_those_of_tvm(language_model(cache_dir, "compiled"))


def test_cache_has_the_types_of_tvm(cache: Any) -> None:
    assert cache.type_key == "relax.vm.PagedAttentionKVCache"
    assert of_cache("empty", cache) is True
    state("add_sequence", cache, 3)
    assert of_cache("empty", cache) is False
    assert of_cache("get_num_available_pages", cache) == SIZES[1] // SIZES[3] + 1
    state("begin_forward", cache, Shape([3]), Shape([5]))
    assert of_cache("get_total_sequence_length", cache) == 5
    assert of_cache("get_query_positions", cache).numpy().tolist() == [0, 1, 2, 3, 4]
    state("clear", cache)
    assert of_cache("empty", cache) is True


def attend(cache: Any, layer: int, rng: np.random.Generator, tokens: int) -> tuple[Any, Any]:
    heads, kv, width = CONFIG["heads"], CONFIG["kv_heads"], CONFIG["head_dim"]
    qkv = rng.standard_normal((tokens, heads + 2 * kv, width), "float32")
    out = portcall.tensor(np.zeros((tokens, heads, width), "float32"))
    of_cache("attention_with_fused_qkv", cache, layer, width**-0.5, portcall.tensor(qkv), out)
    return qkv, out.numpy()


@pytest.mark.parametrize("new", [1, 6])
def test_cache_is_read_back_and_attention_to_earlier_tokens_is_that_of_numpy(cache: Any, new: int) -> None:
    heads, kv, width, layers = (CONFIG[name] for name in ("heads", "kv_heads", "head_dim", "layers"))
    rng = np.random.default_rng(0)
    state("add_sequence", cache, 0)
    for count in (20, 7, new):
        state("begin_forward", cache, Shape([0]), Shape([count]))
        for layer in range(layers):
            qkv, out = attend(cache, layer, rng, count)
        state("end_forward", cache)
    total = 27 + new
    keys, values = (portcall.tensor(np.zeros((layers, total, kv, width), "float32")) for _ in range(2))
    of_cache("debug_get_kv", cache, 0, 0, total, keys, values)
    k, v = keys.numpy()[-1], values.numpy()[-1]
    assert np.array_equal(v[-new:], qkv[:, heads + kv :])
    half = width // 2
    angle = np.arange(27, total)[:, None] * 10000.0 ** (-np.arange(half) / half)[None]
    cos, sin = (np.tile(f(angle), 2)[:, None] for f in (np.cos, np.sin))

    def turned(x: Any) -> Any:
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    q = turned(qkv[:, :heads])
    assert np.allclose(k[-new:], turned(qkv[:, heads : heads + kv]), atol=1e-5)
    later = np.arange(total)[None] > np.arange(27, total)[:, None]
    for h in range(heads):
        score = np.where(later, -np.inf, q[:, h] @ k[:, h // (heads // kv)].T * width**-0.5)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        expected = weight / weight.sum(axis=1, keepdims=True) @ v[:, h // (heads // kv)]
        assert np.allclose(out[:, h], expected, atol=1e-4)


def test_positions_that_somebody_holds_stay_as_they_are(cache: Any) -> None:
    state("add_sequence", cache, 0)
    held = []
    for _ in range(3):  # tables of one size, whose memory is taken again
        state("begin_forward", cache, Shape([0]), Shape([2]))
        held.append(of_cache("get_query_positions", cache))
        state("end_forward", cache)
    assert [positions.numpy().tolist() for positions in held] == [[0, 1], [2, 3], [4, 5]]


def test_other_page_sizes_are_refused_when_the_cache_is_made(vm: portcall.vm.VirtualMachine) -> None:
    with pytest.raises(ValueError, match="pages of 32 tokens"):
        made(vm, page=32)


@pytest.mark.parametrize(
    "sizes", [{"tokens": 0}, {"sequences": -1}, {"chunk": 1 << 40}, {"tokens": 1 << 40}, {"windows": 2}]
)
def test_senseless_sizes_are_refused(vm: portcall.vm.VirtualMachine, sizes: dict[str, int]) -> None:
    (name,) = sizes
    with pytest.raises(ValueError, match=str(sizes[name])):
        made(vm, **sizes)


def test_more_tokens_than_pages_is_an_error_and_the_other_sequences_go_on(vm: portcall.vm.VirtualMachine) -> None:
    cache = made(vm, tokens=64)
    for sequence in (0, 1):
        state("add_sequence", cache, sequence)
    rng = np.random.default_rng(0)
    state("begin_forward", cache, Shape([0]), Shape([60]))
    attend(cache, 0, rng, 60)
    with pytest.raises(RuntimeError, match="needs 2 pages"):
        state("begin_forward", cache, Shape([1]), Shape([20]))
    with pytest.raises(ValueError, match="prefill_chunk_size"):
        state("begin_forward", cache, Shape([1]), Shape([65]))
    assert of_cache("get_total_sequence_length", cache) == 60
    state("begin_forward", cache, Shape([0, 1]), Shape([1, 1]))
    attend(cache, 1, rng, 2)


def test_errors_name_the_sequence(cache: Any) -> None:
    state("add_sequence", cache, 0)
    state("begin_forward", cache, Shape([0]), Shape([5]))
    wrong: list[tuple[str, tuple[Any, ...], str]] = [
        ("fork_sequence", (7, 1), "no sequence 7"),
        ("fork_sequence", (0, 0), "sequence 0 already"),
        ("fork_sequence", (0, 1, 6), "forked at 6"),
        ("popn", (0, 6), "6 cannot be taken back"),
        ("popn", (0, -1), "-1 cannot be taken back"),
        ("remove_sequence", (2,), "no sequence 2"),
        ("add_sequence", (0,), "sequence 0 already"),
        ("begin_forward", (Shape([0, 0]), Shape([1, 1])), "twice"),
        ("begin_forward", (Shape([0]), Shape([0])), "at least 1"),
        ("begin_forward", (Shape([0]), Shape([1, 1])), "2 numbers"),
        ("begin_forward", (Shape([]), Shape([])), "0 sequences"),
        ("begin_forward", (Shape([0]), Shape([1]), Shape([-1])), "trees"),
    ]
    for name, args, text in wrong:
        with pytest.raises(ValueError, match=text):
            state(name, cache, *args)
    with pytest.raises(TypeError):
        state("clear", "no cache")
    assert of_cache("get_total_sequence_length", cache) == 5


def test_attention_checks_what_it_is_given(cache: Any) -> None:
    heads, kv, width = CONFIG["heads"], CONFIG["kv_heads"], CONFIG["head_dim"]
    qkv = portcall.tensor(np.zeros((3, heads + 2 * kv, width), "float32"))
    out = portcall.tensor(np.zeros((3, heads, width), "float32"))
    with pytest.raises(RuntimeError, match="kv_state_begin_forward"):
        of_cache("attention_with_fused_qkv", cache, 0, 1.0, qkv, out)
    state("add_sequence", cache, 0)
    state("begin_forward", cache, Shape([0]), Shape([3]))
    double = portcall.tensor(np.zeros(qkv.shape, "float64"))
    for layer, given, to in [(9, qkv, out), (-1, qkv, out), (0, out, out), (0, qkv, qkv), (0, double, out)]:
        with pytest.raises(ValueError, match=r"attention_with_fused_qkv\(\)"):
            of_cache("attention_with_fused_qkv", cache, layer, 1.0, given, to)
    with pytest.raises(TypeError):
        of_cache("attention_with_fused_qkv", cache, 0, 1.0, None, out)
    of_cache("attention_with_fused_qkv", cache, 0, 1, qkv, out)
    state("remove_sequence", cache, 0)
    with pytest.raises(RuntimeError, match="kv_state_begin_forward"):
        of_cache("attention_with_fused_qkv", cache, 0, 1.0, qkv, out)


def given_to_create(compiled: Path) -> list[Any]:
    """What the library gives to the function that makes a cache."""
    seen: list[Any] = []
    name = "vm.builtin.paged_attention_kv_cache_create"
    real = get_global_func(name)

    def watched(*args: Any) -> Any:
        seen.extend(args)
        return real(*args)

    portcall.register_func(name, watched, override=True)
    try:
        made(machine(compiled))
    finally:
        portcall.register_func(name, real, override=True)
    return seen


def test_kinds_that_are_not_supported_are_refused_by_name(compiled: Path) -> None:
    create = get_global_func("vm.builtin.paged_attention_kv_cache_create")
    args = given_to_create(compiled)
    assert create(*args).type_key == "relax.vm.PagedAttentionKVCache"
    assert create(Shape([*args[0]][:5]), *args[1:]).type_key == "relax.vm.PagedAttentionKVCache"  # before 0.27
    kernel = args[16][1]
    for place, value, text in [
        (0, Shape([1, 2, 3]), "5 or 6 sizes"),
        (1, Shape([0, 1, 2]), "several workers"),
        (6, Shape([0, 1]), "MLA"),
        (6, Shape([0, 3]), "window for some layers"),
        (6, Shape([0]), "1 layers only"),
        (5, 8, "values of another width"),
        (7, True, "transfer"),
        (8, 4, "rope_mode is 4"),
        (16, ["flashinfer", kernel, kernel], "flashinfer"),
        (17, [], "no kernel"),
        (23, [], "merges"),
        (3, 3, "cannot share 3"),
    ]:
        with pytest.raises(ValueError, match=text):
            create(*args[:place], value, *args[place + 1 :])
    for place in (12, 13, 24, 25):
        with pytest.raises(TypeError):
            create(*args[:place], None, *args[place + 1 :])
    with pytest.raises(TypeError):
        create(*args[:27])


def test_language_generates_forks_and_refuses_ids_that_there_are_not(compiled: Path) -> None:
    library = compiled / "language.so"
    model = portcall.vm.language(library, compiled / "weights", tokens=256, chunk=64)
    free = model.free_pages
    greedy = list(model.generate([1, 2, 3], 5))
    assert list(model.generate([1, 2, 3], 5, temperature=1e-6)) == greedy
    assert list(model.generate([1, 2, 3], 5, stop=[greedy[2]])) == greedy[:2]
    with model.sequence() as one:
        logits = one.feed([1, 2, 3])
        with one.fork(2) as two:
            assert np.allclose(two.feed([3]), logits, atol=1e-4)
        assert model.decode([one], [int(logits.argmax())]).argmax() == greedy[1]
        assert len(one) == 4
    with pytest.raises(ValueError, match="ended"):
        one.feed([1])
    with pytest.raises(ValueError, match="the id at 1 is 512"):
        list(model.generate([1, 512]))
    assert model.free_pages == free
