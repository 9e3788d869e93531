# SPDX-License-Identifier: Apache-2.0
"""What is secret in an address is in no error, log or answer, and not in the environment of other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from farm.redis_server import redis_server
from portcall import farm
from portcall.cli import cli
from portcall.farm import FarmOptions
from portcall.farm._redis import RedisStore
from portcall.farm._shown import host_of, shown_store
from portcall.farm._store import Store, StoreError


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("farm.db", "farm.db"),
        ("/data/ann@lab.db", "/data/ann@lab.db"),
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("redis://ann:hidden@db:6379/0", "redis://db:6379/0"),
        ("redis://:hid/den@db/0", "redis://db/0"),
        ("redis://:hid@den@db/0", "redis://db/0"),
        ("redis://:hid?den@db/0", "redis://…"),
        ("rediss://db/0?password=hidden", "rediss://db/0"),
        ("rediss://db/0?password=hid@den", "rediss://…"),
        ("unix://ann:hidden@/run/redis.sock?password=hidden", "unix:///run/redis.sock"),
        ("redis:/ann:hidden@db", "…@db"),
    ],
)
def test_shown_store_has_no_secret(store: str, shown: str) -> None:
    assert shown_store(store) == shown


@pytest.mark.parametrize("url", ["redis://:hid/den@db/0", "redis://:hidden@db:7x/0", "redis://h/0?hidden=1"])
def test_store_refuses_addresses_without_repeating_their_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="store") as caught:
        RedisStore(url)
    assert "hid" not in str(caught.value)


@pytest.mark.slow  # needs Redis
def test_redis_errors_do_not_show_the_password() -> None:
    with redis_server("--requirepass", "hidden") as server:
        url = server.url.replace("unix://", "unix://:hidden@")
        store = RedisStore(f"{url}?password=hidden")
        assert "hidden" not in store.path
        server.kill()
        with pytest.raises(StoreError) as caught:
            store.beat()
        server.start()
        with pytest.raises(StoreError) as wrong:
            RedisStore(url.replace("hidden", "wronghidden"))
        store.close()
    assert "hidden" not in f"{caught.value}{wrong.value}"


def test_store_that_cannot_be_written_is_shown_without_its_password(tmp_path: Path) -> None:
    path = tmp_path / "redis:hidden@db"
    path.write_text("this is no database\n" * 100)
    with pytest.raises(OSError, match="…@db") as caught:
        Store(str(path))
    assert "hidden" not in str(caught.value)
    for wrong in ("REDIS://:hidden@db/0", "http://:hidden@db"):
        with pytest.raises(ValueError, match="store") as refused:
            FarmOptions(store=wrong)
        assert "hidden" not in str(refused.value)
    assert "hidden" not in repr(FarmOptions(store="redis://:hidden@db", webhooks=("https://h/hidden",)))


@pytest.mark.parametrize(
    "url",
    ["hidden", "ftp://h/", "https://", "https:///x", f"https://{'a' * 64}.de/", "https://a..de/", "https://[::1/",
     "https://h:70000/", "https://u:hid/den@h/", "https://h:0/", "https://a b/"],
)  # fmt: skip
def test_options_refuse_webhooks_that_nobody_has(url: str) -> None:
    with pytest.raises(ValueError, match="number 2 of 2") as caught:
        FarmOptions(webhooks=("https://u:hidden@chat.example/x?token=y", url))
    assert "hid" not in str(caught.value)


def test_host_of_webhooks() -> None:
    assert host_of("https://u:p@chat.example:443/x") == "chat.example"
    assert host_of("http://[::1]:8080") == "::1"
    assert host_of("http://bücher.example/") == "bücher.example"


def test_farm_takes_its_store_from_the_environment_and_passes_it_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def serve(options: FarmOptions, on_ready: object) -> int:
        seen.extend((options.store, "PORTCALL_FARM_STORE" in os.environ))
        return 15

    monkeypatch.setattr(farm, "serve", serve)
    monkeypatch.setenv("PORTCALL_FARM_STORE", "redis://:hidden@db:6379/0")
    assert CliRunner().invoke(cli, ["farm"]).exit_code == 0
    assert seen == ["redis://:hidden@db:6379/0", False]
