# SPDX-License-Identifier: Apache-2.0
"""The farm's page in Chromium: who comes in and out, and what they do there, by pressing its buttons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from farm.browser import Browser
from farm.running import RunningFarm, running_farm

WIDTHS = [1280, 390]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(params=WIDTHS)
def browser(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A browser that knows no farm yet; the page neither fails nor is wider than the screen, and breaks no time."""
    chromium.resize(request.param)
    chromium.ask("Network.clearBrowserCookies")
    chromium.problems.clear()
    yield chromium
    chromium.until("document.documentElement.scrollWidth <= innerWidth")
    chromium.until("[...document.querySelectorAll('td time')].every((e) => e.getClientRects().length === 1)")
    assert chromium.problems == []
    chromium.open("about:blank")


@pytest.fixture
def locked() -> Iterator[RunningFarm]:
    with running_farm(require_tokens=True) as farm:
        yield farm


def token(farm: RunningFarm, role: str, user: str = "ann", **more: Any) -> str:
    return farm.do(lambda: farm.server.access.make("test", user=user, role=role, **more))


def url(farm: RunningFarm, path: str = "/") -> str:
    return f"http://{farm.host}:{farm.port}{path}"


def enter(browser: Browser, farm: RunningFarm, token: str, path: str = "/") -> None:
    browser.open(url(farm, path))
    browser.type("input[name=token]", token)
    browser.press("main button")


def lend(farm: RunningFarm, user: str, place: str = "b1") -> str:
    """Let a user have a place, for an hour."""

    def change() -> str:
        with farm.server.hub.turn() as state:
            state.register(place, ["rasp4"], {"gpu": "mali", "arch": "arm64", "ram": 4 << 30})
            lease = state.request("rasp4", user, secret=place * 16, ttl=3600, ceiling=3600)
            state.accepted(place, lease.fence)
            state.heard(lease.id)
            return str(lease.id)

    return farm.do(change)


def test_login_opens_the_page_that_was_wanted_and_logout_closes_it(browser: Browser, locked: RunningFarm) -> None:
    lend(locked, "bob")
    enter(browser, locked, token(locked, "viewer"), "/place/b1")
    browser.has("mali")
    assert browser.evaluate("location.pathname") == "/place/b1"
    browser.open(url(locked))
    browser.has("live")
    assert browser.evaluate("document.cookie") == ""  # no script sees the token
    browser.press("header button")
    browser.has("needs a token")
    browser.open(url(locked, "/history"))
    browser.has("needs a token")


def test_login_says_why_a_token_is_refused(browser: Browser, locked: RunningFarm) -> None:
    revoked, access = token(locked, "viewer", "eve"), locked.server.access
    locked.do(lambda: access.revoke("eve", "test"))
    for wrong, why in (
        ("guess", "is wrong"),
        (token(locked, "viewer", expires=1.0), "expired"),
        (revoked, "revoked"),
        (token(locked, "agent"), "role agent"),
    ):
        enter(browser, locked, wrong)
        browser.has(why)
        browser.has("needs a token")


def test_login_says_that_the_browser_keeps_no_cookies(browser: Browser, locked: RunningFarm) -> None:
    browser.open(url(locked, "/entered?to=/history"))  # where the login leads
    browser.has("keep cookies")


def test_page_tells_who_looks_on_that_the_token_was_revoked(browser: Browser, locked: RunningFarm) -> None:
    enter(browser, locked, token(locked, "viewer"))
    browser.has("live")
    locked.do(lambda: locked.server.access.revoke("ann", "test"))
    lend(locked, "bob")  # something happens
    browser.has("revoked")
    browser.until("document.querySelector('input[name=token]') !== null")


def test_pairing_lets_a_browser_in_once(browser: Browser, locked: RunningFarm) -> None:
    code = locked.do(lambda: locked.server.access.pair(by="boss", user="phone", role="viewer"))
    for said in ("live", "used already"):
        browser.open(url(locked, f"/pair?code={code}"))
        browser.press("main button")
        browser.has(said)


def test_release_button_gives_back_ones_own_lease_alone(browser: Browser, locked: RunningFarm) -> None:
    lend(locked, "bob", "b1")
    lend(locked, "ann", "b2")
    enter(browser, locked, token(locked, "user"))
    browser.has("b2")
    assert browser.evaluate("document.querySelectorAll('main button').length") == 1
    left = "document.querySelector('[data-left]').textContent"
    before = browser.evaluate(left)
    browser.until(f"{left} !== {before!r}")  # it counts down
    browser.press("main button")
    locked.until(lambda: "ann" not in {lease.user for lease in locked.state.leases.values()})
    browser.until("document.querySelectorAll('main button').length === 0")
    assert {lease.user for lease in locked.state.leases.values()} == {"bob"}


