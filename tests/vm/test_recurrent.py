# SPDX-License-Identifier: Apache-2.0
"""States of recurrent models, beside those of apache-tvm."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import Shape, get_global_func

pytestmark = pytest.mark.peers
LAYERS, SEQUENCES, HISTORY = 2, 4, 3
FIRST = [np.full((2, 3), 0.5, "float32"), np.arange(5, dtype="float16")]


class States:
    """States of one runtime, with kernels of NumPy."""

    def __init__(
        self,
        function: Callable[[str], Any],
        tensor: Callable[[Any], Any],
        shape: Callable[..., Any],
        write: Callable[[Any, Any], None],
        history: int = HISTORY,
    ) -> None:
        def get(storage: Any, slots: Any, steps: Any, out: Any) -> None:
            write(out, storage.numpy()[slots.numpy(), steps.numpy()])

        def put(storage: Any, slots: Any, steps: Any, data: Any) -> None:
            values = storage.numpy().copy()
            values[slots.numpy(), (steps.numpy() + 1) % history] = data.numpy()
            write(storage, values)

        self.function, self.tensor, self.shape = function, tensor, shape
        create = function("vm.builtin.rnn_state_create")
        self.state = create(LAYERS, SEQUENCES, history, [get, get], [put, put], [tensor(first) for first in FIRST])

    def kv(self, name: str, *args: Any) -> Any:
        return self.function(f"vm.builtin.kv_state_{name}")(self.state, *args)

    def rnn(self, name: str, *args: Any) -> Any:
        return self.function(f"vm.builtin.rnn_state_{name}")(self.state, *args)

    def begin(self, ids: list[int], counts: list[int]) -> None:
        self.kv("begin_forward", self.shape(ids), self.shape(counts))

    def forward(self, ids: list[int], counts: list[int], number: int) -> list[Any]:
        """Read all states and write new ones."""
        self.begin(ids, counts)
        seen = []
        for layer in range(LAYERS):
            for part, first in enumerate(FIRST):
                out = self.tensor(np.zeros((len(ids), *first.shape), first.dtype))
                self.rnn("get", layer, part, out)
                seen.append(out.numpy().tolist())
                self.rnn("set", layer, part, self.tensor((out.numpy() + number + layer).astype(first.dtype)))
        self.kv("end_forward")
        return seen

    def all(self, ids: set[int]) -> list[Any]:
        places = [(layer, part) for layer in range(LAYERS) for part in range(len(FIRST))]
        return [self.rnn("debug_get", *place, i).numpy().tolist() for i in sorted(ids) for place in places]


def ours(history: int = HISTORY) -> States:
    get_global_func("portcall.LoadPlugin")("lm")

    def write(to: Any, values: Any) -> None:
        to.numpy()[...] = values

    return States(get_global_func, portcall.tensor, Shape, write, history)


def theirs(history: int = HISTORY) -> States:
    import tvm
    import tvm_ffi

    return States(tvm.get_global_func, tvm.runtime.tensor, tvm_ffi.Shape, lambda to, v: to.copyfrom(v), history)


@pytest.mark.parametrize("history", [1, 3])
def test_random_histories_of_states_are_those_of_tvm(history: int) -> None:
    draw, sides, ids, refused = random.Random(history), (ours(history), theirs(history)), set[int](), 0
    args: tuple[Any, ...]

    def step(side: States, name: str, args: tuple[Any, ...]) -> Any:
        try:
            return side.forward(*args) if name == "forward" else side.kv(name, *args)
        except (ValueError, RuntimeError):
            return "refused"

    for number in range(250):
        a, b, n = draw.randrange(5), draw.randrange(5), draw.randrange(3)
        name, args = draw.choice([
            ("add_sequence", (a,)), ("remove_sequence", (a,)), ("fork_sequence", (a, b, -1)), ("popn", (a, n)),
            *[("forward", ())] * 4,
        ])  # fmt: skip
        if name == "forward":  # of sequences that there are: TVM looks at others only when something changed
            batch = draw.sample(sorted(ids), min(len(ids), 2))
            args = (batch, [n + 1, 1][: len(batch)], number)
            if not batch:
                continue
        answers = [step(side, name, args) for side in sides]
        assert answers[0] == answers[1], (number, name, args)
        refused += answers[0] == "refused"
        if answers[0] != "refused":
            ids |= {a} if name == "add_sequence" else {b} if name == "fork_sequence" else set()
            ids -= {a} if name == "remove_sequence" else set()
        assert sides[0].all(ids) == sides[1].all(ids), (number, name, args)
    assert 20 < refused < 150


def test_a_fork_at_an_earlier_position_has_the_state_of_then_where_tvm_takes_that_of_now() -> None:
    for side, expected in ((ours(), 1.5), (theirs(), 2.5)):
        side.kv("add_sequence", 0)
        for _ in range(2):
            side.forward([0], [1], 1)
        side.kv("fork_sequence", 0, 1, 1)
        assert side.rnn("debug_get", 0, 0, 1).numpy()[0, 0] == expected


def test_a_second_batch_without_an_end_has_its_own_sequences_where_tvm_has_those_of_the_first() -> None:
    for side, expected in ((ours(), 1.5), (theirs(), 0.5)):
        for i in (0, 1):
            side.kv("add_sequence", i)
        side.forward([1], [1], 1)
        side.begin([0], [1])
        side.begin([1], [1])
        out = side.tensor(np.zeros((1, 2, 3), "float32"))
        side.rnn("get", 0, 0, out)
        assert out.numpy()[0, 0, 0] == expected


def test_states_have_the_types_of_tvm() -> None:
    side = ours()
    assert side.state.type_key == "relax.vm.RNNStateImp"
    side.kv("add_sequence", 0)
    side.begin([0], [1])
    again = side.rnn("set", 0, 1, portcall.tensor(np.zeros((1, 5), "float16")))
    assert again.type_key == "relax.vm.RNNStateImp"


def test_states_name_what_is_wrong_and_change_nothing() -> None:
    side = ours()
    for i in (0, 1):
        side.kv("add_sequence", i)
    side.forward([0], [4], 1)
    wrong: list[tuple[str, tuple[Any, ...], str]] = [
        ("add_sequence", (0,), "sequence 0 already"),
        ("remove_sequence", (7,), "no sequence 7"),
        ("fork_sequence", (7, 2), "no sequence 7"),
        ("fork_sequence", (0, 1), "sequence 1 already"),
        ("fork_sequence", (0, 2, 3), "forked at 3"),
        ("fork_sequence", (0, 2, 5), "forked at 5"),
        ("fork_sequence", (0, 2, -2), "forked at -2"),
        ("fork_sequence", (0, 2, -(1 << 63)), "forked at -9223372036854775808"),
        ("popn", (0, 1), "it has 4 tokens, of which the last 0"),
        ("popn", (0, -1), "-1"),
        ("begin_forward", (Shape([0, 0]), Shape([1, 1])), "twice"),
        ("begin_forward", (Shape([0]), Shape([0])), "at least 1"),
        ("begin_forward", (Shape([0, 9]), Shape([1, 1])), "no sequence 9"),
    ]
    before = side.all({0, 1})
    for name, args, text in wrong:
        with pytest.raises(ValueError, match=text):
            side.kv(name, *args)
    assert side.all({0, 1}) == before
    out = portcall.tensor(np.zeros((1, 2, 3), "float32"))
    with pytest.raises(RuntimeError, match=r"rnn_state_get\(\).*kv_state_begin_forward"):
        side.rnn("get", 0, 0, out)
    with pytest.raises(RuntimeError, match="kv_state_begin_forward"):
        side.kv("end_forward")
    side.begin([0, 1], [1, 1])
    for args in ((0, 0, out), (0, 1, out), (LAYERS, 0, out), (0, 2, out), (-1, 0, out)):
        with pytest.raises(ValueError, match="rnn_state_set"):
            side.rnn("set", *args)
    for i in (2, 3):
        side.kv("add_sequence", i)
    with pytest.raises(RuntimeError, match="there are 4 sequences"):
        side.kv("add_sequence", 4)
    with pytest.raises(RuntimeError, match="there are 4 sequences"):
        side.kv("fork_sequence", 0, 4)
    side.kv("clear")
    with pytest.raises(ValueError, match="no sequence 0"):
        side.rnn("debug_get", 0, 0, 0)


def test_rnn_state_create_refuses_what_cannot_be() -> None:
    create, first = ours().function("vm.builtin.rnn_state_create"), portcall.tensor(FIRST[0])
    kernel = get_global_func("testing.nop")
    right: list[Any] = [1, 2, 3, [kernel], [kernel], [first]]
    assert create(*right).type_key == "relax.vm.RNNStateImp"
    packed = portcall.empty((4,), "int4")
    for place, value, text in [
        (0, 0, "argument 0 is 0"),
        (1, 1 << 40, "argument 1 is 1099511627776"),
        (2, 0, "argument 2 is 0"),
        (3, [], "0 functions that read"),
        (4, [kernel, kernel], "2 that write"),
        (5, [], "0 first states"),
        (5, [packed], "whole bytes"),
    ]:
        with pytest.raises(ValueError, match=text):
            create(*right[:place], value, *right[place + 1 :])
    for place, value in [(0, "1"), (3, [None]), (4, kernel), (5, [1])]:
        with pytest.raises(TypeError):
            create(*right[:place], value, *right[place + 1 :])
    cache = get_global_func("vm.builtin.attention_kv_cache_empty")
    with pytest.raises(TypeError, match="paged cache"):
        cache(create(*right))
