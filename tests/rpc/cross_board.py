# SPDX-License-Identifier: Apache-2.0
"""The server without Python as one file, built for other machines and used under qemu's user emulation.

    python tests/rpc/cross_board.py [--write] [TARGET ...]

For each target the program is built by zig; then portcall's client proves a token, uploads a library that is compiled
for the target, calls it, times it, lets it crash, and asks why. Programs for musl are static, with kernels linked in:
there is no musl of the machine here to load libraries with. ``--write`` keeps what was found in ``cross_board.json``
beside this file. The C libraries of the machines are Debian's: ``apt-get install qemu-user-static libc6-arm64-cross
libc6-armhf-cross libc6-riscv64-cross``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from portcall import board, errors, rpc, toolchain

RESULTS = Path(__file__).with_name("cross_board.json")
TOKEN = "a token that is long enough"
# By the first part of a target: qemu's name of the machine, and where its C library is.
MACHINES = {
    "aarch64": ("aarch64", "/usr/aarch64-linux-gnu"),
    "riscv64": ("riscv64", "/usr/riscv64-linux-gnu"),
    "arm": ("arm", "/usr/arm-linux-gnueabihf"),
}
KERNELS = """
#include <portcall/portcall.h>
#include <stdlib.h>
using portcall::TensorView;
static void AddOne(TensorView x, TensorView y) {
  for (size_t i = 0; i < x.numel(); ++i) y.data<float>()[i] = x.data<float>()[i] + 1;
}
PORTCALL_EXPORT_TYPED(add_one, AddOne)
PORTCALL_EXPORT_TYPED(word_size, [] { return static_cast<int>(8 * sizeof(void*)); })
PORTCALL_EXPORT_TYPED(refuse, [] { PORTCALL_CHECK(false, ValueError) << "refused by the kernel"; })
PORTCALL_EXPORT_TYPED(crash, [] { abort(); })
"""


def command_of(target: str, program: Path) -> list[str]:
    """Return the words that run a program for a target here."""
    machine = target.partition("-")[0]
    if machine == platform.machine():
        return [str(program)]
    name, libraries = MACHINES[machine]
    return [f"qemu-{name}-static", "-L", libraries, str(program)]


# In a program for musl, in place of a library.
LINKED = """
extern "C" int __tvm_ffi_add_one(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
__attribute__((used)) static const int registered =
    TVMFFIEnvModRegisterSystemLibSymbol("__tvm_ffi_add_one", reinterpret_cast<void*>(&__tvm_ffi_add_one));
"""


def use(address: str, library: Path | None) -> None:
    """Do what a user does in a session."""
    values = np.arange(1000, dtype="float32")
    with rpc.connect(address, key="k", token=TOKEN, call_timeout=120) as session:
        tensor = session.tensor(values)
        np.testing.assert_array_equal(tensor.numpy(), values)
        assert session["testing.echo"]([1, {"a": b"b"}])[1]["a"] == b"b"
        session.upload(b"content", "file")
        assert session.download("file") == b"content"
        if library is not None:
            session.upload(library)
        module = session.system_lib() if library is None else session.load_module(library.name)
        result = session.empty(values.shape)
        module["add_one"](tensor, result)
        np.testing.assert_array_equal(result.numpy(), values + 1)
        assert module.time_evaluator("add_one", session.cpu(), number=3, repeat=2)(tensor, result).min > 0
        if library is None:
            return
        assert module["word_size"]() in (32, 64)
        try:
            module["refuse"]()
            raise AssertionError("the kernel's error did not come")
        except ValueError as error:
            assert "refused by the kernel" in str(error)  # noqa: PT017
        try:
            module["crash"]()
            raise AssertionError("the crash was not reported")
        except errors.RemoteCrashError as crash:
            assert crash.signal == "SIGABRT"  # noqa: PT017


def try_target(target: str) -> dict[str, Any]:
    """Build the program for a target, use it, and return its size."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.cc")
        loads = "musl" not in target
        source.write_text(KERNELS if loads else KERNELS + LINKED)
        if loads:
            library = toolchain.create_shared(source, Path(folder, "kernels.so"), target=target)
            linked = []
        else:
            library, linked = None, [Path(folder, "kernels.o")]
            compiler = toolchain.find_compiler("c++", target)
            command = (*compiler.command, *compiler.flags(), f"-I{toolchain.include_dir()}", "-c", str(source))
            toolchain.execute((*command, "-o", str(linked[0])), "compiling the kernels")
        program = board.build_server(target, Path(folder, "portcall-server"), linked)
        work = Path(folder, "work")
        work.mkdir()
        words = ["--port", "0", "--key", "k", "--json", "--silent", "--work-dir", str(work)]
        environment = {**os.environ, "PORTCALL_TOKEN": TOKEN}
        with subprocess.Popen(
            [*command_of(target, program), *words], stdout=subprocess.PIPE, text=True, env=environment
        ) as server:
            try:
                assert server.stdout is not None
                use(json.loads(server.stdout.readline())["address"], library)
            finally:
                server.terminate()
            assert server.wait(60) == 0
        assert list(work.iterdir()) == []
        return {"nbytes": program.stat().st_size, "loads_libraries": loads}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", default=["aarch64-linux-gnu"], metavar="TARGET")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for target in given.targets:
        found = try_target(target)
        print(f"{target}: {found}", flush=True)
        if given.write:
            known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            RESULTS.write_text(json.dumps({**known, target: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
