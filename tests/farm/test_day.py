# SPDX-License-Identifier: Apache-2.0
"""The last day of places on the farm's page: pictures, use, wait, what may be done there, names that attack it."""

from __future__ import annotations

import html.parser
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from farm.running import RunningFarm, running_farm
from farm.test_pages import get, post, token
from portcall.farm._day import STEP, STEPS, Day, Doing, PlaceDay, use_of
from portcall.farm._day_page import Shown, span
from portcall.farm._model import Place

NOW = 1000 * STEP  # the end of a step
DAY = STEP * STEPS
ANN, BOB, IDLE = Doing("used", "ann"), Doing("used", "bob"), Doing("idle")


def event(at: float, what: str, place: str = "b", lease: str = "", user: str = "") -> dict[str, Any]:
    return {"time": at, "what": what, "place": place, "lease": lease, "user": user}


def lease(at: float, until: float, user: str) -> list[dict[str, Any]]:
    return [
        event(at, "lease offered", user=user), event(at, "place offered"), event(at, "place leased"),
        event(at, "lease active", user=user), event(until, "place cleaning"), event(until, "place idle"),
    ]  # fmt: skip


def place_day(events: list[dict[str, Any]], now: float = NOW, *places: Place, **users: str) -> PlaceDay:
    day = Day()
    day.begin(sorted(events, key=lambda each: each["time"]), places, users)
    found = day.place("b", now)
    assert found is not None
    return found


def test_day_of_a_place_has_its_leases_to_the_second() -> None:
    began = NOW - DAY / 2
    found = place_day([event(began, "place idle"), *lease(began + 700, began + 4000, "ann"),
                       *lease(NOW - 100, NOW - 90, "bob"), event(NOW - 40, "place offline")])  # fmt: skip
    assert found.seconds == {ANN: 3300, BOB: 10, IDLE: DAY / 2 - 3350, Doing("offline"): 40}
    assert use_of([found]) == pytest.approx(3310 / (DAY / 2 - 40))
    assert [(run.doing, run.last - run.first) for run in found.runs] == [
        (IDLE, 2), (ANN, 12), (IDLE, 130),
    ]  # fmt: skip


def test_day_of_a_place_to_which_nothing_happened_is_what_it_is_now() -> None:
    for place, doing in (
        (Place("b", state="idle"), IDLE), (Place("b", state="offline"), Doing("offline")),
        (Place("b", state="idle", drain=True), Doing("out")), (Place("b", state="leased"), ANN),
        (Place("b", state="idle", health="maintenance"), Doing("out")),
    ):  # fmt: skip
        found = place_day([], NOW + 1, place, b="ann")
        assert found.seconds == {doing: DAY - STEP + 1}
        assert [run.doing for run in found.runs] == [doing]


def test_day_of_a_place_knows_when_it_was_out_of_use() -> None:
    events = [event(NOW - 6000, "place registered"), event(NOW - 6000, "place idle")]
    found = place_day([
        *events, event(NOW - 5000, "place quarantined"), event(NOW - 4000, "place suspect"),
        event(NOW - 3000, "place drained"), event(NOW - 1000, "place back in use"),
    ])  # fmt: skip
    assert found.seconds == {IDLE: 3000, Doing("out"): 3000}
    retired = place_day(events, NOW, Place("b", state="idle", health="retired"))  # since before the first event
    assert retired.seconds == {Doing("out"): 6000}
    assert use_of([retired]) is None


def test_day_forgets_what_is_older_and_what_has_left() -> None:
    day = Day()
    day.begin([event(0, "place idle"), *lease(10, 20, "ann"), event(30, "lease queued", "", "x")], (), {})
    day.take(event(40, "lease active", "", "x"))
    assert day.median_wait(50) == (10, 1)
    assert day.median_wait(50 + DAY) is None
    later = day.place("b", 2 * DAY - 1)
    assert later is not None
    assert later.seconds == {IDLE: DAY - 1}
    day.take(event(3 * DAY, "place forgotten"))
    assert day.place("b", 3 * DAY) is None


def test_day_is_what_a_count_by_the_second_gives() -> None:
    draw = random.Random(3)
    for _ in range(20):
        at, events, users = NOW - DAY * 1.2, [], ["ann", "bob", *map(str, range(20))]
        while at < NOW:
            until = at + draw.choice([1, 30, 400, 9000])
            events += [event(at, "place idle")] if draw.random() < 0.3 else lease(at, until, draw.choice(users))
            at = until + draw.choice([0, 1, 200, 20000])
        events = [each for each in events if each["time"] < NOW]
        found, seconds, state, user = place_day(events), [0, 0], "", ""
        for second in range(int(NOW - DAY * 1.2), int(NOW)):
            while events and events[0]["time"] <= second:
                first = events.pop(0)
                state = first["what"] if first["what"].startswith("place") else state
                user = first["user"] or user
            if second >= NOW - DAY + STEP and state:
                seconds[state == "place idle"] += 1
        assert [found.total("used"), found.total("idle")] == pytest.approx(seconds)
        assert all(0 <= run.first < run.last <= STEPS for run in found.runs)
        assert all(a.last <= b.first for a, b in zip(found.runs, found.runs[1:], strict=False))


