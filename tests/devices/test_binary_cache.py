# SPDX-License-Identifier: Apache-2.0
"""Binaries of kernels on disk: what a later process takes from there, and what it does with damaged files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import portcall
from devices.conftest import FakeDriver
from devices.payloads import payload

OPENCL = b"__kernel void k(__global float* a) { a[get_global_id(0)] = 7; }"
CUDA = b'extern "C" __global__ void k(float* a) { a[blockIdx.x] = 7; }'
PROGRAM = """
import sys, portcall
kind, source = sys.argv[1], sys.argv[2].encode()
device = portcall.device(kind)
assert device.exist
sys.path.insert(0, "tests")
from devices.payloads import payload
module = portcall.get_global_func(f"ffi.Module.load_from_bytes.{kind}")(
    payload(source, form=b"cl" if kind == "opencl" else b"cuda"))
out = portcall.empty((4,), "float32", device)
module["k"](out, 4)
print(out.numpy().tolist())
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "portcall" / "kernels"


def run_kernel(kind: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the kernel in a new process."""
    source = OPENCL if kind == "opencl" else CUDA
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, source.decode()],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def check_kernel(kind: str, **environment: str) -> None:
    done = run_kernel(kind, **environment)
    assert (done.returncode, done.stdout) == (0, "[7.0, 7.0, 7.0, 7.0]\n"), done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_second_process_needs_no_compiler(folder: Path) -> None:
    check_kernel("cuda")
    [kept] = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    check_kernel("cuda", PATH="/nowhere")  # where the fake NVRTC finds no compiler
    kept.unlink()
    assert "CompileError" in run_kernel("cuda", PATH="/nowhere").stderr


def test_binary_of_opencl_is_taken_by_a_second_process(folder: Path) -> None:
    check_kernel("opencl")
    [kept] = folder.iterdir()
    before, used = kept.read_bytes(), kept.stat().st_mtime_ns
    assert OPENCL in before  # the key, which is compared
    os.utime(kept, (0, 0))
    check_kernel("opencl")
    assert kept.read_bytes() == before
    assert kept.stat().st_mtime_ns >= used  # it counts as used again


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "key", "magic"])
def test_damaged_file_is_made_again(damage: str, folder: Path) -> None:
    check_kernel("cuda")
    [(name, whole)] = contents(folder).items()
    at = {"cut": 0, "empty": 0, "changed": len(whole) - 100, "key": whole.index(b"blockIdx"), "magic": 3}[damage]
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    damaged = {"cut": whole[:-1], "empty": b""}.get(damage, changed)
    (folder / name).write_bytes(damaged)
    check_kernel("cuda")
    again = contents(folder)
    assert list(again) == [name]
    assert again[name] != damaged
    assert len(again[name]) > 1000


def test_binary_that_the_driver_refuses_is_built_again(folder: Path) -> None:
    check_kernel("opencl")
    [(name, whole)] = contents(folder).items()
    header, key_size = 40, int.from_bytes(whole[16:24], "little")
    body = b"no binary of this driver"
    hashed = 0xCBF29CE484222325
    for byte in whole[header : header + key_size] + body:
        hashed = ((hashed ^ byte) * 0x100000001B3) % 2**64
    valid = whole[:24] + len(body).to_bytes(8, "little") + hashed.to_bytes(8, "little")
    (folder / name).write_bytes(valid + whole[header : header + key_size] + body)
    check_kernel("opencl")
    assert contents(folder)[name] != valid + body


def test_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"")  # a file: even root makes no folder there
    check_kernel("opencl")
    check_kernel("cuda")


def test_oldest_binaries_go_when_there_are_too_many(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(3):
        with (folder / f"{number}").open("wb") as file:
            file.truncate(100 << 20)  # holes take no room
        os.utime(folder / f"{number}", (number + 1, number + 1))
    check_kernel("opencl")
    assert {"1", "2"} < set(contents_names(folder))
    assert "0" not in contents_names(folder)


def contents_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_threads_keep_the_same_kernel_at_the_same_time(folder: Path) -> None:
    make = portcall.get_global_func("ffi.Module.load_from_bytes.opencl")
    modules = [make(payload(OPENCL)) for _ in range(4)]
    out = portcall.empty((4,), "float32", portcall.opencl())
    threads = [threading.Thread(target=module["k"], args=(out, 4)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out.numpy().tolist() == [7] * 4
    assert len(contents_names(folder)) == 1


@pytest.mark.parametrize("part", ["", "portcall", "portcall/kernels"])
def test_kernels_that_others_could_have_put_there_are_not_run(part: str, folder: Path) -> None:
    check_kernel("cuda")
    shared = folder.parent.parent / part
    shared.chmod(0o777)
    done = run_kernel("cuda", PATH="/nowhere")  # without a compiler only the cache has the kernel
    assert "CompileError" in done.stderr
    shared.chmod(0o700)
    check_kernel("cuda", PATH="/nowhere")
