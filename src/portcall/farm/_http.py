# SPDX-License-Identifier: Apache-2.0
"""What a farm answers by HTTP: commands, pages, figures, health for orchestrators, WebSocket peers of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
from typing import Any

from aiohttp import web

from portcall.farm import _page
from portcall.farm._access import Token
from portcall.farm._api import Api, ApiError, News
from portcall.farm._connection import COOKIE, MOST_BODY, Connection, guard, same_origin, token_of
from portcall.farm._device_page import add_device_page
from portcall.farm._model import Event
from portcall.farm._relay import Relay
from portcall.farm._websocket import join

_REFRESH = 0.5  # seconds between two pictures of the farm on a page
_QUIET = 10.0  # seconds after which a page hears that the farm is there, though nothing happened
_MOST_EVENTS = 100_000
_PIECE = 1000  # events that are written at once
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(api: Api, relay: Relay, names: frozenset[str], npm_package: str = "") -> web.Application:
    """Return the application; ``names`` are those that it answers to."""
    app = web.Application(client_max_size=MOST_BODY, middlewares=[guard(api.access, names)])
    pages = Pages(api, relay)
    app.router.add_post("/api", pages.call)
    app.router.add_get("/ws", pages.websocket)
    app.router.add_get("/healthz", pages.healthy)
    app.router.add_get("/readyz", pages.ready)
    app.router.add_post("/login", pages.login)
    app.router.add_get("/pair", pages.show_pairing)
    app.router.add_post("/pair", pages.pair)
    for path, handler in (
        ("/", pages.overview),
        ("/place/{place}", pages.place),
        ("/history", pages.history),
        ("/history.csv", pages.history_file),
        ("/history.json", pages.history_file),
        ("/events", pages.events),
        ("/metrics", pages.metrics),
    ):
        app.router.add_get(path, handler)
    add_device_page(app, npm_package)
    return app


class Pages:
    """The handlers."""

    def __init__(self, api: Api, relay: Relay) -> None:
        self._api = api
        self._relay = relay
        self._figures = _page.Figures()
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

    def _viewer(self, request: web.Request) -> Token:
        """Return who looks on.

        Raises:
            HTTPUnauthorized: the page asks for a token.
        """
        token = token_of(request) or request.cookies.get(COOKIE, "")
        caller = self._api.access.caller(token, "page")
        if caller is None or not caller.may("status"):
            raise web.HTTPUnauthorized(text=_page.login(), content_type="text/html", headers=_HEADERS)
        return caller

    async def login(self, request: web.Request) -> web.Response:
        """Keep a token in a cookie of this browser."""
        token = str((await request.post()).get("token", ""))
        if not same_origin(request) or self._api.access.caller(token, "page") is None:
            raise web.HTTPUnauthorized(text=_page.login(), content_type="text/html", headers=_HEADERS)
        raise self._opened(request, token)

    async def show_pairing(self, request: web.Request) -> web.Response:
        """Ask whether this browser is to use a pairing code; looking at the page does not use it."""
        return web.Response(
            text=_page.pairing(request.query.get("code", "")), content_type="text/html", headers=_HEADERS
        )

    async def pair(self, request: web.Request) -> web.Response:
        """Turn a pairing code into a token, which this browser keeps."""
        code = str((await request.post()).get("code", ""))
        try:
            token = self._api.access.redeem(code) if same_origin(request) else ""
        except ValueError as error:
            raise web.HTTPForbidden(text=f"{error}\n") from None
        raise self._opened(request, token)

    def _opened(self, request: web.Request, token: str) -> web.HTTPSeeOther:
        answer = web.HTTPSeeOther("/")
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=request.secure)
        return answer

    async def overview(self, request: web.Request) -> web.Response:
        self._viewer(request)
        return _html("portcall farm", _page.overview(self._api.status()), live=True)

    async def place(self, request: web.Request) -> web.Response:
        self._viewer(request)
        id = request.match_info["place"]
        hub = self._api.hub
        events = await hub.history(place=id, limit=200)
        if id not in hub.state.places:
            raise web.HTTPNotFound(text=f"there is no place {id!r}\n")
        main = _page.place_page(self._api.view_place(hub.state.places[id]), events)
        return _html("portcall farm", main)

    async def history(self, request: web.Request) -> web.Response:
        self._viewer(request)
        return _html("portcall farm", _page.history(await self._api.hub.history(limit=500)))

    async def history_file(self, request: web.Request) -> web.StreamResponse:
        """Answer with the whole history, for other programs."""
        self._viewer(request)
        events = await self._api.hub.history(limit=_MOST_EVENTS)
        json_wanted = request.path.endswith(".json")
        answer = web.StreamResponse()
        answer.content_type = "application/json" if json_wanted else "text/csv"
        answer.charset = "utf-8"
        await answer.prepare(request)
        for begin in range(0, max(len(events), 1), _PIECE):  # each takes the loop for a moment only
            piece = events[begin : begin + _PIECE]
            text = _json_piece(piece, begin) if json_wanted else _csv_piece(piece, begin)
            await answer.write(text.encode())
            await asyncio.sleep(0)
        await answer.write_eof(b"]}" if json_wanted else b"")
        return answer

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send a picture of the farm whenever something has changed, as server-sent events."""
        self._viewer(request)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError, web.HTTPUnauthorized):
            while not self._api.hub.state.draining:
                self._viewer(request)  # a token that was revoked shows nothing more
                seen = self._changes
                picture = json.dumps(_page.overview(self._api.status()))
                await answer.write(f"data: {picture}\n\n".encode())
                await asyncio.sleep(_REFRESH)
                if seen == self._changes:
                    await self._news.wait(_QUIET)
        return answer


def _answer(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, content_type="application/json")


def _html(title: str, main: str, live: bool = False) -> web.Response:
    return web.Response(text=_page.page(title, main, live), content_type="text/html", headers=_HEADERS)


def _json_piece(events: list[dict[str, Any]], begin: int) -> str:
    before = ", " if begin else '{"events": ['
    return before + json.dumps(events)[1:-1]


def _csv_piece(events: list[dict[str, Any]], begin: int) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["number", "time", "what", "place", "lease", "user", "detail"])
    if not begin:
        writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in event.items()} for event in events)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
