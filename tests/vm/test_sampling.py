# SPDX-License-Identifier: Apache-2.0
"""What hosts of language models call between two tokens, beside TVM's functions of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import get_global_func

pytestmark = pytest.mark.peers
RANDOM = np.random.default_rng(5)
LOGITS = (RANDOM.standard_normal((40, 1000)) * 4).astype("float32")
PROBS = np.exp(LOGITS.astype("float64"))
PROBS = (PROBS / PROBS.sum(axis=1, keepdims=True)).astype("float32")
IDS = RANDOM.permutation(1000)[:60].astype("int32")
TIMES = RANDOM.integers(1, 9, 60).astype("int32")


def ours(name: str, *args: Any) -> Any:
    given = [portcall.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
    result = get_global_func(f"vm.builtin.{name}")(*given)
    if result is None:
        return given[0].numpy()
    return result.numpy() if isinstance(result, portcall.Tensor) else result


def theirs(name: str, *args: Any) -> Any:
    import tvm

    given = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
    result = tvm.get_global_func(f"vm.builtin.{name}")(*given)
    if result is None:
        return given[0].numpy()
    return result if isinstance(result, int) else result.numpy()


@pytest.fixture(scope="module", autouse=True)
def _functions() -> None:
    get_global_func("portcall.LoadPlugin")("lm")


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.5])
def test_sample_top_p_from_logits_draws_what_tvm_draws(temperature: float, top_p: float) -> None:
    for row, uniform in zip(LOGITS, np.linspace(0, 0.999, len(LOGITS)), strict=True):
        args = ("sample_top_p_from_logits", row.reshape(1, 1, -1), temperature, top_p, float(uniform))
        assert ours(*args) == theirs(*args)


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 1.0])
def test_sample_top_p_from_prob_draws_what_tvm_draws_but_for_its_shortcut(top_p: float) -> None:
    compared = 0
    for row, uniform in zip(PROBS, np.linspace(0, 0.999, len(PROBS)), strict=True):
        most = np.sort(row)[::-1].astype("float64")
        kept = int(np.searchsorted(most.cumsum(), top_p)) + 1
        if top_p and most[0] / most[:kept].sum() <= uniform < most[0] / top_p:
            continue
        args = ("sample_top_p_from_prob", row, top_p, float(uniform))
        assert ours(*args) == theirs(*args)
        compared += 1
    assert compared > 20


def test_sample_top_p_from_prob_draws_in_proportion_where_tvm_takes_the_first() -> None:
    args = ("sample_top_p_from_prob", np.array([0.2, 0.5, 0.3], "float32"), 0.6, 0.7)
    assert ours(*args) == 2  # 0.5 and 0.3 are kept, of which the first has 0.625
    assert theirs(*args) == 1


def test_sample_draws_each_id_as_often_as_it_is_likely() -> None:
    probs = np.array([0.1, 0.4, 0.2, 0.3], "float32")
    uniforms = (np.arange(1000) + 0.5) / 1000
    for name, args in (("prob", (probs,)), ("logits", (np.log(probs), 1.0))):
        drawn = [ours(f"sample_top_p_from_{name}", *args, 0.85, float(u)) for u in uniforms]
        assert np.allclose(np.bincount(drawn, minlength=4) / 1000, [0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9], atol=2e-3)


def test_sample_takes_the_last_of_those_that_can_be_drawn_at_one() -> None:
    probs = np.array([0, 0.5, 0.5, 0], "float32")
    assert ours("sample_top_p_from_prob", probs, 1, 1) == 2
    with np.errstate(divide="ignore"):
        assert ours("sample_top_p_from_logits", np.log(probs), 1, 1, 1) == 2
    assert ours("multinomial_from_uniform", probs[None], np.ones((1, 1), "float32")).tolist() == [[2]]


def test_multinomial_from_uniform_draws_what_tvm_draws() -> None:
    uniform = np.linspace(0, 0.99, len(PROBS), dtype="float32")[:, None]
    drawn = ours("multinomial_from_uniform", PROBS, uniform)
    assert drawn.dtype == np.int64
    assert np.array_equal(drawn, theirs("multinomial_from_uniform", PROBS, uniform))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("apply_repetition_penalty", (IDS, 1.3)),
        ("apply_repetition_penalty", (IDS[:0], 2)),
        ("apply_presence_and_frequency_penalty", (IDS, TIMES, 0.4, 0.25)),
        ("apply_presence_and_frequency_penalty", (IDS, TIMES, -1, 0)),
    ],
)
def test_penalties_give_the_logits_of_tvm_bit_for_bit(name: str, args: tuple[Any, ...]) -> None:
    changed = ours(name, LOGITS[:1].copy(), *args)
    assert np.array_equal(changed, theirs(name, LOGITS[:1].copy(), *args))
    assert np.array_equal(changed, LOGITS[:1]) == (len(args[0]) == 0)


@pytest.mark.parametrize("temperature", [0.5, 1, 3.0])
def test_apply_softmax_with_temperature_gives_what_tvm_gives(temperature: float) -> None:
    for row in LOGITS[:5]:
        args = ("apply_softmax_with_temperature", row[None], temperature)
        assert np.allclose(ours(*args), theirs(*args), rtol=1e-5, atol=1e-8)


def test_apply_softmax_with_temperature_takes_large_negative_logits_of_which_tvm_makes_nan() -> None:
    args = ("apply_softmax_with_temperature", np.array([-2000, -2001, -np.inf], "float32"), 1.0)
    assert np.allclose(ours(*args), [1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0])
    assert np.isnan(theirs(*args)).all()


NAN, INF = float("nan"), float("inf")
ROW, TWO = np.array([0.5, 0.25, 0.25], "float32"), np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("sample_top_p_from_logits", (ROW, NAN, 1, 0), "temperature is nan"),
        ("sample_top_p_from_logits", (ROW, INF, 1, 0), "temperature is inf"),
        ("sample_top_p_from_logits", (ROW, -1, 1, 0), "temperature is -1"),
        ("sample_top_p_from_logits", (ROW, 1, 1.5, 0), "top_p is 1.5"),
        ("sample_top_p_from_logits", (ROW, 1, 1, NAN), "uniform number is nan"),
        ("sample_top_p_from_logits", (TWO, 1, 1, 0), r"one row of float32, not float32\[2, 3\]"),
        ("sample_top_p_from_logits", (np.array([0, NAN], "float32"), 1, 1, 0), "logit 1 is nan"),
        ("sample_top_p_from_logits", (np.array([0, INF], "float32"), 0, 1, 0), "logit 1 is inf"),
        ("sample_top_p_from_logits", (np.full(2, -INF, "float32"), 1, 1, 0), "none of 2 logits"),
        ("sample_top_p_from_logits", (ROW[:0], 1, 1, 0), "none of 0 logits"),
        ("sample_top_p_from_prob", (ROW.astype("float64"), 1, 0), "not float64"),
        ("sample_top_p_from_prob", (np.array([1, -0.5], "float32"), 1, 0), "probability 1 is -0.5"),
        ("sample_top_p_from_prob", (ROW * 0, 1, 0), "none of 3 ids"),
        ("sample_top_p_from_prob", (ROW, 1, 2), "uniform number is 2"),
        ("multinomial_from_uniform", (TWO, np.array([0, NAN], "float32")), "from row 1"),
        ("multinomial_from_uniform", (TWO * 0, np.zeros(2, "float32")), "from row 0"),
        ("apply_repetition_penalty", (ROW, np.array([0, 3], "int32"), 2), "id 3 at 1"),
        ("apply_repetition_penalty", (ROW, np.array([-1], "int32"), 2), "id -1 at 0"),
        ("apply_repetition_penalty", (ROW, IDS[:0], 0), "penalty is 0"),
        ("apply_presence_and_frequency_penalty", (ROW, IDS[:0], TIMES, 0, 0), "0 ids, but 60"),
        ("apply_presence_and_frequency_penalty", (ROW, IDS[:0], TIMES[:0], INF, 0), "presence penalty is inf"),
        ("apply_softmax_with_temperature", (ROW, 0), "temperature is 0"),
        ("apply_softmax_with_temperature", (TWO, 1), "one row"),
        ("apply_softmax_with_temperature", (np.array([0, NAN], "float32"), 1), "logit 1 is nan"),
    ],
)
def test_sampling_refuses_what_cannot_be(name: str, args: tuple[Any, ...], text: str) -> None:
    given: list[Any] = [portcall.tensor(a.copy()) if isinstance(a, np.ndarray) else a for a in args]
    call: Callable[..., Any] = get_global_func(f"vm.builtin.{name}")
    with pytest.raises(ValueError, match=text):
        call(*given)
    assert np.array_equal(given[0].numpy(), args[0], equal_nan=True)


def test_multinomial_from_uniform_names_the_argument_of_another_kind() -> None:
    call = get_global_func("vm.builtin.multinomial_from_uniform")
    for probs, uniform in [(ROW, ROW[:1]), (TWO, ROW), (TWO.astype("float16"), ROW[:2])]:
        with pytest.raises(TypeError):
            call(portcall.tensor(probs), portcall.tensor(uniform))
