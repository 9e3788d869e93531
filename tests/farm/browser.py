# SPDX-License-Identifier: Apache-2.0
"""Chromium for tests: a page that is opened, clicked and typed into, by the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

PROGRAM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
T = TypeVar("T")
_OPTIONS = (
    "--headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run --disable-dev-shm-usage --remote-debugging-port=0"
)


class LeftPageError(Exception):
    """The page that was asked has gone meanwhile: another one is loaded."""


class Browser:
    """A browser with one page. A context manager; it waits for nothing longer than a test may take.

    Attributes:
        problems: errors of scripts, and what the page's rules of content refused.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [PROGRAM, *_OPTIONS.split(), f"--user-data-dir={self._folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self._do(self._connect())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))

    async def _connect(self) -> None:
        found = Path(self._folder.name, "DevToolsActivePort")
        while not (found.exists() and found.read_text().count("\n")):
            assert self._process.poll() is None, "Chromium has ended"
            await asyncio.sleep(0.02)
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{found.read_text().split()[0]}/json/list") as answer:
            pages = [page for page in json.loads(await answer.text()) if page["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._ask(f"{domain}.enable")

    async def _ask(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            said = await self._socket.receive_json()
            if said.get("id") == number:
                if "navigated" in said.get("error", {}).get("message", ""):
                    raise LeftPageError(method)
                assert "error" not in said, said
                return said["result"]
            if said.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                what = said["params"].get("entry") or said["params"]["exceptionDetails"]
                if what.get("source") != "network" and what.get("level") != "verbose":  # such as a page with status 401
                    self.problems.append(json.dumps(what))

    def ask(self, method: str, **params: Any) -> Any:
        """Give a command of the protocol, and return its result."""
        return self._do(self._ask(method, **params))

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 640)  # fmt: skip
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page, whatever page that is by then."""
        end, tried = time.monotonic() + 60, f"(() => {{ try {{ return {expression} }} catch {{ return false }} }})()"
        while True:
            with contextlib.suppress(LeftPageError):
                if value := self.evaluate(tried):
                    return value
            assert time.monotonic() < end, f"{expression} never came; the page says: {self.text()}"
            self._do(asyncio.sleep(0.02))

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def has(self, text: str) -> None:
        """Wait for a text."""
        self.until(f"document.body.innerText.includes({json.dumps(text)})")

    def press(self, selector: str) -> None:
        """Click into the middle of an element, with the mouse."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found} !== null")
        box = self.evaluate(
            f"(() => {{ const e = {found}; e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for what in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=what, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.press(selector)
        self.ask("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        async def leave() -> None:
            await self._session.close()
            await asyncio.sleep(0)

        self._do(leave())
        self._loop.close()
        self._process.terminate()
        self._process.wait(30)
        self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
