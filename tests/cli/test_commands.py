# SPDX-License-Identifier: Apache-2.0
"""``inspect``, ``doctor`` and ``demo``: what they show, as text and as JSON."""

from __future__ import annotations

import ctypes
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from portcall import _compilers, extras, graph, opencl, toolchain
from portcall.bench import Finding
from portcall.cli import _progress
from portcall.cli._output import counted
from portcall.extras import EXTRAS

Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
OnTerminal = Callable[..., tuple[int, bytes]]


def test_inspect_shows_functions_and_dependencies(invoke: Invoke, kernels: str) -> None:
    result = invoke("inspect", kernels, "--strict")
    assert result.exit_code == 0, result.output
    for text in (kernels, "C++ on portcall's headers", "add_one", "libc.so.6", "no problem: all"):
        assert text in result.output


def test_inspect_shows_problems_and_strict_exits_with_6(
    invoke: Invoke, invoke_json: InvokeJson, tmp_path: Path
) -> None:
    (tmp_path / "k.c").write_text("int f(void) { return 0; }")
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so", target="riscv64-linux-gnu")
    result = invoke("inspect", library, "--strict")
    assert result.exit_code == 6
    assert "problem: " in result.output
    answer = invoke_json("inspect", library)
    assert (answer["machine"], answer["abi"], answer["functions"]) == ("riscv64", "plain", ["f"])


