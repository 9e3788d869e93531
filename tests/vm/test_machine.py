# SPDX-License-Identifier: Apache-2.0
"""Machines as people use them: functions, signatures, arguments by name, errors, threads, timing, profiles."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, testing, vm
from vm.compiled import MODES, Compiled, same

pytestmark = pytest.mark.peers
X = np.arange(4, dtype="float32")


def test_machine_functions_have_signatures(models: Compiled) -> None:
    m = models.machine("loop")
    assert m.functions == ("loop", "main")
    assert str(m.signature("main")).startswith('main(x: R.Tensor((4,), dtype="float32"))')
    assert [p.name for p in m["loop"].signature.parameters] == ["i", "x"]
    assert models.machine("shapes").signature().parameters[2] == vm.Parameter("s", "R.Shape([k])")
    assert m.entry == "main"
    assert models.machine("perceptron").entry == "forward"
    with pytest.raises(errors.FunctionNotFoundError) as caught:
        m["mian"]
    assert caught.value.near == ("main",)
    with pytest.raises(errors.FunctionNotFoundError, match=r"portcall\.vm\.create"):
        m._executable["default"]


@pytest.mark.parametrize("mode", MODES)
def test_machine_compiled_functions_have_signatures(mode: str, models: Compiled) -> None:
    assert models.machine("branch", mode).signature().parameters[0].name == "c"


def test_machine_call_takes_positions_and_names(models: Compiled) -> None:
    m = models.machine("branch")
    for result in (m(True, X), m(True, x=X), m(x=X, c=np.array(True)), m["main"](c=True, x=portcall.tensor(X))):
        assert same(result, 2 * X)
    for args, named in (((True,), {}), ((True, X, X), {}), ((True, X), {"c": True}), ((True,), {"y": X})):
        with pytest.raises(TypeError):
            m(*args, **named)


def test_machine_call_converts_numbers_tuples_and_shapes(models: Compiled) -> None:
    z, *_, extents, number = models.machine("shapes")(np.ones((2, 3), "float32"), np.ones(3, "float32"), (5,), 9)
    assert (extents, number) == (portcall.Shape((3, 6, 5)), 9)
    assert same(z, np.full((2, 3), 2, "float32"))
    a, b, c = np.ones((2, 3), "float32"), np.ones(3, "float32"), np.arange(2)
    total, (inner, _), _ = models.machine("tuples")([a, (b, c)])
    assert same(total, a + b)
    assert same(inner, b)


def test_machine_call_copies_unsuitable_arrays(models: Compiled) -> None:
    m = models.machine("loop")
    wide = np.arange(40, dtype="float32")
    for array in (wide[1:5], wide[::10], portcall.tensor(wide)[1:5]):
        assert same(m(array), np.asarray(array) + 7.5)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.zeros(5, "float32"), RuntimeError),
        (np.zeros(4, "float64"), ValueError),
        (np.zeros((4, 1), "float32"), ValueError),
        ("text", TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_machine_call_names_a_wrong_argument(mode: str, value: Any, error: type[Exception], models: Compiled) -> None:
    m = models.machine("loop", mode)
    with pytest.raises(error, match=r"main\(\): x is .*, expected float32\[4\]"):
        m(value)
    assert same(m(X), X + 7.5)


def test_machine_error_names_function_and_instruction(models: Compiled, demo: None) -> None:
    portcall.register_func("demo.scale", lambda *_: 1 / 0, override=True)
    with pytest.raises(ZeroDivisionError) as caught:
        models.machine("user")(X, "object")
    assert any("in main, instruction" in note and "demo.scale" in note for note in caught.value.__notes__)


def test_machine_loop_runs_a_hundred_thousand_turns(models: Compiled) -> None:
    turns = 100_000
    assert same(models.machine("loop")["loop"](5 - turns, X * 0), np.full(4, turns * 1.5, "float32"))


def test_machine_compiled_loop_too_deep_is_an_error(models: Compiled) -> None:
    loop = models.machine("loop", "compiled")["loop"]
    with pytest.raises(RecursionError):
        loop(-10_000_000, X)
    assert same(loop(5, X), X)


def test_machine_closure_is_a_function(models: Compiled) -> None:
    m = models.machine("closures")
    add = m["maker"](X)
    del m
    for _ in range(20):  # memory of arguments that were gone too early would be used again
        assert same(add(X), 2 * X)


def test_machine_results_outlive_it(models: Compiled) -> None:
    y = models.machine("outputs")(np.ones((2, 3), "float32"), np.ones((2, 3), "float32"))
    gc.collect()
    assert same(y[0], np.full((2, 3), 2, "float32"))


@pytest.mark.parametrize("mode", MODES)
def test_machine_leaves_nothing_behind(mode: str, models: Compiled, demo: None) -> None:
    free_pools = portcall.get_global_func("vm.builtin.memory_manager.clear")
    for name in ("encoder", "tuples", "data", "closures", "user"):
        function, calls, _ = models.calls(name)
        with testing.no_leaks():
            for arguments in calls:
                models.machine(name, mode)[function](*arguments)
            gc.collect()
            free_pools()


def test_load_module_names_the_missing_library_of_machines(models: Compiled, tmp_path: Path) -> None:
    missing = str(tmp_path / "libportcall_vm.so")
    code = f"import portcall\ntry:\n    portcall.load_module({str(models.path('branch', 'bytecode'))!r})\n"
    code += "except portcall.errors.ModuleLoadError as error:\n    print(error)\n"
    variables = {**os.environ, "PORTCALL_DEVICES": f"relax.VMExecutable={missing}"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert f"'{missing}'" in done.stdout


def test_machine_is_shared_by_threads(models: Compiled) -> None:
    m = models.machine("encoder")
    _, calls, results = models.calls("encoder")
    wrong: list[bool] = []

    def work() -> None:
        wrong.extend(True for _ in range(10) for c, r in zip(calls, results, strict=True) if not same(m(*c), r))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_machine_clone_has_its_own_inputs(models: Compiled) -> None:
    m = models.machine("loop")
    other = m.clone()
    for machine, x in ((m, X), (other, 2 * X)):
        machine.module["set_input"]("main", x)
    for machine, x in ((m, X), (other, 2 * X)):
        machine.module["invoke_stateful"]("main")
        assert same(machine.module["get_output"]("main"), x + 7.5)


def test_machine_benchmark_and_profile(models: Compiled) -> None:
    m = models.machine("chain")
    assert m.benchmark(X, number=3, repeat=2).min > 0
    profile = m.profile(X)
    assert portcall.vm.Profile.from_json(profile.to_json()) == profile
    assert profile.to_csv().splitlines()[0] == "name,calls,time,share"
    assert len(profile.to_csv().splitlines()) == 1 + len(profile.rows)
    with pytest.raises(ValueError, match="profile"):
        portcall.vm.Profile.from_json("{}")
    with pytest.raises(ValueError, match=r"profile"):
        portcall.vm.Profile.from_json("[" * 100_000)
    calls = {row.name: row.calls for row in profile.rows}
    assert calls["vm.builtin.alloc_tensor"] >= 100
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert str(profile).startswith("main: ")


def test_machine_names_missing_functions(models: Compiled) -> None:
    with pytest.raises(errors.FunctionNotFoundError, match=r"demo\.scale, demo\.same, demo\.dtype"):
        models.machine("user")


def test_machine_create_refuses_libraries_without_executable(c_libraries: dict[str, Any]) -> None:
    lib = portcall.load_module(next(iter(c_libraries.values())))
    with pytest.raises(ValueError, match="no executable"):
        vm.create(lib)
    with pytest.raises(errors.ArgumentError):
        vm.create("m.so")  # type: ignore[arg-type]


def test_inspect_library_reads_an_executable_without_loading(models: Compiled) -> None:
    info = vm.read_embedded(models.path("shapes"))
    assert info is not None
    assert info.listing.strip() == models.listing("shapes").strip()
    assert "vm.builtin.match_shape" in info.calls
    assert {constant.type for constant in info.constants} == {"str", "dtype", "shape", "tensor"} or info.constants
    report = portcall.inspect.inspect_library(models.path("shapes"))
    assert not report.problems
