# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/ are compiled as their comments say and run as processes of their own; README too."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import portcall
from graph.models import mlp, mlp_json, mlp_params
from portcall import graph, toolchain

EXAMPLES = Path(__file__).parents[1] / "examples"
KERNELS = Path(__file__).parent / "kernels"
STRICT = ("-Wall", "-Wextra", "-Werror")


def run(program: Path, *arguments: Path) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("c") / "main"
    return toolchain.create_executable(EXAMPLES / "c" / "main.c", output, options=STRICT)


def expected_of_c(error: str) -> str:
    return (
        "add_one([0 1 2 3]) = [1 2 3 4]\n"
        f"add_one with one argument fails: {error}\n"
        "example.multiply(6, 7) = 42\n"
        'example.multiply("six", 7) fails: TypeError, multiply takes two integers\n'
        "multiply is released after 2 calls\n"
    )


def test_c_program_calls_a_library_written_in_c(c_program: Path, tmp_path: Path) -> None:
    library = toolchain.create_shared(EXAMPLES / "c" / "add_one.c", tmp_path / "add_one.so", options=STRICT)
    error = "TypeError: add_one(A: float32[n], B: float32[n]) takes 2 arguments"
    assert run(c_program, library) == expected_of_c(error)


def test_c_program_calls_a_library_of_the_classic_abi(c_program: Path, tmp_path: Path) -> None:
    library = toolchain.create_shared(KERNELS / "classic_kernels.c", tmp_path / "classic.so")
    assert run(c_program, library) == expected_of_c("RuntimeError: add_one: num_args should be 2")


def test_c_program_calls_a_library_of_the_oldest_abi(c_program: Path, tmp_path: Path) -> None:
    library = toolchain.create_shared(KERNELS / "classic06_kernels.c", tmp_path / "classic06.so")
    assert run(c_program, library) == expected_of_c("RuntimeError: add_one: num_args should be 2")


