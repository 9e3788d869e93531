# SPDX-License-Identifier: Apache-2.0
"""What goes beside the files of a release, and what those read who build on a system that is not Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import portcall

ROOT = Path(__file__).parents[1]


def written(folder: Path, epoch: str = "1700000000") -> dict[str, bytes]:
    """Run the script over three files; return what it has written."""
    folder.mkdir()
    for name in ("portcall-0.1.0-cp311.whl", "portcall.jar", "b c.tgz"):
        (folder / name).write_text(name)
    words = [sys.executable, str(ROOT / "scripts" / "release.py"), str(folder)]
    for _ in range(2):  # the second time with its own files there
        subprocess.run(words, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, check=True)
    bom = f"portcall-{portcall.__version__}.cdx.json"
    return {name: (folder / name).read_bytes() for name in ("SHA256SUMS", bom)}


def test_release_has_the_sums_of_all_files(tmp_path: Path) -> None:
    written(tmp_path / "dist")
    folder = tmp_path / "dist"
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(list(folder.iterdir())) - 1 == 4
    (folder / "portcall.jar").write_text("another")
    again = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert again.returncode == 1


def test_release_bill_names_files_and_requirements(tmp_path: Path) -> None:
    bill = json.loads(written(tmp_path / "dist")[f"portcall-{portcall.__version__}.cdx.json"])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert bill["metadata"]["component"]["version"] == portcall.__version__
    files = {each["name"]: each["hashes"][0]["content"] for each in bill["components"] if each["type"] == "file"}
    assert set(files) == {"portcall-0.1.0-cp311.whl", "portcall.jar", "b c.tgz"}
    scopes = {each["name"]: each["scope"] for each in bill["components"] if each["type"] == "library"}
    assert {name for name, scope in scopes.items() if scope == "required"} == {"click", "numpy", "rich"}
    assert scopes["aiohttp"] == "optional"
    assert "pytest" not in scopes
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(refs) == len(set(refs))
    assert set(bill["dependencies"][0]["dependsOn"]) <= set(refs)


def test_release_is_the_same_each_time(tmp_path: Path) -> None:
    assert written(tmp_path / "a") == written(tmp_path / "b")
    assert written(tmp_path / "c", "1700000001") != written(tmp_path / "d")


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_build_says_at_once_that_a_system_is_not_linux(tmp_path: Path, system: str) -> None:
    words = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), f"-DCMAKE_SYSTEM_NAME={system}"]
    search = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, env={**os.environ, **search}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"not on {'macOS' if system == 'Darwin' else system}" in " ".join(done.stderr.split())
    assert "compiler" not in done.stdout  # none was looked for
