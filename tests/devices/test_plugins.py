# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that are not portcall's: found by the environment, by an entry point, or loaded by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

USE = """
import portcall
device = portcall.device("ext_dev")
print(device.exist)
try:
    print(portcall.empty((4,), "float32", device).device)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def plugin(build_native: Callable[[str], Path]) -> Path:
    return build_native("fake_device.cc")


def run(code: str, **environment: object) -> list[str]:
    settings = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def package(folder: Path, value: str, code: str) -> Path:
    """An installed package with an entry point for ext_dev."""
    info = folder / "accelerator-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accelerator\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[portcall.devices]\next_dev = {value}\n")
    (folder / "accelerator.py").write_text(code)
    return folder


def test_portcall_devices_names_a_plugin(plugin: Path) -> None:
    assert run(USE, PORTCALL_DEVICES=f"other=/nowhere:ext_dev={plugin}") == ["True", "ext_dev:0"]


def test_portcall_devices_with_a_missing_file_is_an_error_that_names_it() -> None:
    exists, error = run(USE, PORTCALL_DEVICES="ext_dev=/nowhere/libaccelerator.so")
    assert exists == "False"
    assert error.startswith("ModuleLoadError")
    assert "/nowhere/libaccelerator.so" in error


def test_kind_without_a_plugin_is_a_device_error() -> None:
    exists, error = run(USE)
    assert exists == "False"
    assert error.startswith("DeviceError")


@pytest.mark.parametrize("value", ["accelerator:PATH", "accelerator:find"])
def test_entry_point_names_the_path_or_a_function(plugin: Path, tmp_path: Path, value: str) -> None:
    code = f"PATH = {str(plugin)!r}\ndef find():\n    return PATH\n"
    assert run(USE, PYTHONPATH=package(tmp_path, value, code)) == ["True", "ext_dev:0"]


def test_entry_point_that_fails_is_an_error_that_names_it(tmp_path: Path) -> None:
    exists, error = run(
        USE, PYTHONPATH=package(tmp_path, "accelerator:find", "def find():\n    raise OSError('gone')\n")
    )
    assert exists == "False"
    assert error.startswith("ModuleLoadError")
    assert "accelerator:find" in error
    assert "gone" in error


def test_load_plugin_keeps_the_library(plugin: Path) -> None:
    code = f"import gc, portcall\nportcall.load_plugin({str(plugin)!r})\ngc.collect()\n{USE}"
    assert run(code) == ["True", "ext_dev:0"]


def test_doctor_shows_devices_of_a_plugin_and_why_one_does_not_load(plugin: Path) -> None:
    report = "import sys; sys.argv[1:] = ['doctor', '--json']; from portcall.cli import main; main()"
    found = json.loads("\n".join(run(report, PORTCALL_DEVICES=f"ext_dev={plugin}")))
    assert {"ext_dev:0", "ext_dev:1"} <= {device["name"] for device in found["devices"]}
    assert "/nowhere/libaccelerator.so" in "\n".join(run(report, PORTCALL_DEVICES="ext_dev=/nowhere/libaccelerator.so"))
