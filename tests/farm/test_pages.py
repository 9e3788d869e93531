# SPDX-License-Identifier: Apache-2.0
"""A farm in a browser: pages, live changes, figures, history; and who may do what."""

from __future__ import annotations

import contextlib
import csv
import http.client
import io
import json
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlencode

import pytest

import portcall
from farm.running import RunningFarm, running_farm
from portcall import errors
from portcall.farm._access import RIGHTS, ROLES
from portcall.farm._constraints import Clause
from portcall.farm._http import _MOST_LIVE


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


def get(farm: RunningFarm, path: str, **headers: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def command(farm: RunningFarm, what: str, token: str = "", **fields: Any) -> dict[str, Any]:
    with contextlib.closing(portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", token=token, user="ann")) as channel:
        return channel.call(what, **fields)


def fill(farm: RunningFarm) -> None:
    """Let a place, a lease and a waiting request be there, with names that are markup."""

    def change() -> None:
        with farm.server.hub.turn() as state:
            state.register("b<1>", ["k"], {"gpu": "<mali>"})
            lease = state.request("k", "<ann>", ttl=1000)
            state.accepted("b<1>", lease.fence)
            state.request("k", "bob", ttl=1000)

    farm.do(change)


def test_farm_page_shows_places_leases_and_queue_escaped(farm: RunningFarm) -> None:
    fill(farm)
    status, text = get(farm, "/")
    assert status == 200
    for word in ("b&lt;1&gt;", "&lt;ann&gt;", "bob", "offered", "has been with"):
        assert word in text
    assert "<ann>" not in text
    status, text = get(farm, "/place/b%3C1%3E")
    assert status == 200
    assert "&lt;mali&gt;" in text
    assert "['k']" not in text
    assert "health_since" not in text
    assert "place leased" in text
    assert get(farm, "/place/none")[0] == 404
    assert "lease queued" in get(farm, "/history")[1]


@pytest.mark.parametrize(("want", "unmet"), [
    ("k & ram>=64GiB & gpu", ["'ram>=64GiB'"]), ("none & k", ["'none'"]), ("arm64 & k", ["arm64 & k"]),
])  # fmt: skip
def test_farm_says_which_clause_no_place_meets(farm: RunningFarm, want: str, unmet: list[str]) -> None:
    assert "registered" in command(farm, "request", want=want, secret="t" * 32, hopeless=True, hold=0)["why"]
    command(farm, "register", place="a", keys=["k"], tags={"gpu": "mali"})
    command(farm, "register", place="b", keys=["arm64"])
    why = command(farm, "request", want=want, secret="s" * 32, hopeless=True, hold=0)["why"]
    assert all(clause in why for clause in unmet)
    assert "'k'" not in why
    assert "'gpu'" not in why


@pytest.mark.parametrize(("clauses", "looks"), [(2, 100), (64, 0)])
def test_farm_does_not_look_long_for_what_requests_lack(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch, clauses: int, looks: int
) -> None:
    def fill() -> None:
        with farm.server.hub.turn() as state:
            for number in range(50):
                state.register(f"b{number}", ["k"])
            for number in range(3):
                state.request("&".join([f"q{number}", *["cores>=9"] * (clauses - 1)]), "ann", ttl=99, hopeless=True)

    farm.do(fill)
    holds = Mock(side_effect=Clause.holds, autospec=True)
    monkeypatch.setattr(Clause, "holds", lambda *words: holds(*words))
    for _ in range(2):  # the second picture looks at nothing again
        assert all("no place meets" in lease["why"] for lease in farm.do(farm.server.api.views.status)["waiting"])
        assert holds.call_count == 3 * looks


@pytest.mark.parametrize("name", [".", ".."])
def test_farm_refuses_names_of_places_that_no_link_reaches(farm: RunningFarm, name: str) -> None:
    with pytest.raises(errors.FarmError) as caught:
        command(farm, "register", place=name, keys=["k"])
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize("before", ["-1", "x", "²", "٣", "9" * 400, "1e3", ""])
def test_farm_history_begins_where_a_number_says(farm: RunningFarm, before: str) -> None:
    fill(farm)
    assert get(farm, f"/history?{urlencode({'before': before})}")[0] == 200


def test_farm_page_receives_changes(farm: RunningFarm) -> None:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert "no place has registered yet" in json.loads(answer.readline().removeprefix(b"data: "))
        assert answer.readline() == b"\n"
        fill(farm)
        while "&lt;ann&gt;" not in json.loads(answer.readline().removeprefix(b"data: ")):
            assert answer.readline() == b"\n"


def test_farm_history_is_json(farm: RunningFarm) -> None:
    farm.do(lambda: farm.server.hub.state.note("said", detail="=1+1"))
    fill(farm)
    rows = list(csv.DictReader(io.StringIO(get(farm, "/history.csv")[1])))
    events = json.loads(get(farm, "/history.json")[1])["events"]
    assert [row["what"] for row in rows] == [event["what"] for event in events]
    assert rows[0]["detail"] == "'=1+1"


def test_farm_metrics_are_prometheus_text(farm: RunningFarm) -> None:
    fill(farm)
    status, text = get(farm, "/metrics")
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert status == 200
    assert figures['portcall_farm_places{state="leased",health="unknown"}'] == "1"
    assert figures['portcall_farm_leases{state="queued"}'] == "1"
    assert figures["portcall_farm_wait_seconds_count"] == "1"
    assert text.endswith("# EOF\n")


def test_farm_health_reports_an_unwritable_store(farm: RunningFarm) -> None:
    assert get(farm, "/healthz")[0] == get(farm, "/readyz")[0] == 200
    store: Any = farm.server.hub.store
    farm.do(lambda: store._db.execute("PRAGMA query_only = on"))
    fill(farm)
    status, text = get(farm, "/readyz")
    assert (status, text) == (503, "store\n")  # strangers may ask: the error is in the log
    farm.do(lambda: store._db.execute("PRAGMA query_only = off"))
    command(farm, "request", want="k", secret="s" * 32)
    assert get(farm, "/readyz")[0] == 200
    assert len(command(farm, "status")["leases"]) == 1


# ---- Who may ----


@pytest.fixture
def locked() -> Iterator[RunningFarm]:
    with running_farm(require_tokens=True) as farm:
        yield farm


def token(farm: RunningFarm, role: str, **more: Any) -> str:
    return farm.do(lambda: farm.server.access.make("test", user=f"a {role}", role=role, **more))


def test_farm_history_files_have_all_events_though_few_are_in_memory(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portcall.farm._hub._PAGE", 3)
    asked: list[int] = []
    store = farm.server.hub.store
    history = store.history

    def count(**wanted: Any) -> Any:
        found = history(**wanted)
        asked.append(len(found))
        return found

    for _ in range(10):
        farm.do(lambda: farm.server.hub.note("noted", "ann", "=1"))
    whole = farm.do(lambda: history(limit=1000))
    assert len(whole) >= 10
    monkeypatch.setattr(store, "history", count)
    assert json.loads(get(farm, "/history.json")[1])["events"] == whole
    numbers = [int(row["number"]) for row in csv.DictReader(io.StringIO(get(farm, "/history.csv")[1]))]
    assert numbers == [event["number"] for event in whole]
    assert max(asked) == 3


@pytest.mark.parametrize("path", ["/", "/history", "/history.csv", "/events", "/metrics", "/place/x"])
def test_farm_pages_need_a_token(locked: RunningFarm, path: str) -> None:
    status, text = get(locked, path)
    assert status == 401
    assert "token" in text
    assert get(locked, path, Authorization="Bearer wrong")[0] == 401


def test_farm_page_accepts_a_cookie(locked: RunningFarm) -> None:
    viewer = token(locked, "viewer")
    with contextlib.closing(http.client.HTTPConnection(locked.host, locked.port, timeout=20)) as connection:
        for text, status in ((viewer, 303), ("wrong", 401)):
            connection.request("POST", "/login", f"token={text}", {"Content-Type": "application/x-www-form-urlencoded"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
            cookie = answer.headers["Set-Cookie"] if status == 303 else ""
            if cookie:
                assert "HttpOnly" in cookie
                assert "SameSite=Lax" in cookie
    assert get(locked, "/", Cookie=f"portcall-farm={viewer}")[0] == 200


def test_farm_page_reads_a_body_that_comes_after_its_head(locked: RunningFarm) -> None:
    form = "Content-Type: application/x-www-form-urlencoded\r\n"
    head = f"POST /login HTTP/1.1\r\nHost: localhost\r\n{form}Content-Length: 7\r\n\r\n"
    with socket.create_connection((locked.host, locked.port), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(head.encode())
        locked.pass_time(0)  # the farm has read the head
        sock.sendall(b"token=x")
        assert sock.recv(12) == b"HTTP/1.1 401"


@pytest.mark.parametrize("role", ROLES)
def test_farm_roles_may_do_what_the_table_says(locked: RunningFarm, role: Any) -> None:
    secret = token(locked, role)
    for what in sorted({name for names in RIGHTS.values() for name in names} - {"who"}):
        try:
            command(locked, what, secret)
            reason = ""
        except errors.FarmError as error:
            reason = error.reason
        assert (reason == "role") is (what not in RIGHTS[role]), what


def test_farm_token_ends_when_revoked_or_expired(locked: RunningFarm) -> None:
    boss, user = token(locked, "admin"), token(locked, "user")
    assert command(locked, "status", user)["places"] == []
    assert command(locked, "token-revoke", boss, **{"token-of": "a user"})["revoked"] == 1
    for wrong in (user, token(locked, "user", expires=1.0), "guess", ""):
        with pytest.raises(errors.AuthenticationError):
            command(locked, "status", wrong)
    listed = json.dumps(command(locked, "token-list", boss))
    assert boss not in listed


def test_farm_pairing_code_becomes_a_token_once(locked: RunningFarm) -> None:
    boss = token(locked, "admin")
    code = command(locked, "pair", boss, **{"for": "rasp-3", "role": "agent", "keys": ["rasp4"]})["code"]
    board = command(locked, "redeem", code=code.lower())["token"]
    with pytest.raises(errors.FarmError, match="used already"):
        command(locked, "redeem", code=code)
    assert command(locked, "register", board, place="b", keys=["rasp4"])["place"]["state"] == "idle"
    with pytest.raises(errors.FarmError, match="rasp4 only"):
        command(locked, "register", board, place="b", keys=["other"])


def test_farm_history_tells_who_gave_which_rights(locked: RunningFarm) -> None:
    boss = token(locked, "admin")
    fields = {"for": "rasp-3", "role": "agent", "keys": ["rasp4"]}
    command(locked, "token-make", boss, **fields)
    command(locked, "redeem", code=command(locked, "pair", boss, **fields)["code"])
    command(locked, "token-revoke", boss, **{"token-of": "rasp-3"})
    events = [e for e in command(locked, "history", boss)["events"] if "rasp-3" in e["detail"]]
    assert [(e["what"], e["user"]) for e in events] == [
        ("token made", "a admin"), ("pairing code made", "a admin"), ("token made", "a admin"),
        ("token revoked", "a admin"), ("token revoked", "a admin"),
    ]  # fmt: skip
    assert all(e["detail"] == "agent rasp-3 for rasp4" for e in events)


def test_farm_token_limits_hold(locked: RunningFarm) -> None:
    user = token(locked, "user", keys=["k"], most_leases=1)
    for want, class_, reason in (("other", "normal", "no-match"), ("k", "urgent", "class")):
        with pytest.raises(errors.FarmError) as caught:
            command(locked, "request", user, want=want, secret="s" * 32, **{"class": class_})
        assert caught.value.reason == reason


def test_farm_lease_commands_need_the_secret(locked: RunningFarm) -> None:
    ann, bob = token(locked, "user"), token(locked, "operator")
    view = command(locked, "request", ann, want="k", secret="s" * 32, hopeless=True)
    with pytest.raises(errors.FarmError, match="is of a user"):
        command(locked, "release", bob, lease=view["lease"])
    command(locked, "kick", bob, lease=view["lease"], why="because")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"null", b'{"do": 5}', b'{"do": "request"}', b'{"do": "next", "place": "x"}',
             b"[" * 100_000, b'{"do": "register", "place": "x", "keys": [5]}', b'{"do": "history", "limit": 1e999}',
             b"\xff", b'{"do": "request", "want": "k", "secret": "s", "ttl": NaN}']
)  # fmt: skip
def test_farm_api_refuses_malformed_requests(farm: RunningFarm, body: bytes) -> None:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        connection.request("POST", "/api", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert 400 <= answer.status < 500
        assert json.loads(answer.read())["error"]


def test_farm_api_refuses_cross_site_requests(farm: RunningFarm) -> None:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json", "Origin": "http://evil"}):
            connection.request("POST", "/api", b'{"do": "status"}', headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 403


def test_pairing_page_uses_its_code_only_when_confirmed(locked: RunningFarm) -> None:
    code = command(locked, "pair", token(locked, "admin"), **{"for": "phone", "role": "viewer"})["code"]
    for _ in range(2):
        status, text = get(locked, f"/pair?code={code}")
        assert status == 200
        assert code in text
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with contextlib.closing(http.client.HTTPConnection(locked.host, locked.port, timeout=20)) as connection:
        for status in (303, 403):
            connection.request("POST", "/pair", f"code={code}", form)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
            if status == 303:
                cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert get(locked, "/", Cookie=cookie)[0] == 200


def test_pairing_page_keeps_a_code_that_cannot_be_stored(locked: RunningFarm) -> None:
    code = command(locked, "pair", token(locked, "admin"), **{"for": "phone", "role": "viewer"})["code"]
    store: Any = locked.server.hub.store
    for value, status in (("on", 503), ("off", 303)):
        locked.do(partial(store._db.execute, f"PRAGMA query_only = {value}"))
        assert post(locked, "/pair", f"code={code}").status == status


@pytest.mark.parametrize("revoked", ["eve", "phone"])
def test_pairing_code_ends_with_the_tokens_of_its_maker_or_of_its_user(locked: RunningFarm, revoked: str) -> None:
    admin = token(locked, "admin")
    eve = command(locked, "token-make", admin, **{"for": "eve", "role": "admin"})["token"]
    code = command(locked, "pair", eve, **{"for": "phone", "role": "admin"})["code"]
    other = command(locked, "pair", admin, **{"for": "ann"})["code"]
    assert command(locked, "token-revoke", admin, **{"token-of": revoked})["revoked"] == 1 + (revoked == "eve")
    with pytest.raises(errors.FarmError) as caught:
        command(locked, "redeem", code=code)
    assert caught.value.reason == "code"
    assert command(locked, "redeem", code=other)["token"]


def post(farm: RunningFarm, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
    with contextlib.closing(http.client.HTTPConnection(farm.host, farm.port, timeout=20)) as connection:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", path, body, {**form, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://\xff"])
def test_farm_forms_of_other_sites_change_nothing(locked: RunningFarm, origin: str) -> None:
    ann = token(locked, "user")
    lease = command(locked, "request", ann, want="k", secret="s" * 32, hopeless=True)["lease"]
    code = command(locked, "pair", token(locked, "admin"), **{"for": "phone", "role": "viewer"})["code"]
    for path, body in (("/login", f"token={ann}"), ("/pair", f"code={code}"), ("/logout", ""),
                       (f"/lease/{lease}/release", "")):  # fmt: skip
        answer = post(locked, path, body, Origin=origin, Cookie=f"portcall-farm={ann}")
        assert (answer.status, answer.headers["Set-Cookie"]) == (403, None)
    assert command(locked, "status", ann)["waiting_total"] == 1
    assert post(locked, "/pair", f"code={code}").status == 303  # it was not used


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=B", "application/x-www-form-urlencoded; charset=hex", ""]
)
@pytest.mark.parametrize("path", ["/login", "/pair"])
def test_farm_forms_of_other_kinds_are_refused(locked: RunningFarm, path: str, kind: str) -> None:
    answer = post(locked, path, "--B\r\n\r\n%ff%ed%a0%80", **{"Content-Type": kind})
    assert answer.status == (401 if path == "/login" else 403)


@pytest.mark.parametrize("to", ["//evil.example", "/\\evil.example", "https://evil.example", "x", "/a\r\nX: y", ""])
def test_farm_login_leads_to_its_own_pages_alone(locked: RunningFarm, to: str) -> None:
    answer = post(locked, "/login", urlencode({"token": token(locked, "viewer"), "to": to}))
    assert answer.headers["Location"] == "/entered?to=/"


def test_farm_lease_is_released_by_its_user_and_kicked_by_operators_alone(locked: RunningFarm) -> None:
    ann, bob, boss = token(locked, "user"), token(locked, "viewer"), token(locked, "operator")
    lease = command(locked, "request", ann, want="k", secret="s" * 32, hopeless=True)["lease"]
    for who, what, status in (
        (bob, "release", 403), (boss, "release", 403), (ann, "kick", 403), (bob, "kick", 403), (boss, "kick", 400),
        ("", "release", 401),
    ):  # fmt: skip
        assert post(locked, f"/lease/{lease}/{what}", Cookie=f"portcall-farm={who}").status == status
    assert command(locked, "status", ann)["waiting_total"] == 1
    assert post(locked, f"/lease/{lease}/kick", "why=x", Cookie=f"portcall-farm={boss}").status == 303
    assert command(locked, "status", ann)["waiting_total"] == 0
    assert post(locked, "/lease/nothing/release", Cookie=f"portcall-farm={ann}").status == 404


def test_farm_live_pages_of_one_viewer_are_limited(locked: RunningFarm) -> None:
    viewer, other = token(locked, "viewer"), token(locked, "operator")
    with contextlib.ExitStack() as stack:
        for who, status in [*[(viewer, 200)] * _MOST_LIVE, (viewer, 429), (other, 200)]:
            connection = http.client.HTTPConnection(locked.host, locked.port, timeout=20)
            stack.enter_context(contextlib.closing(connection))
            connection.request("GET", "/events", headers={"Authorization": f"Bearer {who}"})
            assert connection.getresponse().status == status


def test_farm_answers_have_no_traces_of_mistakes(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("portcall.farm._log.FarmLog.__call__", lambda self, kind, text: said.append(text))
    farm.do(lambda: monkeypatch.setattr(farm.server.api.views, "status", lambda: 1 / 0))
    status, text = get(farm, "/")
    assert status == 500
    assert "ZeroDivision" not in text
    assert "ZeroDivisionError" in said[0]
    with pytest.raises(errors.FarmError) as caught:
        command(farm, "status")
    assert caught.value.reason == "internal"
