# SPDX-License-Identifier: Apache-2.0
"""``portcall run`` and ``portcall bench`` with a compiled library: results, files, checks, how each failure ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from portcall import toolchain

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
ADD_ONE = ("add_one", "--arg", "range:float32[8]", "--out", "float32[8]")


def test_run_shows_outputs_and_the_returned_value(invoke: Invoke, kernels: str) -> None:
    result = invoke("run", kernels, *ADD_ONE)
    assert result.exit_code == 0, result.output
    first, head, row = result.output.splitlines()
    assert first.startswith("add_one(range:float32[8], out:float32[8]) returned None in ")
    assert head.split() == ["output", "type", "min", "mean", "max", "first", "values"]
    assert row.split() == ["out0", "float32[8]", "1", "4.5", "8", "1", "2", "3", "4", "…"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("add", "--arg", "3", "--arg", "4"), 7),
        (("half", "--arg", "float:3"), 1.5),
        (("shout", "--arg", "str:hey"), "hey!"),
        (("twice", "--arg", "3"), [3, 3]),
    ],
)
def test_run_json_keeps_the_type_of_the_result(
    invoke_json: InvokeJson, kernels: str, words: tuple[str, ...], value: object
) -> None:
    answer = invoke_json("run", kernels, *words)
    assert answer["returned"] == value
    assert answer["duration_s"] > 0
    assert answer["arguments"] == [word for word in words[1:] if word != "--arg"]


def test_run_check_compares_with_a_saved_result(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    saved = tmp_path / "ref.npz"
    assert invoke("run", kernels, *ADD_ONE, "--save", saved).exit_code == 0
    with np.load(saved) as content:
        np.testing.assert_array_equal(content["out0"], np.arange(1, 9, dtype="float32"))
    agreed = invoke("run", kernels, *ADD_ONE, "--check", saved)
    assert agreed.exit_code == 0
    assert "ok: out0 agrees within rtol 0.0001, atol 1e-05; largest difference 0" in agreed.output
    differing = invoke("run", kernels, "add_one", "--arg", "ones:float32[8]", "--out", "float32[8]", "--check", saved)
    assert differing.exit_code == 1
    assert "differs: out0[7] is 2.0, expected 8.0" in differing.output


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_run_save_keeps_types_that_numpy_lacks(
    invoke_json: InvokeJson, kernels: str, tmp_path: Path, name: str
) -> None:
    words = ("run", kernels, "fill", "--out", f"{name}[2]")
    invoke_json(*words, "--save", tmp_path / "ref.npz")
    (check,) = invoke_json(*words, "--check", tmp_path / "ref.npz")["checks"]
    assert check["ok"] is True


def test_run_check_takes_one_array_for_the_only_output(invoke_json: InvokeJson, kernels: str, tmp_path: Path) -> None:
    np.save(tmp_path / "ref.npy", np.arange(1, 9, dtype="float32") + 0.25)
    answer = invoke_json("run", kernels, *ADD_ONE, "--check", tmp_path / "ref.npy", code=1)
    assert answer["checks"][0]["ok"] is False
    assert answer["checks"][0]["largest_error"] == 0.25
    answer = invoke_json("run", kernels, *ADD_ONE, "--check", tmp_path / "ref.npy", "--atol", "0.3")
    assert answer["checks"][0]["ok"] is True


def test_run_seed_repeats_random_arguments(invoke_json: InvokeJson, kernels: str) -> None:
    words = ("run", kernels, "add_one", "--arg", "random:float32[8]", "--out", "float32[8]", "--seed")
    first, again, other = (invoke_json(*words, seed)["outputs"] for seed in (1, 1, 2))
    assert first == again != other


# Each line: the words after the library, the exit code, the class of the error, and what it says.
FAILURES: list[tuple[tuple[str, ...], int, str, str]] = [
    (("add_onne",), 1, "FunctionNotFoundError", "has no function 'add_onne'"),
    (("add", "--arg", "3"), 1, "ArgumentError", "expected 2 arguments, got 1"),
    (("add", "--arg", "str:x", "--arg", "1"), 1, "ArgumentError", "argument #0: expected int, got str"),
    (("refuse",), 1, "ValueError", "refuse raised ValueError: refused by the kernel"),
    (("add", "--arg", "nonsense"), 1, "ValueError", "cannot read 'nonsense'"),
    (("add", "--arg", "@missing.npy"), 1, "FileNotFoundError", "'missing.npy': No such file or directory"),
    (("add", "--arg", __file__ + ".npy"), 1, "FileNotFoundError", "test_run.py.npy"),
    (("add", "--arg", f"@{__file__}"), 1, "ValueError", "test_run.py' is neither a .npy nor a .npz file"),
    (("add", "--arg", "99999999999999999999", "--arg", "1"), 1, "ArgumentError", "does not fit in 64 bits"),
    ((*ADD_ONE, "--device", "nonsense"), 1, "ValueError", "nonsense"),
    ((*ADD_ONE, "--device", "cuda:99"), 3, "DeviceError", "device cuda:99 does not exist here"),
]
RUN_FAILURES: list[tuple[tuple[str, ...], int, str, str]] = [
    (("add", "--arg", "1", "--arg", "2", "--save", "x.npz"), 1, "CommandError", "nothing to save"),
    ((*ADD_ONE, "--save", "x.txt"), 1, "CommandError", "the file name must end with .npz"),
    ((*ADD_ONE, "--check", "missing.npz"), 1, "FileNotFoundError", "missing.npz"),
]


@pytest.mark.parametrize(
    ("name", "words", "code", "kind", "said"),
    [
        *(("run", *failure) for failure in (*FAILURES, *RUN_FAILURES)),
        *(("bench", *failure) for failure in FAILURES),
    ],
)
def test_run_failure_has_exit_code_and_next_step(
    invoke_json: InvokeJson, kernels: str, name: str, words: tuple[str, ...], code: int, kind: str, said: str
) -> None:
    answer = invoke_json(name, kernels, *words, code=code)
    assert answer["error"]["kind"] == kind
    assert said in answer["error"]["message"]
    assert answer["exit_code"] == code


def test_run_proposes_a_similar_function_name(invoke: Invoke, kernels: str) -> None:
    assert "did you mean add_one" in invoke("run", kernels, "add_onne").stderr


def test_run_explains_a_library_that_does_not_load(invoke: Invoke, tmp_path: Path) -> None:
    text = "int nobody_has_this(void); int nor_this(void); int f(void) { return nobody_has_this() + nor_this(); }"
    (tmp_path / "k.c").write_text(text)
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so", options=["-Wl,-z,now"])
    result = invoke("run", library, "f")
    assert result.exit_code == 1
    assert "nobody_has_this" in result.stderr
    assert "nor_this" in result.stderr
    assert f"next: portcall inspect {library}" in result.stderr


def test_run_reports_a_missing_library_file(invoke: Invoke, tmp_path: Path) -> None:
    missing = invoke("run", tmp_path / "no.so", "f")
    assert missing.exit_code == 1
    assert f"no such file: '{tmp_path}/no.so'" in missing.stderr


def test_run_check_refuses_the_reference_of_another_call(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "ref.npz", other=np.zeros(3))
    result = invoke("run", kernels, *ADD_ONE, "--check", tmp_path / "ref.npz")
    assert result.exit_code == 1
    assert "has other, the call has the outputs out0" in result.stderr


@pytest.mark.parametrize("name", ["run", "bench"])
def test_run_isolated_crash_exits_with_5(shell: Shell, kernels: str, name: str) -> None:
    done = shell(name, kernels, "crash")
    assert (done.returncode, done.stdout) == (5, "")
    assert f"crash of {kernels} crashed: Segmentation fault (SIGSEGV)" in done.stderr
    assert json.loads(shell(name, kernels, "crash", "--json").stdout)["exit_code"] == 5
    assert "OOM killer" not in done.stderr
    assert "OOM killer" in shell(name, kernels, "killed").stderr


def test_run_json_is_not_mixed_with_a_librarys_output(shell: Shell, kernels: str) -> None:
    done = shell("run", kernels, "print", "--arg", "5", "--json")
    assert json.loads(done.stdout)["function"] == "print"
    assert done.stderr == "printed 5\n"
    assert "printed 5\n" in shell("run", kernels, "print", "--arg", "5").stdout


@pytest.mark.parametrize("code", [0, 3])
def test_run_library_that_exits_is_a_failure(shell: Shell, kernels: str, code: int) -> None:
    done = shell("run", kernels, "leave", "--arg", code)
    assert (done.returncode, done.stdout) == (5, "")
    assert f"leave of {kernels} did not return: it ended the process, with exit code {code}" in done.stderr
    assert f"--args {sys.executable} -m portcall run {kernels} leave --arg {code}\n" in done.stderr


def test_run_timeout_kills_the_call_and_exits_with_4(shell: Shell, kernels: str) -> None:
    done = shell("run", kernels, "hang", "--timeout", "300ms")
    assert (done.returncode, done.stdout) == (4, "")
    assert "did not end within 300 ms; it was killed" in done.stderr


def test_run_isolated_passes_output_and_exit_code_on(shell: Shell, kernels: str) -> None:
    done = shell("run", kernels, "add", "--arg", "3", "--arg", "4", "--timeout", "1m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("add(3, 4) returned 7 in ")
    assert shell("run", kernels, "refuse").returncode == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 130)])
def test_run_isolated_signal_ends_both_processes(kernels: str, tmp_path: Path, number: int, code: int) -> None:
    words = [sys.executable, "-m", "portcall", "run", kernels, "hang"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        child = wait_for_child(process.pid)
        if number == signal.SIGINT:
            os.kill(process.pid, number)
            assert process.stderr is not None
            assert "Ctrl-C again kills it" in process.stderr.readline()
        os.kill(process.pid, number)
        assert process.wait() == code
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()


def test_run_refuses_a_place_to_save_before_it_runs(invoke_json: InvokeJson, kernels: str, tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "y.npz", tmp_path / "y.txt"):
        error = invoke_json("run", kernels, "refuse", "--save", path, code=1)["error"]
        assert str(path) in error["message"]
        assert error["next"]


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (("run", "{kernels}", "add", "--arg", "@no.npy"), "ls ."),
        (("run", "{kernels}", "add", "--arg", "@{folder}/no/no.npy"), "ls {folder}"),
        (("run", "nope.so", "f"), "ls ., or make one: portcall demo"),
        (("compile", "nope.onnx"), "ls ."),
        (("run", "nope.onnx"), "ls ."),
    ],
)
def test_missing_file_proposes_where_to_look(
    invoke_json: InvokeJson, kernels: str, tmp_path: Path, words: tuple[str, ...], next_step: str
) -> None:
    words = tuple(word.format(kernels=kernels, folder=tmp_path) for word in words)
    assert invoke_json(*words, code=1)["error"]["next"] == next_step.format(folder=tmp_path)


@pytest.mark.parametrize("words", [("run",), ("bench", "--number", "1", "--repeat", "100")], ids=["run", "bench"])
def test_isolated_command_that_is_interrupted_exits_with_130(kernels: str, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "portcall", *words, kernels, "rest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)  # for this process alone, as by kill
        printed, said = process.communicate()
        assert process.returncode == 130, said
    assert set(printed.split()) <= {"here"}
    assert "error: interrupted" in said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_run_isolated_call_ends_with_the_command(kernels: str, number: int) -> None:
    # Under nohup the tests, and what they start, ignore SIGHUP.
    words = ["env", "--default-signal=HUP", sys.executable, "-m", "portcall", "run", kernels, "stay"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
        assert process.stdout.read() == b""  # to the end: nobody holds the pipe any more
        assert process.wait() == -number


def wait_for_child(pid: int) -> str:
    """Return the child that a process has forked; the test's own time limit ends a wait in vain."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return children[0]