def test_operator_takes_a_place_back_with_a_reason(browser: Browser, locked: RunningFarm) -> None:
    lease = lend(locked, "bob")
    enter(browser, locked, token(locked, "operator"), f"/lease/{lease}")
    browser.type("input[name=why]", "demo at ten")
    browser.press("main button")
    browser.has("live")
    ended = [e for e in locked.do(lambda: locked.server.hub.store.history(lease=lease)) if e["what"] == "lease ended"]
    assert "demo at ten" in ended[0]["detail"]


@pytest.mark.parametrize("path", ["/history", "/place/b%20%252F%2F"])
def test_history_is_paged(browser: Browser, path: str) -> None:
    with running_farm() as farm:

        def happen() -> None:
            with farm.server.hub.turn() as state:
                state.register("b %2F/", ["k"])
                for number in range(118):
                    state.note(f"event {number}", place="b %2F/")

        farm.do(happen)
        rows = "[...document.querySelectorAll('table:not(.facts) tbody tr')].map((row) => row.cells[1].textContent)"
        browser.open(url(farm))
        browser.press("main a" if path != "/history" else "header > a")
        for first, last in ((117, 68), (67, 18)):
            browser.until(f"{rows}[0] === 'event {first}'")
            assert browser.evaluate(rows)[-1] == f"event {last}"
            assert len(browser.evaluate(rows)) == 50
            assert browser.evaluate("location.pathname") == path
            browser.press(".pages a:last-child")
        browser.until(f"{rows}.at(-1) === 'place registered'")
        assert browser.evaluate("document.querySelectorAll('.pages a').length") == 1
        browser.press(".pages a")
        browser.until(f"{rows}[0] === 'event 117'")


def test_page_of_a_farm_without_tokens_needs_no_login(browser: Browser) -> None:
    with running_farm() as farm:
        browser.ask("Network.setCookie", name="portcall-farm", value="of-another-farm", url=url(farm))
        lend(farm, "bob")
        browser.open(url(farm))
        browser.has("live")
        assert "log out" not in browser.text()
        browser.press("main button")
        browser.has("nobody has a place")


def test_forms_of_other_sites_change_nothing(browser: Browser, locked: RunningFarm) -> None:
    lease = lend(locked, "ann")
    enter(browser, locked, token(locked, "user"))
    browser.has("live")
    code = locked.do(lambda: locked.server.access.pair(by="boss", user="phone", role="viewer"))
    with running_farm() as other:  # its page is another origin, of the same site
        for action, field in (("/pair", code), ("/logout", ""), (f"/lease/{lease}/release", ""), ("/login", "x")):
            browser.open(url(other, "/healthz"))
            browser.evaluate(
                f"document.body.innerHTML = '<form method=post action={url(locked, action)}>"
                f"<input name=code value={field}><button>go</button></form>'"
            )
            browser.press("button")
            browser.has("another site")
    browser.open(url(locked))
    browser.has("live")  # still in
    assert [lease.user for lease in locked.state.leases.values()] == ["ann"]


def test_operator_keeps_a_place_out_of_use_with_a_reason(browser: Browser, locked: RunningFarm) -> None:
    lend(locked, "bob")
    enter(browser, locked, token(locked, "operator"), "/place/b1")
    browser.press("[data-copy]")
    browser.has("copied")
    browser.press("button[formaction$=quarantine]")  # the browser asks for a reason first
    browser.type("input[name=why]", "reboots <at> random")
    browser.press("button[formaction$=quarantine]")
    browser.has("reboots <at> random")
    browser.has("leased since")  # and not quarantined since
    assert locked.state.places["b1"].health == "quarantined"
    assert [lease.user for lease in locked.state.leases.values()] == ["bob"]  # it goes on
    browser.press("form[action$=drain] button")
    browser.has("hand out again")
    browser.press("form[action$=good] button")
    browser.until("document.querySelector('form[action$=good]') === null")
    place = locked.state.places["b1"]
    assert (place.health, place.drain) == ("good", True)
    browser.open(url(locked))
    browser.until("document.querySelectorAll('svg.day path.u0').length === 1")
    assert browser.evaluate("document.querySelector('svg.day title').textContent") == "in use by bob"


def test_names_that_attack_it_run_nothing_and_fit_the_screen(browser: Browser) -> None:
    with running_farm() as farm:
        evil = '"><img src=x onerror="window.hit=1"><script>window.hit=1</script>' + "\N{PILE OF POO}" * 20
        lend(farm, evil + "x" * 10_000, evil)
        farm.do(lambda: farm.state.set_health(evil, "maintenance", evil + "y" * 10_000))
        browser.open(url(farm))
        browser.has("live")
        browser.until("document.documentElement.scrollWidth <= innerWidth")
        browser.press("main a")
        browser.until("location.pathname.startsWith('/place/')")
        browser.until("document.querySelectorAll('svg.day path').length > 1")
        assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert browser.evaluate("typeof window.hit") == "undefined"
