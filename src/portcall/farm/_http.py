# SPDX-License-Identifier: Apache-2.0
"""What a farm answers by HTTP: commands, pages, figures, health for orchestrators, WebSocket peers of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from aiohttp import web
from aiohttp.typedefs import Middleware

from portcall.farm import _page
from portcall.farm._access import Token
from portcall.farm._api import NOT_STORED, Api
from portcall.farm._command import ApiError
from portcall.farm._connection import COOKIE, MOST_BODY, Connection, guard, same_origin, token_of
from portcall.farm._dashboard import Dashboard
from portcall.farm._day_page import Shown
from portcall.farm._device_page import add_device_page
from portcall.farm._figures import Figures
from portcall.farm._kept import curves
from portcall.farm._model import Event
from portcall.farm._news import News
from portcall.farm._page_style import HEADERS
from portcall.farm._relay import Relay
from portcall.farm._store import StoreError
from portcall.farm._websocket import join

_REFRESH = 0.5  # seconds between two pictures of the farm on a page
_QUIET = 10.0  # seconds after which a page hears that the farm is there, though nothing happened
_MOST_EVENTS = 100_000
_SHOWN_EVENTS = 50  # on a page
_KEPT_EVENTS = 1000  # of a place, among which its figures are looked for
_MOST_LIVE = 20  # live pages of one viewer
_CHANGES = ("drain", "undrain", "quarantine", "maintain", "good")  # of a place
_WITH_WHY = ("quarantine", "maintain")  # which people read, as of the command line
_TO = re.compile(r"/(?![/\\])[^\s\\]*")  # where a page may lead after the login: on this farm


async def start_app(api: Api, relay: Relay, names: frozenset[str], npm_package: str = "") -> web.AppRunner:
    """Return what runs the application; ``names`` are those that it answers to."""
    check, pages = guard(api.access, names), Pages(api, relay)
    runner = web.AppRunner(_make_app(check, pages, npm_package), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    server = runner.server
    assert server is not None
    routed = server.request_handler

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        """Answer commands, which are most requests, without looking for the one of many pages that is wanted."""
        if request.path == "/api" and request.method == "POST" and "Expect" not in request.headers:
            assert isinstance(request, web.Request)
            return await check(request, pages.call)
        return await routed(request)

    server.request_handler = handle
    return runner


def _make_app(check: Middleware, pages: Pages, npm_package: str) -> web.Application:
    app = web.Application(client_max_size=MOST_BODY, middlewares=[check])
    app.router.add_post("/api", pages.call)
    app.router.add_get("/ws", pages.websocket)
    app.router.add_get("/healthz", pages.healthy)
    app.router.add_get("/readyz", pages.ready)
    app.router.add_post("/login", pages.login)
    app.router.add_get("/entered", pages.entered)
    app.router.add_post("/logout", pages.logout)
    app.router.add_get("/pair", pages.show_pairing)
    app.router.add_post("/pair", pages.pair)
    for path, handler in (
        ("/", pages.overview),
        ("/place/{place}", pages.place),
        ("/lease/{lease}", pages.lease),
        ("/history", pages.history),
        ("/history.csv", pages.history_file),
        ("/history.json", pages.history_file),
        ("/events", pages.events),
        ("/metrics", pages.metrics),
    ):
        app.router.add_get(path, handler)
    app.router.add_post("/lease/{lease}/{do:release|kick}", pages.end_lease)
    app.router.add_post(f"/place/{{place}}/{{do:{'|'.join(_CHANGES)}}}", pages.change_place)
    add_device_page(app, npm_package)
    return app


class Pages:
    """The handlers."""

    def __init__(self, api: Api, relay: Relay) -> None:
        self._api = api
        self._relay = relay
        self._figures = Figures()
        self._dashboard = Dashboard(api.hub)
        self._live: Counter[tuple[str, str]] = Counter()
        self._news = News()
        self._changes = 0
        api.hub.watchers.append(self._figures.watch)
        api.hub.watchers.append(self._on_events)

    def _on_events(self, events: list[Event]) -> None:
        self._changes += 1
        self._news.tell()

    # ---- Commands and health ----

    async def call(self, request: web.Request) -> web.Response:
        """Answer a command of portcall's clients, agents and command line."""
        try:
            command = json.loads((await request.read()).decode())
        except (ValueError, RecursionError):
            return _answer({"error": "the body is not JSON", "reason": "invalid"}, 400)
        if not isinstance(command, dict):
            return _answer({"error": "the body is not an object", "reason": "invalid"}, 400)
        if request.headers.get("Origin") or request.content_type != "application/json":
            # No page of another site, in a browser that can reach the farm, is to give commands.
            return _answer({"error": "commands do not come from pages", "reason": "origin"}, 403)
        try:
            return _answer(await self._api.call(command, token_of(request)))
        except ApiError as error:
            return _answer({"error": str(error), "reason": error.reason}, error.status)

    async def websocket(self, request: web.Request) -> web.StreamResponse:
        """Let a server or client of TVM, such as one in a browser, join the proxy."""
        if not same_origin(request):
            return web.Response(status=403, text="this page is of another site\n")
        connection = request.protocol
        assert isinstance(connection, Connection)
        return await join(self._relay, request, connection.guest)

    async def healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 503 while new requests are refused, or the store cannot be written."""
        hub = self._api.hub
        why = "draining" if hub.state.draining else "store" if hub.store_error else ""
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with figures for Prometheus."""
        self._viewer(request)
        hub = self._api.hub
        text = self._figures.text(hub.state, self._relay.passed, self._relay.pairs, hub.counts)
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return web.Response(body=text.encode(), headers={"Content-Type": kind})

    # ---- Pages ----

    def _viewer(self, request: web.Request) -> tuple[Token, str]:
        """Return who looks on, and the token.

        Raises:
            HTTPUnauthorized: the page asks for a token, and says why the one that came does not do.
        """
        access = self._api.access
        cookie = request.cookies.get(COOKIE, "")
        token = token_of(request) or (cookie if access.required else "")  # another farm of this host may have set it
        caller = access.caller(token, "page")
        if caller is not None and caller.may("status"):
            return caller, token
        raise web.HTTPUnauthorized(text=_page.login(self._why_not(token), _wanted(request)), **_AS_PAGE)

    def _why_not(self, token: str) -> str:
        """Return why a token does not open the pages; empty where there is none."""
        caller = self._api.access.caller(token, "page") if token else None
        if caller is not None:
            return f"the token is for the role {caller.role}, which may not look at these pages"
        return self._api.access.why_not(token) if token else ""

    async def login(self, request: web.Request) -> web.Response:
        """Keep a token in a cookie of this browser."""
        _check_origin(request)
        form = await _form(request)
        token, to = form.get("token", "").strip(), _local(form.get("to", ""))
        caller = self._api.access.caller(token, "page")
        if caller is None or not caller.may("status"):
            raise web.HTTPUnauthorized(text=_page.login(self._why_not(token) or "there was no token", to), **_AS_PAGE)
        raise _opened(request, token, to)

    async def entered(self, request: web.Request) -> web.Response:
        """Go on to what was wanted, if the browser has kept the cookie."""
        to = _local(request.query.get("to", ""))
        if COOKIE in request.cookies:
            raise web.HTTPSeeOther(to)
        why = "the browser has not kept the token: let it keep cookies of this page, and try again"
        raise web.HTTPUnauthorized(text=_page.login(why, to), **_AS_PAGE)

    async def logout(self, request: web.Request) -> web.Response:
        """Have this browser forget its token."""
        _check_origin(request)
        answer = web.HTTPSeeOther("/")
        answer.del_cookie(COOKIE)
        raise answer

    async def show_pairing(self, request: web.Request) -> web.Response:
        """Ask whether this browser is to use a pairing code; looking at the page does not use it."""
        return _html(_page.pairing(request.query.get("code", "")))

    async def pair(self, request: web.Request) -> web.Response:
        """Turn a pairing code into a token, which this browser keeps."""
        _check_origin(request)
        try:
            token = self._api.access.redeem((await _form(request)).get("code", ""))
        except ValueError as error:
            return _html(_page.refused(str(error)), 403)
        except StoreError:
            return _html(_page.refused(NOT_STORED), 503)
        raise _opened(request, token, "/")

    def _page(self, caller: Token, token: str, title: str, main: str, live: bool = False) -> web.Response:
        return _html(_page.page(title, main, live=live, user=f"{caller.user} ({caller.role})" if token else ""))

    async def _overview(self, caller: Token) -> str:
        day = await self._dashboard.update()
        status = self._api.views.status()
        shown = Shown(day, (place["place"] for place in status["places"]), status["now"])
        return _page.overview(status, lambda lease: self._may_release(caller, lease), shown)

    def _may_release(self, caller: Token, lease: Mapping[str, Any]) -> bool:
        return caller.may("release") and (not self._api.access.required or caller.user == lease["user"])

    async def overview(self, request: web.Request) -> web.Response:
        caller, token = self._viewer(request)
        return self._page(caller, token, "portcall farm", await self._overview(caller), live=True)

    async def place(self, request: web.Request) -> web.Response:
        caller, token = self._viewer(request)
        id = request.match_info["place"]
        hub = self._api.hub
        history = await self._history(request, place=id)
        day = await self._dashboard.update()
        if id not in hub.state.places:
            return _html(_page.refused(f"there is no place {id!r}"), 404)
        place = self._api.views.place(hub.state.places[id])
        may = {do: caller.may(do) for do in (*_CHANGES, "kick")} | {"release": self._may_release(caller, place)}
        shown = Shown(day, [id], hub.now())
        tls = " --tls-ca farm.crt" * request.secure
        kept = await hub.history(place=id, limit=_KEPT_EVENTS)
        main = _page.place_page(place, hub.now(), shown, _farm_of(request), tls, may) + curves(kept)
        return self._page(caller, token, f"{id}: portcall farm", main + history)

    async def lease(self, request: web.Request) -> web.Response:
        caller, token = self._viewer(request)
        try:
            lease = await self._api.call({"do": "lease", "lease": request.match_info["lease"]}, token)
        except ApiError as error:
            return _html(_page.refused(str(error)), error.status)
        main = _page.lease_page(lease, self._may_release(caller, lease), caller.may("kick"))
        return self._page(caller, token, "lease: portcall farm", main)

    async def end_lease(self, request: web.Request) -> web.Response:
        """Release the caller's lease, or take the place back from another user, with a reason."""
        _check_origin(request)
        _, token = self._viewer(request)
        command = {"do": request.match_info["do"], "lease": request.match_info["lease"], "user": "page"}
        try:
            await self._api.call({**command, "why": (await _form(request)).get("why", "")}, token)
        except ApiError as error:
            return _html(_page.refused(str(error)), error.status)
        raise web.HTTPSeeOther("/")

    async def change_place(self, request: web.Request) -> web.Response:
        """Drain or quarantine a place, or take it back into use."""
        _check_origin(request)
        _, token = self._viewer(request)
        do, id = request.match_info["do"], request.match_info["place"]
        why = (await _form(request)).get("why", "")
        if do in _WITH_WHY and not why.strip():
            return _html(_page.refused("give a reason, which others read"), 400)
        try:
            await self._api.call({"do": do, "place": id, "why": why, "user": "page"}, token)
        except ApiError as error:
            return _html(_page.refused(str(error)), error.status)
        raise web.HTTPSeeOther(f"/place/{quote(id, safe='')}")

    async def history(self, request: web.Request) -> web.Response:
        caller, token = self._viewer(request)
        return self._page(caller, token, "history: portcall farm", await self._history(request))

    async def _history(self, request: web.Request, **wanted: str) -> str:
        """Return a page of the history, up to the number that the request may give."""
        given = request.query.get("before", "")[:15]
        before = int(given) if given.isdecimal() else 0
        events = await self._api.hub.history(limit=_SHOWN_EVENTS + 1, before=before, **wanted)
        older = len(events) > _SHOWN_EVENTS
        return _page.history(events[older:], events[1]["number"] if older else 0, before > 0)

    async def history_file(self, request: web.Request) -> web.StreamResponse:
        """Answer with the whole history, for other programs."""
        self._viewer(request)
        json_wanted = request.path.endswith(".json")
        answer = web.StreamResponse()
        answer.content_type = "application/json" if json_wanted else "text/csv"
        answer.charset = "utf-8"
        await answer.prepare(request)
        out, between = io.StringIO(), ""
        writer = csv.DictWriter(out, ["number", "time", "what", "place", "lease", "user", "detail"])
        if json_wanted:
            out.write('{"events": [')
        else:
            writer.writeheader()
        async for page in self._api.hub.pages(_MOST_EVENTS):
            if json_wanted and page:
                out.write(between + json.dumps(page)[1:-1])
                between = ", "
            elif page:
                writer.writerows({name: _plain(value) for name, value in event.items()} for event in page)
            await answer.write(out.getvalue().encode())  # it waits for who does not read
            out.seek(0)
            out.truncate()
        await answer.write_eof((out.getvalue() + ("]}" if json_wanted else "")).encode())
        return answer

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send a picture of the farm whenever something has changed, as server-sent events."""
        caller, _ = self._viewer(request)
        viewer = caller.user, caller.hint
        if self._live[viewer] >= _MOST_LIVE:
            raise web.HTTPTooManyRequests(text=f"{caller.user} has {_MOST_LIVE} live pages already\n")
        self._live[viewer] += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        try:
            await answer.prepare(request)
            while not self._api.hub.state.draining:
                caller, _ = self._viewer(request)
                seen = self._changes
                await answer.write(f"data: {json.dumps(await self._overview(caller))}\n\n".encode())
                await asyncio.sleep(_REFRESH)
                if seen == self._changes:
                    await self._news.wait(_QUIET)
        except web.HTTPUnauthorized:  # the token counts no more: the page asks for another
            with contextlib.suppress(ConnectionError):
                await answer.write(b"event: over\ndata: token\n\n")
        except ConnectionError:
            pass
        finally:
            self._live[viewer] -= 1
            if not self._live[viewer]:
                del self._live[viewer]
        return answer


_JSON = {"Content-Type": "application/json; charset=utf-8"}
_AS_PAGE: Any = {"content_type": "text/html", "headers": HEADERS}


def _check_origin(request: web.Request) -> None:
    """Refuse a form that a page of another site has sent.

    Raises:
        HTTPForbidden: it is one; nothing has changed.
    """
    if not same_origin(request):
        why = f"this form came from a page of another site, {request.headers['Origin'][:100]!r}; nothing was done"
        raise web.HTTPForbidden(text=_page.refused(why), **_AS_PAGE)


async def _form(request: web.Request) -> dict[str, str]:
    """Return the fields of a form, as the farm's pages send them."""
    if request.content_type != "application/x-www-form-urlencoded":
        return {}
    return dict(parse_qsl((await request.read()).decode(errors="replace"), keep_blank_values=True))


def _wanted(request: web.Request) -> str:
    """Return the page to go to after the login."""
    return _local(request.path_qs) if request.method == "GET" and request.path != "/events" else "/"


def _farm_of(request: web.Request) -> str:
    """Return the farm's address as the viewer's browser has it."""
    host = request.host
    has_port = re.search(r":\d+$", host) is not None
    return host if has_port else f"{host}:{443 if request.secure else 80}"


def _local(to: str) -> str:
    return to if _TO.fullmatch(to) else "/"


def _opened(request: web.Request, token: str, to: str) -> web.HTTPSeeOther:
    """Return what has the browser keep a token, and go where it wanted to."""
    answer = web.HTTPSeeOther(f"/entered?{urlencode({'to': to})}")
    # Lax: who follows a link of another site to a page is known there. What changes something asks for the origin.
    answer.set_cookie(COOKIE, token, httponly=True, samesite="Lax", secure=request.secure)
    return answer


def _answer(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, headers=_JSON)


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, **_AS_PAGE)


def _plain(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
