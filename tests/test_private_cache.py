# SPDX-License-Identifier: Apache-2.0
"""Caches whose files are run belong to their user: one that others can write to is not used."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from portcall import _folders


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for caches that all users of this machine may write to."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def test_cache_folder_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = _folders.cache_folder("models")
    assert made == tmp_path / "cache" / "portcall" / "models"
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert _folders.cache_folder("models") == made


def test_cache_folder_ignores_a_relative_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _folders.cache_folder("models") == tmp_path / ".cache" / "portcall" / "models"


def test_cache_folder_that_cannot_be_made_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(NotADirectoryError, match=r"XDG_CACHE_HOME.*file/cache"):
        _folders.cache_folder("models")


def test_cache_folder_below_a_shared_one_is_this_users(shared: Path) -> None:
    """Others can make files beside ours, and not in it; but they could rename it."""
    with pytest.raises(PermissionError, match="shared"):
        _folders.cache_folder("models")
    shared.chmod(0o1777)  # as /tmp: nobody renames what is another's
    assert _folders.cache_folder("models").is_dir()


@pytest.mark.parametrize("part", ["portcall", "portcall/models"])
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_cache_folder_that_others_can_write_is_refused(shared: Path, part: str, mode: int) -> None:
    shared.chmod(0o1777)
    (shared / "portcall" / "models").mkdir(parents=True)
    for path in (shared / "portcall", shared / "portcall" / "models"):
        path.chmod(0o700)
    (shared / part).chmod(mode)
    with pytest.raises(PermissionError, match="chmod"):
        _folders.cache_folder("models")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("part", ["portcall", "portcall/models"])
def test_cache_folder_of_another_user_is_refused(shared: Path, part: str) -> None:
    shared.chmod(0o1777)
    (shared / "portcall" / "models").mkdir(parents=True, mode=0o700)
    os.chown(shared / part, 12345, 12345)
    with pytest.raises(PermissionError, match="12345"):
        _folders.cache_folder("models")


def test_cache_folder_that_is_a_link_of_another_place_is_refused(shared: Path, tmp_path: Path) -> None:
    shared.chmod(0o1777)
    open_to_all = tmp_path / "open"
    (open_to_all / "models").mkdir(parents=True)
    open_to_all.chmod(0o777)
    (shared / "portcall").symlink_to(open_to_all)
    with pytest.raises(PermissionError):
        _folders.cache_folder("models")


def test_library_in_a_folder_from_which_nothing_is_run_names_it(
    build_native: Callable[[str], Path], tmp_path: Path
) -> None:
    """A file system that is mounted noexec, in a name space of its own."""
    library, place = build_native("functions.cc"), tmp_path / "noexec"
    place.mkdir()
    inside = f"mount -t tmpfs -o noexec tmpfs {place} && cp {library} {place}/k.so && exec {sys.executable} -c"
    load = f"import portcall\ntry: portcall.load_module('{place}/k.so')\nexcept OSError as error: print(error)"
    words = ["unshare", "-rm", "sh", "-c", f"{inside} {shlex.quote(load)}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the system mounts nothing for us: {done.stderr.strip()}")
    assert f"'{place}/'" in done.stdout
    assert "noexec" in done.stdout
    assert "TMPDIR" in done.stdout
