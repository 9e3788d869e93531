# SPDX-License-Identifier: Apache-2.0
"""What who looks after a farm needs: backups, tokens, exit codes, and pictures of what goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from farm.boards import client
from farm.running import TRACKER, RunningFarm, running_farm
from farm.test_cli_farm import portcall
from farm.test_cli_start import serving
from portcall import errors, rpc
from portcall.farm import Agent, FarmChannel, PlaceOptions, _store
from portcall.farm._store import Store

SECRET = "s" * 32


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


@pytest.fixture
def locked() -> Iterator[RunningFarm]:
    with running_farm(require_tokens=True) as farm:
        yield farm


def token(farm: RunningFarm, user: str, role: str = "user", **more: Any) -> str:
    return str(farm.do(lambda: farm.server.access.make("test", user=user, role=role, **more)))


def where(farm: RunningFarm, shown: str = "") -> dict[str, str]:
    return {"PORTCALL_FARM": f"{farm.host}:{farm.port}", "PORTCALL_FARM_TOKEN": shown}


def said(farm: RunningFarm, *words: object) -> str:
    """Run a command for people, and return what it printed."""
    command = [sys.executable, "-m", "portcall", *map(str, words)]
    environment = {**os.environ, **where(farm), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def add_place(farm: RunningFarm, name: str = "b", key: str = "k") -> None:
    def change() -> None:
        with farm.server.hub.turn() as state:
            state.register(name, [key], {})

    farm.do(change)


def lease(farm: RunningFarm, want: str = "k", **more: Any) -> str:
    """Lease a place, or wait for one; return the id."""

    def change() -> str:
        with farm.server.hub.turn() as state:
            lease = state.request(want, more.pop("user", "ann"), **more)
            if lease.place:
                state.accepted(lease.place, lease.fence)
            return str(lease.id)

    return farm.do(change)


# ---- Backups ----


def test_backup_of_a_farm_that_runs_is_another_farm(tmp_path: Path) -> None:
    store = tmp_path / "farm.db"
    with running_farm(store=str(store)) as farm:
        add_place(farm, "b1")
        found = portcall("farm", "backup", **where(farm))
        add_place(farm, "b2")
        copy = Path(found["path"])
        assert (copy, copy.stat().st_size) == (tmp_path / "farm.db.backup", found["nbytes"])
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with running_farm(store=str(copy)) as other, client(other) as lab:
            assert [place["place"] for place in lab.status()["places"]] == ["b1"]
        with client(farm) as lab:
            lab.command("backup")  # replaces it
        assert not list(tmp_path.glob("*.part*"))
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert {row[0] for row in db.execute("SELECT id FROM places")} == {"b1", "b2"}


def test_backup_has_what_is_written_meanwhile_and_ends_with_its_farm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "_COPIED_PAGES", 1)
    store = Store(str(tmp_path / "farm.db"))
    store.set_tokens({f"{n}": {"text": "x" * 3000} for n in range(50)})
    done: list[Any] = []

    def copy() -> None:
        try:
            done.append(store.backup())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    number = 50
    while not done:
        store.set_tokens({f"{number % 50}": {"text": f"{number}"}})
        number += 1
    thread.join()
    assert store.backup()[1] > 0
    with contextlib.closing(sqlite3.connect(done[0][0])) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    monkeypatch.setattr(_store, "_COPY_PAUSE", 0.001)
    thread = threading.Thread(target=copy)
    thread.start()
    store.close()
    thread.join(30)
    assert not thread.is_alive()
    assert not list(tmp_path.glob("*.part*"))


def test_backup_is_for_admins_of_farms_with_a_file(locked: RunningFarm) -> None:
    for role, reason in (("operator", "role"), ("admin", "invalid")):
        with client(locked, token=token(locked, "ann", role)) as lab, pytest.raises(errors.FarmError) as caught:
            lab.command("backup")
        assert caught.value.reason == reason


def test_store_that_was_copied_without_its_log_is_refused(tmp_path: Path) -> None:
    with running_farm(store=str(tmp_path / "farm.db")) as farm:
        add_place(farm)
        (tmp_path / "copy.db").write_bytes((tmp_path / "farm.db").read_bytes())
        with pytest.raises(OSError, match="portcall farm backup"):
            Store(str(tmp_path / "copy.db"))


# ---- Tokens ----


def test_token_for_batch_is_good_on_the_command_line(locked: RunningFarm) -> None:
    add_place(locked)
    lease(locked)
    shown = where(locked, token(locked, "ci", top_class="batch"))
    words = ("farm", "request", "k", "--wait", "0.01s")
    portcall(*words, code=4, **shown)  # ann has the place
    portcall(*words, "--class", "batch", code=4, **shown)
    events = locked.do(lambda: locked.server.hub.store.history(user="ci"))
    assert "lease queued" in {event["what"] for event in events}
    refused = portcall(*words, "--class", "normal", code=1, **shown)["error"]
    assert ("--class" in refused["next"], "--role" in refused["next"]) == (True, False)


@pytest.mark.parametrize(("top", "given", "got"), [("batch", {}, "batch"), ("urgent", {}, "normal"),
                                                   ("urgent", {"class": "urgent"}, "urgent")])  # fmt: skip
def test_request_without_a_class_is_normal_or_what_its_token_may(
    locked: RunningFarm, top: str, given: dict[str, str], got: str
) -> None:
    with client(locked, token=token(locked, "ci", top_class=top)) as lab:
        assert lab.command("request", want="k", secret=SECRET, hopeless=True, hold=0.01, **given)["class"] == got


def test_only_token_of_an_admin_stays(locked: RunningFarm) -> None:
    first, past = token(locked, "admin", "admin"), token(locked, "old", "admin", expires=1.0)
    with client(locked, token=first) as lab:
        with pytest.raises(errors.FarmError) as caught:
            lab.command("token-revoke", **{"token-of": "admin"})
        assert caught.value.reason == "last-admin"
        lab.command("token-revoke", **{"token-of": "old"})
        second = lab.command("token-make", **{"for": "boss", "role": "admin"})["token"]
        assert lab.command("token-revoke", **{"token-of": "admin"})["revoked"] == 1
    assert past
    assert portcall("farm", "status", **where(locked, second))["places"] == []


def test_only_token_of_an_admin_may_go_where_none_is_needed(farm: RunningFarm) -> None:
    token(farm, "admin", "admin")
    assert portcall("farm", "token", "--revoke", "admin", **where(farm))["revoked"] == 1


def test_revoking_names_the_leases_that_go_on(locked: RunningFarm) -> None:
    boss = token(locked, "boss", "admin")
    token(locked, "ann")
    add_place(locked)
    mine = lease(locked)
    found = portcall("farm", "token", "--revoke", "ann", **where(locked, boss))
    assert [(x["lease"], x["place"]) for x in found["leases"]] == [(mine, "b")]


def test_history_says_who_extended_a_lease_with_anothers_ticket(locked: RunningFarm) -> None:
    add_place(locked)
    mine = lease(locked, secret=SECRET, ceiling=3600)
    with client(locked, token=token(locked, "bob")) as lab:
        lab.command("extend", lease=mine, secret=SECRET, seconds=60)
    last = locked.do(lambda: locked.server.hub.store.history(lease=mine))[-1]
    assert (last["what"], last["user"], last["detail"]) == ("lease extended", "ann", "by bob")


def test_token_list_shows_what_limits_tokens(farm: RunningFarm) -> None:
    token(farm, "ci", top_class="batch", most_leases=7, expires=4e9)
    rows = said(farm, "farm", "token", "--list")
    assert all(word in rows for word in ("batch", " 7 ", "2096-"))


# ---- Exit codes, and whom errors blame ----


@pytest.mark.parametrize(
    "words",
    [
        ("show", "nope"), ("show", "a" * 16), ("token", "x", "--days", "-1"), ("drain", "nope"),
        ("reserve", "k && ram>=1GiB", "--", "true"), ("reserve", "rasp5", "--", "true"), ("release", "nope"),
    ],
)  # fmt: skip
def test_wrong_names_and_values_exit_with_1(farm: RunningFarm, words: tuple[str, ...]) -> None:
    add_place(farm)
    name, *rest = words
    split = rest.index("--") if "--" in rest else len(rest)
    command = ["farm", name, *rest[:split], "--json", *rest[split:]]
    done = subprocess.run([sys.executable, "-m", "portcall", *command], capture_output=True, check=False,
                          env={**os.environ, **where(farm)})  # fmt: skip
    assert done.returncode == 1


def test_missing_certificate_is_what_errors_blame(farm: RunningFarm, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    for given in (("--tls-ca", missing), ()):
        environment = where(farm) | ({} if given else {"PORTCALL_FARM_CA": missing})
        error = portcall("farm", "status", *given, code=1, **environment)["error"]
        assert (error["kind"], missing in error["message"]) == ("FileNotFoundError", True)


def test_board_without_the_certificate_of_its_farm_hears_of_the_option(tmp_path: Path) -> None:
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "farm.pem"))
    with running_farm(tls_certificate=str(tmp_path / "farm.pem")) as farm:
        heard: list[str] = []
        channel = FarmChannel(f"{farm.host}:{farm.port}", "")
        agent = Agent(channel, PlaceOptions("b", ("k",)), rpc.ServerOptions(port=0, log="none"), heard.append)
        thread = threading.Thread(target=agent.run, args=(lambda address: None,))
        thread.start()
        farm.until(lambda: any("trying again" in text for text in heard))
        agent.stop()
        thread.join()
    text = next(text for text in heard if "trying again" in text)
    assert ("--farm-ca FILE" in text, "TLSOptions" in text) == (True, False)


# ---- What is shown ----


def test_status_counts_places_that_may_be_had(farm: RunningFarm) -> None:
    for name in ("good", "drained", "retired", "idle"):
        add_place(farm, name)
    with client(farm) as lab:
        lab.command("drain", place="drained")
        lab.command("retire", place="retired")
    assert re.search("4 places, 2 (free|idle)", said(farm, "farm", "status"))


def test_waiting_list_shows_class_and_priority(farm: RunningFarm) -> None:
    add_place(farm)
    lease(farm)
    lease(farm, user="bob", class_="batch", priority=3)
    for text in (said(farm, "farm", "status"), page(farm, "/")):
        assert "batch +3" in text


def page(farm: RunningFarm, path: str) -> str:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def test_those_who_wait_hear_that_a_leased_place_goes_out_of_use(farm: RunningFarm) -> None:
    add_place(farm)
    lease(farm)
    lease(farm, user="bob")
    with client(farm) as lab:
        lab.command("maintain", place="b", why="new fan")
        (waits,) = lab.status()["waiting"]
        assert all(word in waits["why"] for word in ("ann", "maintenance", "new fan"))
        lab.command("good", place="b")
        lab.command("drain", place="b")
        (waits,) = lab.status()["waiting"]
        assert all(word in waits["why"] for word in ("ann", "drained"))
        lab.command("maintain", place="b", why="new fan")
    shown = said(farm, "farm", "status")
    assert re.search(r"\bann\b.*new fan", shown.partition("waiting")[2])
    assert "ann" in page(farm, "/")
    assert "new fan" in page(farm, "/")


def test_pages_of_places_have_times_with_their_zone(farm: RunningFarm) -> None:
    add_place(farm)
    assert re.search(r"\d:\d\d:\d\d [A-Z+-]", page(farm, "/place/b"))


def test_request_that_ended_between_two_questions_is_a_timeout(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_place(farm)
    lease(farm)
    with client(farm) as lab:
        again = lab._again

        def late(what: str, **fields: Any) -> dict[str, Any]:
            farm.pass_time(6)
            return again(what, **fields)

        monkeypatch.setattr(lab, "_again", late)
        with pytest.raises(errors.SessionTimeoutError):
            lab.lease("k", wait=5)


def test_farm_without_networks_of_tvm_answers_no_tracker_of_this_machine() -> None:
    with serving("--store", ":memory:", "--tvm-network", "none", "--json") as (_, line):
        port = json.loads(line)["port"]
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(TRACKER)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(4) != TRACKER
