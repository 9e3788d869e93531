# SPDX-License-Identifier: Apache-2.0
"""Folders of running processes, and those that killed processes left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from portcall._folders import working_folder


def test_working_folder_removes_what_was_left_behind_and_nothing_else(tmp_path: Path) -> None:
    for name in ("kind-old", "other-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with working_folder("kind-", tmp_path) as outer, working_folder("kind-", tmp_path) as inner:
        assert {path.name for path in tmp_path.iterdir()} == {outer.name, inner.name, "other-old"}
    assert [path.name for path in tmp_path.iterdir()] == ["other-old"]


def test_working_folders_of_many_at_a_time_stay(tmp_path: Path) -> None:
    """None is taken for one that was left behind, not before it is locked either."""

    def work(number: int) -> None:
        with working_folder("kind-", tmp_path) as folder:
            (folder / "file").write_text(str(number))
            assert (folder / "file").read_text() == str(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(400)))
    assert list(tmp_path.iterdir()) == []