def test_day_of_a_busy_place_stays_small() -> None:
    day = Day()
    for second in range(0, int(2 * DAY), 20):
        for each in lease(second, second + 10, f"user {second % 7919}"):
            day.take(each)
        if second % 3600 == 0:
            day.place("b", second)
    found = day.place("b", 2 * DAY)
    assert found is not None
    assert use_of([found]) == pytest.approx(0.5, abs=0.01)
    track = day._tracks["b"]
    assert len(track.runs) + sum(map(len, track.steps.values())) <= STEPS * 14


def test_span_is_short() -> None:
    assert [span(s) for s in (0, 5.4, 60, 3600, 3 * 3600 + 20 * 60 + 5)] == ["0 s", "5 s", "1 min", "1 h", "3 h 20 min"]


def test_picture_tells_users_apart_and_says_who_they_are() -> None:
    day = Day()
    day.begin([event(0, "place idle"), *lease(1000, 5000, "ann"), *lease(6000, 9000, "<i>bob")], (), {})
    shown = Shown(day, ["b", "unknown"], DAY - 1)
    parts = dict(re.findall(r'<path class="(u\d)" d="[^"]*"><title>([^<]*)</title>', shown.picture("b")))
    assert sorted(parts.values()) == ["in use by &lt;i&gt;bob", "in use by ann"]
    assert len(parts) == 2
    assert len(re.findall("<title>", shown.picture("b", whole=True))) == 5
    assert "nothing is known" in shown.picture("unknown")
    assert shown.use("unknown") == ""


# ---- On the page ----


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


@pytest.fixture
def locked() -> Iterator[RunningFarm]:
    with running_farm(require_tokens=True) as farm:
        yield farm


def use(farm: RunningFarm, user: str, place: str = "b1", **tags: Any) -> None:
    """Let a user have a place for an hour, and wait a minute for it."""

    def change(what: str) -> None:
        with farm.server.hub.turn() as state:
            if what == "ask":
                state.request("k", user, ttl=9000, hopeless=True, ceiling=3600)
            elif what == "come":
                state.register(place, ["k"], tags)
                state.accepted(place, state.places[place].fence)
                state.heard(state.places[place].lease)
            else:
                state.cleaned(place, state.places[place].fence)

    for what, seconds in (("ask", 60.0), ("come", 3601.0), ("end", 1800.0)):
        farm.do(lambda what=what: change(what))  # type: ignore[misc]
        farm.pass_time(seconds)


def test_farm_page_shows_the_day_also_after_a_restart(tmp_path: Any) -> None:
    options = {"store": str(tmp_path / "farm.db")}
    with running_farm(**options) as farm:
        text = get(farm, "/")[1]
        assert "median wait" not in text
        use(farm, "ann")
        for _ in range(2):
            text = get(farm, "/")[1]
            assert "in use by ann" in text
            assert "<b>67&nbsp;%</b> use" in text
            assert "<b>1 min</b> median wait" in text
            get(farm, "/place/b1")


def test_farm_page_reads_the_day_out_of_the_store(farm: RunningFarm) -> None:
    use(farm, "ann")
    assert "in use by ann" in get(farm, "/place/b1")[1]
    use(farm, "bob", "b2")
    assert "in use by bob" in get(farm, "/")[1]


def test_place_page_has_the_facts_of_its_board_and_commands(farm: RunningFarm) -> None:
    facts = {"arch": "aarch64", "cores": 4, "ram": 4 << 30, "os": "linux", "kernel": "6.1", "libc": "glibc 2.36",
             "host": "rasp", "portcall": "0.1.0", "gpu": "mali"}  # fmt: skip
    use(farm, "ann", "b 1", **facts)
    rows = dict(re.findall(r'<td class="dim">([^<]*)</td><td>(.*?)</td>', get(farm, "/place/b%201")[1]))
    wanted = {"processor": "aarch64, 4 cores", "memory": "4.0 GiB", "system": "linux 6.1, glibc 2.36",
              "machine": "rasp", "version": "portcall 0.1.0", "tag gpu": "mali"}  # fmt: skip
    assert {name: rows[name] for name in wanted} == wanted
    assert {name for name in rows if name.startswith("tag ")} == {"tag gpu"}
    text = get(farm, "/place/b%201")[1]
    command = f"portcall farm reserve &#x27;place=&quot;b 1&quot;&#x27; --farm 127.0.0.1:{farm.port} --shell"
    assert f"<code>{command}</code>" in text


