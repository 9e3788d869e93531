# SPDX-License-Identifier: Apache-2.0
"""Webhooks whose receivers are slow, wrong, gone, or send the farm elsewhere."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from farm.boards import client
from farm.running import RunningFarm, running_farm
from portcall.farm import _webhooks

Handler = http.server.BaseHTTPRequestHandler


@contextlib.contextmanager
def receiver(answer: Callable[[Handler], None], heard: list[str]) -> Iterator[str]:
    """Run a server that notes the paths and messages it gets, and yield its address."""

    class Hook(Handler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append(f"{self.path} {message['place']}")
            with contextlib.suppress(ConnectionError):
                answer(self)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def take(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()


def quarantine(farm: RunningFarm, place: str) -> None:
    def change() -> None:
        with farm.server.hub.turn() as state:
            state.register(place, ["k"])
            state.register(f"{place}-other", ["k"])
            state.set_health(place, "quarantined", "hot")

    farm.do(change)


def counted(farm: RunningFarm) -> dict[str, int]:
    counts = farm.server.hub.counts
    return {
        name.rpartition("_")[2]: number
        for (name, labels), number in counts.items()
        if name.startswith("portcall_farm_webhooks") and labels == '{receiver="127.0.0.1"}'
    }


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webhooks, "_PAUSES", (0.0,))


def test_webhook_is_not_sent_elsewhere() -> None:
    heard: list[str] = []
    said: list[str] = []

    def elsewhere(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/elsewhere")
        handler.end_headers()

    with receiver(elsewhere, heard) as url, running_farm(webhooks=(f"{url}/hidden?token=hidden",)) as farm:
        farm.server.hub.log = lambda kind, text: said.append(text)
        quarantine(farm, "b")
        farm.until(lambda: counted(farm)["failed"])
        assert counted(farm) == {"sent": 0, "failed": 1}
        with urllib.request.urlopen(f"http://{farm.host}:{farm.port}/metrics") as metrics:
            assert b'\nportcall_farm_webhooks_failed_total{receiver="127.0.0.1"} 1\n' in metrics.read()
    assert heard == ["/hidden?token=hidden b"]
    assert "302" in said[0]
    assert "hidden" not in said[0]


def test_webhook_receiver_that_is_slow_delays_no_other() -> None:
    heard: list[str] = []
    slow: list[str] = []
    go_on = threading.Event()

    def wait(handler: Handler) -> None:
        go_on.wait(60)

    with contextlib.ExitStack() as stack:
        one = stack.enter_context(receiver(wait, slow))
        two = stack.enter_context(receiver(take, heard))
        farm = stack.enter_context(running_farm(webhooks=(one, two)))
        for number in range(5):
            quarantine(farm, f"b{number}")
        farm.until(lambda: len(heard) == 5)
        farm.until(lambda: slow)
        assert slow == ["/ b0"]
        go_on.set()


def test_webhook_errors_of_any_kind_end_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    post = aiohttp.ClientSession.post
    wrong: list[Exception] = [UnicodeError("label too long"), ValueError("hidden"), RuntimeError("x"), OSError(5, "y")]

    def fail(self: Any, url: str, **more: Any) -> Any:
        if wrong:
            raise wrong.pop()
        return post(self, url, **more)

    monkeypatch.setattr(aiohttp.ClientSession, "post", fail)
    with receiver(take, heard) as url, running_farm(webhooks=(url,)) as farm:
        for number in range(5):
            quarantine(farm, f"b{number}")
        farm.until(lambda: counted(farm) == {"sent": 1, "failed": 4})
        assert heard == ["/ b4"]


def test_webhook_answers_are_not_read() -> None:
    heard: list[str] = []

    def without_end(handler: Handler) -> None:
        take(handler)
        while True:
            handler.wfile.write(bytes(1 << 16))

    with receiver(without_end, heard) as url, running_farm(webhooks=(url,)) as farm:
        for number in range(3):
            quarantine(farm, f"b{number}")
        farm.until(lambda: counted(farm)["sent"] == 3)


def test_webhook_messages_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_webhooks, "_MOST_LEFT", 2)
    heard: list[str] = []
    go_on = threading.Event()

    def late(handler: Handler) -> None:
        go_on.wait(60)
        take(handler)

    with receiver(late, heard) as url, running_farm(webhooks=(url,)) as farm:
        quarantine(farm, "b0")
        farm.until(lambda: heard)
        for number in range(1, 5):
            quarantine(farm, f"b{number}")
        assert counted(farm) == {"sent": 0, "failed": 2}
        go_on.set()
        farm.until(lambda: counted(farm)["sent"] == 3)


def test_webhook_hears_of_no_empty_keys_while_boards_come_back_after_a_start(tmp_path: Path) -> None:
    told: list[dict[str, str]] = []
    store = str(tmp_path / "farm.db")
    with running_farm(store=store) as farm, client(farm) as lab:
        for name in ("one", "two"):
            lab.command("register", place=name, keys=[f"k-{name}"])
    with running_farm(store=store, webhooks=("http://127.0.0.1:1/",)) as farm, client(farm) as lab:
        webhooks: Any = farm.server._webhooks
        webhooks._receivers[0].tell = told.append
        lab.command("register", place="one", keys=["k-one"])
        assert told == []
        farm.pass_time(31)
        farm.do(webhooks._find_empty_keys)
        assert [(message["what"], message["key"]) for message in told] == [("key empty", "k-two")]
