# SPDX-License-Identifier: Apache-2.0
"""The server without Python as one file, built for other machines and used under qemu's user emulation.

    python tests/rpc/cross_board.py [--write] [FORM ...]

For each form the program is built by zig. Then portcall's client proves a token, uploads libraries that zig and
apache-tvm compiled for the machine, calls and times them, runs a graph, lets one crash, and asks why. apache-tvm's
client runs the graph on a server without a token. In static forms the same kernels are linked in. ``--write`` keeps
what was found in ``cross_board.json`` beside this file. `make test-cross` fetches the C libraries of the machines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph.models import array, close, mlp, mlp_json, mlp_params
from portcall import board, errors, graph, rpc, toolchain, vm
from scripts.needed_glibc import check
from vm.compiled import Compiled, compile_with, same

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("cross_board.json")
TVM_KERNELS = ROOT / "tests" / "kernels" / "board_kernels.py"
TVM_CLIENT = ROOT / "tests" / "scripts" / "tvm_graph_client.py"
PREFIX = "board_"  # of names that are linked in
TOKEN = "a token that is long enough"


@dataclass(frozen=True)
class Form:
    """A target, where the C library of its machine is here, and whether kernels or the Relax VM are linked in."""

    target: str
    libraries: Path
    static: bool = False
    vm: bool = False

    def command(self, program: Path) -> list[str]:
        machine = self.target.partition("-")[0]
        return [f"qemu-{machine}-static", "-L", str(self.libraries), str(program)]


MUSL = {"x86_64-linux-musl": "amd64", "aarch64-linux-musl": "arm64", "arm-linux-musleabihf": "armhf"}
FORMS = {
    **{name: Form(name, Path("/usr", name)) for name in ("aarch64-linux-gnu", "arm-linux-gnueabihf")},
    "riscv64-linux-gnu": Form("riscv64-linux-gnu", Path("/usr/riscv64-linux-gnu")),
    "x86_64-linux-gnu": Form("x86_64-linux-gnu", Path("/")),
    "x86_64-linux-gnu, vm": Form("x86_64-linux-gnu", Path("/"), vm=True),
    **{name: Form(name, ROOT / "build" / "cross" / "musl" / package) for name, package in MUSL.items()},
    **{f"{name}, static": Form(name, Path("/"), static=True) for name in (*MUSL, "riscv64-linux-musl")},
}  # fmt: skip
KERNELS = """
#include <portcall/portcall.h>
#include <stdlib.h>
PORTCALL_EXPORT_TYPED(word_size, [] { return static_cast<int>(8 * sizeof(void*)); })
PORTCALL_EXPORT_TYPED(refuse, [] { PORTCALL_CHECK(false, ValueError) << "refused by the kernel"; })
PORTCALL_EXPORT_TYPED(crash, [] { abort(); })
"""


@contextmanager
def serving(form: Form, program: Path, **variables: str) -> Iterator[str]:
    """Start the program, and expect that it ends well and leaves nothing; yield its address."""
    with tempfile.TemporaryDirectory() as work:
        words = [
            *form.command(program),
            "--port",
            "0",
            "--key",
            "k",
            "--json",
            "--silent",
            "--work-dir",
            work,
        ]
        environment = {**os.environ, **variables}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
            try:
                assert server.stdout is not None
                yield json.loads(server.stdout.readline())["address"]
            finally:
                server.terminate()
            assert server.wait(60) == 0
        assert os.listdir(work) == []


def use_values(session: rpc.Session) -> None:
    values = np.arange(1000, dtype="float32")
    np.testing.assert_array_equal(session.tensor(values).numpy(), values)
    assert session["testing.echo"]([1, {"a": b"b"}])[1]["a"] == b"b"
    session.upload(b"content", "file")
    assert session.download("file") == b"content"


def use_kernels(session: rpc.Session, module: Any) -> None:
    """Call and time what apache-tvm compiled, alone and as a graph."""
    values = np.arange(1000, dtype="float32")
    tensor, result = session.tensor(values), session.empty(values.shape)
    module["add_one"](tensor, result)
    np.testing.assert_array_equal(result.numpy(), values + 1)
    assert module.time_evaluator("add_one", session.cpu(), number=3, repeat=2)(tensor, result).min > 0
    executor = graph.create(mlp_json(), module, session.cpu())
    executor.load_params(mlp_params())
    x = array(4, 16)
    executor.run(x=x)
    close(executor.get_output(0), mlp(x, mlp_params()))
    assert executor.benchmark(session.cpu(), number=2, repeat=2).min > 0


def use_library(session: rpc.Session, library: Path, bits: int) -> None:
    """Call what zig compiled with a C++ library of its own; its crash ends the session."""
    module = load(session, library)
    assert module["word_size"]() == bits
    with pytest.raises(ValueError, match="refused by the kernel"):
        module["refuse"]()
    with pytest.raises(errors.RemoteCrashError) as crash:
        module["crash"]()
    assert crash.value.signal == "SIGABRT"


def use_model(session: rpc.Session, models: Compiled, with_vm: bool) -> None:
    """Run a model of the Relax VM, where the program has the machine."""
    if not with_vm:
        with pytest.raises(errors.RemoteError, match="--with vm"):
            load(session, models.path("branch"))
        return
    function, calls, results = models.calls("branch")
    run = vm.create(load(session, models.path("branch")), session.cpu())[function]
    assert all(same(run(*arguments), result) for arguments, result in zip(calls, results, strict=True))


def load(session: rpc.Session, library: Path) -> Any:
    return session.load_module(session.upload(library))


def use_by_tvm(port: str, library: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m.json").write_text(mlp_json())
        x = array(4, 16)
        np.savez(Path(folder, "m.npz"), x=x, y=mlp(x, mlp_params()), **mlp_params())
        subprocess.run([sys.executable, TVM_CLIENT, port, folder, library], check=True, timeout=300)


def foreign_library(form: Form, folder: Path) -> Path:
    """Return a library for another machine."""
    target = "riscv64-linux-gnu" if form.target.startswith("x86_64") else "x86_64-linux-gnu"
    source = folder / "foreign.c"
    source.write_text("int foreign(void) { return 1; }")
    return toolchain.create_shared(source, folder / "foreign.so", target=target)


def try_form(form: Form, folder: Path) -> dict[str, Any]:
    """Build the program, use it with both clients, and return its size."""
    target = form.target
    subprocess.run([sys.executable, TVM_KERNELS, target, folder], check=True)
    linked = [folder / "linked.o"] if form.static else []
    program = board.build_server(target, folder / "portcall-server", linked, vm=form.vm)
    if target in board.OLDEST:
        check(target, program)
    exported = program.read_bytes().split(b"\0")
    assert not {b"_Znwm", b"_Znwj"} & set(exported)  # operator new: a library catches what its own one throws
    kernels = toolchain.create_shared([folder / "layers.o"], folder / "layers.so", target=target)
    (folder / "kernels.cc").write_text(KERNELS)
    library = toolchain.create_shared(folder / "kernels.cc", folder / "kernels.so", target=target)
    with serving(form, program, PORTCALL_TOKEN=TOKEN) as address:
        with pytest.raises(errors.ConnectError):
            rpc.connect(address, key="k", token="another token")
        with rpc.connect(address, key="k", token=TOKEN, call_timeout=120) as session:
            use_values(session)
            with pytest.raises(errors.ModuleLoadError, match="static" if form.static else "made for"):
                load(session, kernels if form.static else foreign_library(form, folder))
            use_kernels(session, session.system_lib(PREFIX) if form.static else load(session, kernels))
            if form.libraries == Path("/") and not form.static:  # apache-tvm compiles for this machine
                use_model(session, compile_with(sys.executable, folder / "models", "branch"), form.vm)
            if not form.static:
                use_library(session, library, 32 if target.startswith("arm") else 64)
    with serving(form, program) as address:
        use_by_tvm(address.rpartition(":")[2], PREFIX if form.static else str(kernels))
    return {"nbytes": program.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"all, or some of: {'; '.join(FORMS)}")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for name in given.forms or FORMS:
        with tempfile.TemporaryDirectory() as folder:
            found = try_form(FORMS[name], Path(folder))
        print(f"{name}: {found}", flush=True)
        if given.write:
            known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            RESULTS.write_text(json.dumps({**known, name: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