ACTIONS = ("drain", "undrain", "quarantine", "maintain", "good")


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("user", 403), ("operator", 303), ("admin", 303)])
def test_farm_page_lets_roles_change_places_as_the_command_line_does(
    locked: RunningFarm, role: str, status: int
) -> None:
    use(locked, "ann")
    cookie = f"portcall-farm={token(locked, role)}"
    before = locked.state.places["b1"].to_dict()
    text = get(locked, "/place/b1", Cookie=cookie)[1]
    assert [do for do in ACTIONS if f'/place/b1/{do}"' in text] == (
        ["drain", "quarantine", "maintain"] if status == 303 else []
    )
    for do in ACTIONS:
        assert post(locked, f"/place/b1/{do}", "why=x", Cookie=cookie).status == status
        place = locked.state.places["b1"]
        if status == 303:
            health = {"quarantine": "quarantined", "maintain": "maintenance", "good": "good"}.get(do, "unknown")
            assert (place.health, place.drain) == (health, do == "drain")
            last = locked.do(lambda: locked.server.hub.store.history(place="b1", limit=1))[0]
            assert (last["user"], last["detail"]) == (f"a {role}", "x" if "drain" not in do else "")
    if status == 403:
        assert locked.state.places["b1"].to_dict() == before


def test_farm_page_changes_no_place_for_strangers_other_sites_or_without_a_reason(locked: RunningFarm) -> None:
    use(locked, "ann")
    boss = f"portcall-farm={token(locked, 'admin')}"
    before = locked.state.places["b1"].to_dict()
    for do in ACTIONS:
        assert post(locked, f"/place/b1/{do}", "why=x").status == 401
        for origin in ("http://evil.example", "null"):
            assert post(locked, f"/place/b1/{do}", "why=x", Cookie=boss, Origin=origin).status == 403
        assert get(locked, f"/place/b1/{do}", Cookie=boss)[0] == 405
        assert post(locked, f"/place/none/{do}", "why=x", Cookie=boss).status == 404
    for do in ("quarantine", "maintain"):
        for why in ("", "why=", "why=+", f"why={'x' * 1001}", "why=%00"):
            assert post(locked, f"/place/b1/{do}", why, Cookie=boss).status == 400
    assert post(locked, "/place/b1/retire", "why=x", Cookie=boss).status == 404  # it is the command line's
    assert locked.state.places["b1"].to_dict() == before


# ---- Names that attack it ----

ATTACKS = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)", "</title><b>", "</svg>",
    "<!--", "]]>", "javascript:alert(1)", "&lt;script&gt;", "\N{PILE OF POO}" * 50, "\u202etxt.exe", "$(reboot)",
    "x'; reboot; '", "`reboot`", "a\\", "%2F..%2F", "b/drain", "<" * 10_000, "x" * 10_000,
    "</code><button formaction=//x>",
]  # fmt: skip
ELEMENTS = {
    "html", "meta", "title", "link", "style", "body", "header", "h1", "a", "span", "main", "script", "p", "b", "h2",
    "table",
    "thead", "tr", "th", "tbody", "td", "svg", "path", "time", "small", "i", "div", "code", "button", "form", "input",
}  # fmt: skip


class Reader(html.parser.HTMLParser):
    """Notes the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.targets |= {value or "" for name, value in attrs if name in ("href", "action", "formaction", "src")}


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.mark.parametrize("name", ATTACKS, ids=range(len(ATTACKS)))
def test_names_are_text_on_every_page(farm: RunningFarm, name: str) -> None:
    place = name[:200]  # longer ones are refused, as those of users
    use(farm, name, place, **{name: name, "arch": name, "ram": name, "cores": name, "os": name, "portcall": name})
    farm.do(lambda: farm.server.hub.state.set_health(place, "quarantined", name, name))
    use(farm, "ann", "plain")
    link = next(
        target for target in read(get(farm, "/")[1]).targets if target.startswith("/place/") and "plain" not in target
    )
    for path in ("/", link, "/history"):
        status, text = get(farm, path)
        page = read(text)
        assert (status, page.elements <= ELEMENTS) == (200, True)
        assert not {each for each in page.attributes if each.startswith("on") or each == "style"}
        assert all(target.startswith(("/", "?", "data:,")) and not target.startswith("//") for target in page.targets)
        assert text.count("<script>") == text.count("<title>portcall") + text.count(": portcall farm</title>") == 1
