# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, dict-item, var-annotated"
"""GraphModule.benchmark: what it runs, and the options it passes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import (
    array,
    close,
    mlp,
    mlp_params,
)
from portcall import errors, graph

pytestmark = pytest.mark.peers

CPU = portcall.cpu()
Register = Callable[..., portcall.PackedFunc]


def test_benchmark_runs_the_graph(mlp_module: graph.GraphModule) -> None:
    result = mlp_module.benchmark(CPU, repeat=3, number=2, x=array(4, 16))
    assert len(result.results) == 3
    assert result.min > 0
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params()))
    assert len(mlp_module.benchmark(CPU, "get_num_inputs", 2, 1).results) == 2
    x = array(4, 16, seed=7)
    assert len(mlp_module.benchmark(CPU, repeat=2, min_repeat_ms=1, end_to_end=True, x=x).results) == 2
    close(mlp_module.get_output(0), mlp(x, mlp_params()))


@pytest.mark.parametrize("end_to_end", [False, True])
def test_benchmark_end_to_end_includes_inputs(
    logging_module: graph.GraphModule, register: Register, end_to_end: bool
) -> None:
    x, seen = np.zeros(3, "float32"), []

    def look(tensor: portcall.Tensor, _: int) -> None:
        seen.append(float(tensor.numpy()[0]))
        x[:] += 1

    register("portcall_test.log_value", look)
    logging_module.benchmark(CPU, repeat=2, number=1, end_to_end=end_to_end, x=x)
    assert seen == ([0, 1, 2] if end_to_end else [0, 0, 0])  # one call warms up


class Spy:
    """A module whose time_evaluator notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: tuple[Any, ...] = ()
        self.called: tuple[Any, ...] = ()

    def time_evaluator(self, *args: Any, **options: Any) -> Callable[..., None]:
        self.asked = args, options

        def timed(*args: Any) -> None:
            self.called = args

        return timed


def test_benchmark_names_its_device_argument(mlp_module: graph.GraphModule) -> None:
    with pytest.raises(TypeError, match="dev="):
        mlp_module.benchmark(x=array(4, 16))
    assert mlp_module.benchmark(device=CPU, number=1, repeat=1, x=array(4, 16)).mean > 0


def test_benchmark_checks_its_arguments(mlp_module: graph.GraphModule) -> None:
    usual = {"number": 5, "repeat": 5, "min_repeat_ms": 0, "limit_zero_time_iterations": 100,
             "cooldown_interval_ms": 0, "repeats_to_cooldown": 1}  # fmt: skip
    other = dict(zip(usual, range(2, 8), strict=True))
    there = portcall.device("ext_dev", 3)
    x = portcall.tensor(array(4, 16))
    mlp_module.module = spy = Spy()  # type: ignore[assignment]
    for options in (usual, other):
        given = {} if options is usual else options
        mlp_module.benchmark(there, **given)
        assert (spy.asked, spy.called) == ((("run", there), options), ())
        mlp_module.benchmark(there, "get_num_inputs", **given)
        assert (spy.asked, spy.called) == ((("get_num_inputs", there), options), ())
        mlp_module.benchmark(there, end_to_end=True, x=x, **given)
        assert spy.asked == (("run_from_inputs", there), options)
        assert spy.called == (1, 0, 0, x)  # from the host's memory and back to it, wherever the graph runs
    mlp_module.benchmark(there, "run", 2, 3, 4, 5, False, 6, 7)
    assert list(spy.asked[1].values()) == [3, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("end_to_end", [False, True])
def test_benchmark_passes_its_options_on(mlp_module: graph.GraphModule, end_to_end: bool) -> None:
    mlp_module.set_input(x=array(4, 16))
    for name, value in [("repeat", 0), ("number", 0), ("min_repeat_ms", -1), ("limit_zero_time_iterations", -1),
                        ("cooldown_interval_ms", -1), ("repeats_to_cooldown", 0)]:  # fmt: skip
        with pytest.raises(ValueError, match=name):
            mlp_module.benchmark(CPU, end_to_end=end_to_end, **{name: value})
    with pytest.raises(errors.GraphError, match="no input 'y'"):
        mlp_module.benchmark(CPU, end_to_end=end_to_end, y=array(4, 16))