def test_bench_prints_figures_with_units(invoke: Invoke, kernels: str) -> None:
    result = invoke("bench", kernels, *ADD_ONE, "--number", "5", "--repeat", "7")
    assert result.exit_code == 0, result.output
    first, counts, head, row, verdict, *advice = result.stdout.splitlines()
    assert first == "add_one(range:float32[8], out:float32[8]) on cpu:0"
    assert counts == "7 repeats of 5 calls"
    assert head.split() == ["min", "median", "p95", "mean", "std", "max", "repeats"]
    assert row.split()[-1] == "7"
    assert row.split()[1] in {"ns", "us", "ms"}
    assert verdict.startswith("not trustworthy: ")  # seven values are few
    assert any(line.startswith("  few: ") for line in advice)


def test_bench_json_has_samples_and_conditions(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    place = tmp_path / "times.json"
    result = invoke("bench", kernels, *ADD_ONE, "--number", "5", "--repeat", "7", "--json", place)
    assert (result.exit_code, result.stdout) == (0, "")
    answer = json.loads(place.read_text())
    assert (answer["schema"], answer["number"], answer["repeat"], len(answer["results_s"])) == (1, 5, 7, 7)
    assert answer["min_s"] <= answer["median_s"] <= answer["p95_s"] <= answer["max_s"]
    assert {"portcall", "python", "system", "cpus"} <= set(answer["environment"])


@pytest.mark.parametrize("words", [(), ("--repeat", "2"), ("--min-repeat-ms", "20", "--repeat", "2")], ids="".join)
def test_bench_chooses_counts_without_warnings(invoke_json: InvokeJson, kernels: str, words: tuple[str, ...]) -> None:
    answer = invoke_json("bench", kernels, *ADD_ONE, *words)
    assert answer["repeat"] == len(answer["results_s"]) == (2 if words else 40)
    assert answer["min_s"] * answer["number"] >= (0.02 if "--min-repeat-ms" in words else 0.01)
    assert "short" not in [warning["code"] for warning in answer["warnings"]]


def test_bench_strict_exits_with_6_for_doubtful_figures(invoke_json: InvokeJson, kernels: str) -> None:
    words = ("bench", kernels, "add", "--arg", "1", "--arg", "2", "--number", "1", "--repeat", "2")
    answer = invoke_json(*words, "--strict", code=6)
    assert "short" in [warning["code"] for warning in answer["warnings"]]
    invoke_json(*words)