def test_c_program_says_why_a_library_cannot_be_loaded(c_program: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.so"
    done = subprocess.run([c_program, missing], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("TVMModLoadFromFile failed: ")
    assert str(missing) in done.stderr


def test_c_program_needs_no_python(c_program: Path) -> None:
    lines = subprocess.run(
        ["ldd", c_program], capture_output=True, text=True, timeout=600, check=True
    ).stdout.splitlines()
    needed = [Path(line.split()[0]).name for line in lines]
    assert "libportcall.so" in needed
    assert not [name for name in needed if name.startswith("libpython")]


def test_cpp_program_shows_the_registry(tmp_path: Path) -> None:
    program = toolchain.create_executable(EXAMPLES / "cpp" / "main.cc", tmp_path / "main", options=STRICT)
    assert run(program).splitlines() == [
        "add(1, 2) = 3",
        "multiply(6, 7) = 42",
        "call_hello(shout) = hello!",
        "integrate(square, 0, 3) = 9",
        "counter + 40 + 2 = 42",
        "counter is zero: 0",
        "norm of (3, 4) = 5",
        "size of a 3-d shape = 3",
        "TypeError: example.multiply(): argument #0: expected int32, got str",
        "functions of this example: 9",
        "removed example.add: 1, found again: 0",
    ]


def test_readme_code_runs(tmp_path: Path) -> None:
    """The server is started as there, and the Python runs with the demo's kernels, here and in a session.

    The snippet of models has a test in graph/test_docs.py.
    """
    text = (EXAMPLES.parent / "README.md").read_text()
    programs = re.findall("```python\n(.*?)```", text, re.DOTALL)
    kernels = EXAMPLES.parent / "src" / "portcall" / "cli" / "demo_kernels.cc"
    toolchain.create_shared(kernels, tmp_path / "kernels.so")
    (serve,) = re.findall("^    portcall (serve --host .*)", text, re.MULTILINE)
    command = [
        sys.executable,
        "-m",
        "portcall",
        *shlex.split(serve, comments=True),
        "--port",
        "0",
        "--json",
        "--silent",
    ]
    settings = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=settings, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        assert ready["host"] == "0.0.0.0"
        shutil.copy(tmp_path / "portcall" / "server-token", tmp_path / "token")  # as the line to paste brings it here
        python = "\n".join(programs[:2]).replace('"board.local", 9090', f'"127.0.0.1", {ready["port"]}')
        done = subprocess.run(
            [sys.executable, "-c", python], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        server.terminate()
        assert server.wait(30) == 0
    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout


def test_cpp_page_kernel_checks_its_arguments(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "cpp.md").read_text()
    (source,) = re.findall("```cpp\n// kernels.cc\n(.*?)```", page, re.DOTALL)
    (tmp_path / "kernels.cc").write_text(source.replace('"myadd"', '"page.myadd"'))
    add_one = portcall.load_module(toolchain.create_shared(tmp_path / "kernels.cc", tmp_path / "kernels.so"))["add_one"]
    try:
        x, y = portcall.tensor(np.arange(8, dtype="float32")), portcall.tensor(np.zeros(8, "float32"))
        add_one(x, y)
        assert y.numpy().tolist() == list(range(1, 9))
        for other in (y[:4], y.view((2, 4))):
            y[:] = 0
            with pytest.raises(ValueError, match="different shapes"):
                add_one(x, other)
            assert not y.numpy().any()
    finally:
        portcall.remove_global_func("page.myadd")


MLP_INPUT = [str(k % 5 - 2) for k in range(4 * 16)]


@pytest.fixture(scope="module")
def bundle_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("bundle") / "run_bundle"
    return toolchain.create_executable(EXAMPLES / "cpp" / "run_bundle.cc", output, options=STRICT)


def test_cpp_program_runs_a_bundle(bundle_program: Path, libraries: dict[str, Path], tmp_path: Path) -> None:
    bundle = graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], mlp_params())
    shape, _, numbers = run(bundle_program, bundle, Path("x"), *map(Path, MLP_INPUT)).partition(":")
    assert shape == "float32(4, 10)"
    expected = mlp(np.array(MLP_INPUT, "float32").reshape(4, 16), mlp_params())
    np.testing.assert_allclose(np.array(numbers.split(), "float32"), expected.ravel(), rtol=1e-3, atol=1e-4)


def test_cpp_program_says_what_is_wrong_with_a_bundle(
    bundle_program: Path, libraries: dict[str, Path], tmp_path: Path
) -> None:
    bundle = graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], mlp_params())

    def fails(*words: str | Path) -> str:
        done = subprocess.run([bundle_program, *words], capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert fails(bundle, "x", "1") == (
        "ValueError: the input 'x' has the shape (4, 16), so it takes 64 numbers, not 1\n"
    )
    assert fails(bundle, "z", "1") == "GraphError: the graph has no input 'z'; there are 'x', 'w1', 'b1', … (5)\n"
    (tmp_path / "cut.so").write_bytes(bundle.read_bytes()[:1000])
    assert fails(tmp_path / "cut.so", "x", "1").startswith(f"ModuleLoadError: cannot load '{tmp_path / 'cut.so'}': ")


def test_example_mini_ir_python() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "mini_ir.py"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition(":")[2].strip() for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert lines[1:] == [
        "True although one says x and the other y",
        "True",
        '<root>.body.rhs: mini.Binary(op="*", span="") != mini.Const(value=12)',
        "True",
        "True",
        "['x']",
        "Binary(op='+', lhs=Var(name='x'), rhs=Const(value=12), span='')",
        "['mini.fold_constants', 'mini.simplify', 'mini.pipeline']",
        "",
    ]
    assert done.stdout.splitlines()[-3:] == [
        " " * 12 + "at <root>.body, of type mini.Binary",
        " " * 12 + "in pass 'mini.fold_constants', which is required there, number 1 of 1 in 'mini.pipeline'",
        " " * 12 + "in pass 'mini.pipeline'",
    ]


def test_example_mini_ir_cpp(tmp_path: Path) -> None:
    program = toolchain.create_executable(EXAMPLES / "cpp" / "mini_ir.cc", tmp_path / "mini_ir", options=STRICT)
    assert run(program).splitlines() == [
        "equal:     1",
        "same hash: 1",
        "JSON:      1",
        'mismatch:  <root>.body.lhs.rhs: mini.Binary(op="+", span="") != mini.Const(value=1)',
        "nodes:     5",
        "KeyError: no operation is called '-'",
        "  Note: at <root>.body, of type mini.Binary",
    ]
