# SPDX-License-Identifier: Apache-2.0
"""What a farm answers by HTTP: commands, health for orchestrators."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from portcall.farm._api import Api, ApiError
from portcall.farm._relay import Relay
from portcall.farm._websocket import join

_MOST_BODY = 1 << 20


def make_app(api: Api, relay: Relay) -> web.Application:
    """Return the application."""
    app = web.Application(client_max_size=_MOST_BODY)
    pages = Pages(api, relay)
    app.router.add_post("/api", pages.call)
    app.router.add_get("/ws", pages.websocket)
    app.router.add_get("/healthz", pages.healthy)
    app.router.add_get("/readyz", pages.ready)
    return app


class Pages:
    """The handlers."""

    def __init__(self, api: Api, relay: Relay) -> None:
        self._api = api
        self._relay = relay

    async def call(self, request: web.Request) -> web.Response:
        """Answer a command of portcall's clients, agents and command line."""
        try:
            command = json.loads(await request.text())
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
        return await join(self._relay, request)

    async def healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 503 while new requests are refused, or the store cannot be written."""
        hub = self._api.hub
        why = "draining" if hub.state.draining else hub.store_error
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)


def same_origin(request: web.Request) -> bool:
    """Return whether a request comes from a page of the farm, or from no page."""
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("Host")


def token_of(request: web.Request) -> str:
    """Return the token that a request carries, or an empty text."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _answer(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(value), status=status, content_type="application/json")
