# SPDX-License-Identifier: Apache-2.0
"""The page that makes a tab a device: which files of the npm package the farm serves. Chromium opens it in js/test."""

from __future__ import annotations

import contextlib
import http.client
from pathlib import Path

import pytest

from farm.running import RunningFarm, running_farm
from portcall.farm._server import FarmOptions


def get(farm: RunningFarm, path: str) -> http.client.HTTPResponse:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer


def test_farm_serves_the_device_page_and_its_scripts_alone(tmp_path: Path) -> None:
    for name in ("page/device.html", "build/src/page/device.js", "core.wasm", "build/test/a.js", "package.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path.parent / "outside.js").write_text("secret")
    with running_farm(npm_package=str(tmp_path)) as farm:
        answer = get(farm, "/device?key=tab")
        assert (answer.status, answer.headers["Location"]) == (307, "/device/page/device.html?key=tab")
        kinds = {"page/device.html": "text/html", "build/src/page/device.js": "text/javascript", "core.wasm": "wasm"}
        for name, kind in kinds.items():
            answer = get(farm, f"/device/{name}")
            assert (answer.status, answer.content) == (200, name.encode())  # type: ignore[attr-defined]
            assert kind in answer.headers["Content-Type"]
        for name in (
            "build/test/a.js",
            "package.json",
            "build/src/../../outside.js",
            "..%2foutside.js",
            "page/no.html",
            f"page/{300 * 'a'}.html",
        ):
            assert get(farm, f"/device/{name}").status == 404


def test_farm_without_the_npm_package_has_no_device_page() -> None:
    with running_farm() as farm:
        assert get(farm, "/device/page/device.html").status == 404


def test_npm_package_must_have_the_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page/device\.html"):
        FarmOptions(npm_package=str(tmp_path))
