# SPDX-License-Identifier: Apache-2.0
"""``portcall.farm.rank`` finds the best of a few candidates, beside each other in each session."""

from __future__ import annotations

import concurrent.futures
import random

import pytest

from farm.boards import board, client
from farm.running import running_farm
from portcall import rpc
from portcall.bench._compare import Timer
from portcall.farm import Executor, rank


def test_rank_finds_the_best_on_a_machine_that_slows_down() -> None:
    source, made = random.Random(7), [0]

    def timer(seconds: float) -> Timer:
        luck = 1 + source.gauss(0, 0.003)

        def timed(number: int) -> float:
            made[0] += 1
            return number * seconds * luck * (1 + made[0] / 1000) * (1 + abs(source.gauss(0, 0.02)))

        return timed

    with concurrent.futures.ThreadPoolExecutor(1) as one:
        found = rank([1.05e-3, 1e-3, 1.3e-3], timer, executor=one)
    assert [each.number for each in found] == [1, 0, 2]
    assert found[0].ratio == 1
    assert list(found[0].interval) == [1, 1]
    assert found[1].ratio == pytest.approx(1.05, rel=0.02)
    assert found[1].interval[0] < found[1].ratio < found[1].interval[1]
    assert found[2].interval[0] > 1.2
    assert found[0].seconds == pytest.approx(1e-3, rel=0.3)


def slow(candidate: object) -> Timer:
    return lambda number: number * 1e-3


def test_rank_refuses_what_cannot_be_ranked() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as one:
        with pytest.raises(ValueError, match="candidates"):
            rank([], slow, executor=one)
        with pytest.raises(ValueError, match="too few"):
            rank([1], slow, executor=one, runs=2)
        with pytest.raises(ValueError, match="too short"):
            rank([1], lambda candidate: lambda number: 0.0, executor=one, block_s=0)
        assert rank([1], slow, executor=one)[0].ratio == 1


def test_rank_opens_the_candidates_in_sessions_of_their_own() -> None:
    sessions = set()

    def timer(session: rpc.Session, seconds: float) -> Timer:
        assert session["testing.echo"](seconds) == seconds
        sessions.add(id(session))
        return lambda number: number * seconds

    with (
        running_farm() as farm, board(farm, "a"), board(farm, "b"),
        client(farm) as lab, Executor(lab, "k", boards=2) as executor,
    ):  # fmt: skip
        found = rank([3e-3, 2e-3], timer, executor=executor, runs=4)
    assert [(each.number, each.ratio) for each in found] == [(1, 1), (0, pytest.approx(1.5))]
    assert len(sessions) > 1