def test_inspect_shows_embedded_modules_as_a_tree(invoke: Invoke, tmp_path: Path) -> None:
    def word(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    body = struct.pack("<6Q", 3, 0, 1, 1, 1, 1) + word("_lib") + word("cuda") + word("kernel")
    blob = ",".join(map(str, struct.pack("<Q", len(body)) + body))
    (tmp_path / "k.c").write_text(f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    result = invoke("inspect", toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so"))
    assert "this library\n└── cuda (6 B)" in result.output


@pytest.mark.parametrize("words", [(), ("--all",)], ids=["short", "all"])
def test_inspect_lists_many_functions_only_when_asked(invoke: Invoke, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "k.c").write_text("".join(f"int f{number}(void) {{ return 0; }}\n" for number in range(100, 200)))
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so")
    result = invoke("inspect", library, *words)
    assert ("f199" in result.output) == bool(words)
    assert ("and 60 more" in result.output) != bool(words)


@pytest.mark.usefixtures("opencl_plugin")
def test_doctor_shows_versions_compilers_devices_and_threads(invoke: Invoke, invoke_json: InvokeJson) -> None:
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    for text in ("python", "portcall", "numpy", "c++ compiler", "cpu:0", "cpus"):
        assert text in result.output
    answer = invoke_json("doctor")
    devices = {device["name"]: device for device in answer["devices"]}
    assert devices["cpu:0"]["units"] >= 1
    assert devices["opencl:0"]["driver"] == opencl().driver_version
    assert devices["opencl:0"]["memory"] > 1 << 20
    assert ("cuda" in answer["missing_devices"]) != ("cuda:0" in devices)
    assert {compiler["language"] for compiler in answer["compilers"]} == {"c", "c++"}
    assert answer["packages"]["numpy"]
    assert {extra["name"]: extra["purpose"] for extra in answer["extras"]} == {
        name: extra.purpose for name, extra in EXTRAS.items()
    }


def test_numbered_names_of_kernels_are_counted() -> None:
    names = ["add", "add1", "add10", "fused_matmul_3", "mean", "x" * 100]
    assert counted(names) == ["add x 3", "fused_matmul", "mean", "x" * 59 + "…"]


@pytest.mark.usefixtures("opencl_plugin")
@pytest.mark.parametrize("there", [True, False])
def test_doctor_lists_the_extras(
    invoke: Invoke, invoke_json: InvokeJson, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(extras, "is_there", lambda module: there)
    assert {extra["installed"] for extra in invoke_json("doctor")["extras"]} == {there}
    lines = invoke("doctor").output.splitlines()
    for name, extra in EXTRAS.items():
        line = next(line for line in lines if line.startswith(f"extra {name} "))
        assert extra.purpose in line
        assert (extra.command in line) == (not there)


@pytest.mark.parametrize(
    ("absent", "extra", "words"),
    [
        ("aiohttp", "farm", ("farm", "--port", "0")),
        ("redis", "farm", ("farm", "--port", "0", "--store", "redis://127.0.0.1:1/0")),
        ("onnx", "compile", ("inspect", "model.onnx")),
        ("tvm", "compile", ("run", "model.onnx")),
    ],
)
def test_command_that_lacks_a_package_names_its_extra(
    shell: Shell, tmp_path: Path, absent: str, extra: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules['{absent}'] = None\n")
    done = shell(*words, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert EXTRAS[extra].command in next(line for line in lines if line.startswith("error: "))
    assert EXTRAS[extra].command in next(line for line in lines if line.startswith("  next: "))


def test_command_knows_how_its_programs_end_where_who_started_it_ignores_that(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f( {")
    words = ["env", "--ignore-signal=CHLD", sys.executable, "-m", "portcall", "compile", "bad.c", "--output", "bad.so"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "bad.c:1" in done.stderr) == (1, True)


@pytest.mark.usefixtures("opencl_plugin")
def test_doctor_reports_a_variable_that_names_a_missing_compiler(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "suggestion: $CXX names the compiler 'no-such-compiler'" in invoke("doctor").output


def test_demo_compiles_checks_and_times_kernels(shell: Shell, tmp_path: Path) -> None:
    done = shell("demo")
    assert done.returncode == 0, done.stderr
    for text in (
        "compiled portcall-demo/kernels.cc",
        "NumPy, 1 thread",
        "matmul",
        "equal to NumPy",
        "raises",
        "Now you:",
    ):
        assert text in done.stdout
    # What it says to type works as it stands.
    for line in done.stdout.partition("Now you:")[2].split("\n"):
        words = shlex.split(line)
        if words[:1] == ["portcall"]:
            assert shell(*words[1:]).returncode == 0
    assert {path.name for path in (tmp_path / "portcall-demo").iterdir()} == {"kernels.cc", "kernels.so"}


def test_demo_leaves_what_the_first_snippet_of_the_readme_loads(shell: Shell, tmp_path: Path) -> None:
    assert shell("demo").returncode == 0
    page = (Path(__file__).parents[2] / "README.md").read_text()
    snippet = page.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path / "portcall-demo", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line in re.findall(
        r"^    portcall (\w+ kernels\.so.*?)(?: {2,}#.*)?$", page.partition("\n## A remote call")[0], re.MULTILINE
    ):
        done = subprocess.run(f"{sys.executable} -m portcall {line}", shell=True, cwd=tmp_path / "portcall-demo",
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
    source = tmp_path / "portcall-demo" / "kernels.cc"
    source.write_text("// mine")
    assert shell("demo").returncode == 1
    assert source.read_text() == "// mine"


def test_compile_passes_its_flags_on(invoke_json: InvokeJson, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "a.h").write_text("#define A 3")
    (tmp_path / "a.c").write_text('#include "a.h"\n#include <math.h>\nint f(int x) { return A * B + (int)sqrt(x); }')
    words = ("compile", tmp_path / "a.c", "-o", tmp_path / "a.so")
    flags = ("-I", tmp_path / "include", "--option=-DB=1", "--option=-UB", "--option", "-DB=5", "-lm")
    assert invoke(*words, *flags).exit_code == 0
    assert ctypes.CDLL(str(tmp_path / "a.so")).f(4) == 17
    assert invoke(*words, "--target", "wasm32", "-lm").exit_code == 2
    (tmp_path / "m.onnx").touch()
    for option in ("-Iinclude", "-lm", "--option=-O1"):
        assert invoke("compile", tmp_path / "m.onnx", option).exit_code == 2
    assert invoke_json(*words, "--option=-DA", code=1)["error"]["kind"] == "CompileError"


@pytest.mark.parametrize(
    ("name", "proposed"), [("m.txt", "m.so"), ("m", "m.so"), ("m.onnx", "m.so"), ("m.wasm", "m.so"), ("m.o", "m.so")]
)
def test_compile_and_bundle_refuse_a_name_by_which_nothing_loads_a_library(
    invoke_json: InvokeJson, tmp_path: Path, name: str, proposed: str
) -> None:
    for file in ("a.c", "m.json", "k.so"):
        (tmp_path / file).write_text("{")
    for words in (("compile", tmp_path / "a.c"), ("bundle", tmp_path / "m.json", tmp_path / "k.so")):
        error = invoke_json(*words, "-o", tmp_path / name, code=1)["error"]
        assert str(tmp_path / proposed) in error["next"]
    assert {path.name for path in tmp_path.iterdir()} == {"a.c", "m.json", "k.so"}


def test_compile_without_a_compiler_says_that_zig_takes_its_place(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    (tmp_path / "a.c").write_text("int f(void) { return 1; }")
    made = invoke("compile", tmp_path / "a.c", "-o", tmp_path / "a.so")
    assert made.exit_code == 0, made.output
    assert "by zig" in made.stderr
    monkeypatch.setattr(_compilers, "zig_is_installed", lambda: False)
    refused = invoke("demo", "--folder", tmp_path / "tour")
    assert (refused.exit_code, "pip install 'portcall[zig]'" in refused.stderr) == (1, True)


def test_demo_warns_of_what_spoils_its_times(
    invoke: Invoke, invoke_json: InvokeJson, monkeypatch: pytest.MonkeyPatch, kernels: str, tmp_path: Path
) -> None:
    monkeypatch.setattr("portcall.cli.demo.check_machine", lambda: [Finding("load", "it is busy", "wait")])
    monkeypatch.setattr("portcall.cli.demo.create_shared", lambda *_: Path(kernels))
    monkeypatch.setattr("portcall.cli.demo.measure", lambda _: [])
    assert "warning: it is busy" in invoke("demo", "--folder", tmp_path).stderr
    assert [each["code"] for each in invoke_json("demo", "--folder", tmp_path)["warnings"]] == ["load"]


def test_demo_has_numpy_compute_in_one_thread() -> None:
    script = """
import os
from portcall.cli.demo import import_numpy
before = dict(os.environ)
assert import_numpy() == 1 and dict(os.environ) == before
import numpy as np
a = np.ones((600, 600), "float32")
a @ a
assert len(os.listdir("/proc/self/task")) == 1
assert import_numpy() is None
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_demo_tables_fit_80_columns(on_terminal: OnTerminal, tmp_path: Path) -> None:
    code, shown = on_terminal("demo", "--rpc", "--folder", tmp_path / "tour")
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert code == 0, text
    for head, count in (("from Python, on NumPy arrays", 3), ("from Python, over RPC", 5)):
        rows = text[text.index(head) :].splitlines()[1 : count + 2]
        assert all(re.search(r" [0-9.]+ [mnu]?s\b", row) for row in rows[:-1]), rows
        assert rows[-1].startswith("The results are equal")


def test_demo_json_has_the_times(invoke_json: InvokeJson, tmp_path: Path) -> None:
    answer = invoke_json("demo", "--folder", tmp_path / "tour")
    assert len(answer["rows"]) == 3
    assert all(row["seconds"] > 0 for row in answer["rows"])
    assert answer["refused"].startswith("ArgumentError: ")


def test_inspect_shows_signatures_first_and_details_when_asked(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text("""
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(add, [](int64_t a, double b) { return a + b; })
PORTCALL_REGISTER_GLOBAL("inspected.name").set_body_typed([](portcall::TensorView x) { return x.ndim(); });
""")
    library = toolchain.create_shared(tmp_path / "k.cc", tmp_path / "k.so")
    short, whole = (invoke("inspect", library, *words).output for words in ((), ("--all",)))
    assert short.splitlines()[0].split(maxsplit=1) == ["functions", "add(int64_t, double) -> double"]
    assert "inspected.name(TensorView) -> " in short
    assert len([line for line in short.splitlines() if "libc.so.6" in line and "libstdc++" in line]) == 1
    assert "TVMFFIFunctionSetGlobal" in whole
    assert "TVMFFIFunctionSetGlobal" not in short


def test_inspect_describes_files_of_parameters_and_arrays(
    invoke: Invoke, invoke_json: InvokeJson, tmp_path: Path
) -> None:
    arrays = {"w": np.ones((2, 3), "float32"), "b": np.zeros(5, "int8")}
    graph.save_params_to_file(arrays, tmp_path / "m.params")
    np.savez(tmp_path / "m.npz", **arrays)  # type: ignore[arg-type]
    tensors = [
        {"name": "w", "shape": [2, 3], "dtype": "float32", "nbytes": 24},
        {"name": "b", "shape": [5], "dtype": "int8", "nbytes": 5},
    ]
    for name, kind in (("m.params", "params"), ("m.npz", "npz")):
        answer = invoke_json("inspect", tmp_path / name)
        assert (answer["kind"], answer["tensors"]) == (kind, tensors)
        assert "float32" in invoke("inspect", tmp_path / name).output
        assert invoke("inspect", tmp_path / name, "--svg", tmp_path / "m.svg").exit_code == 2
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:60])
        assert "error" in invoke_json("inspect", tmp_path / name, code=1)
