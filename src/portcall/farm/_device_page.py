# SPDX-License-Identifier: Apache-2.0
"""The page that makes a browser's tab a device, at /device: files of the npm package, which the farm serves.

Browsers let a page open connections to its own host only, so it is the proxy's host that serves it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from aiohttp import web

PAGE = "page/device.html"
_SERVED = re.compile(r"page/\w+\.html|build/src/(\w+/)*\w+\.js|core\.wasm")
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".wasm": "application/wasm"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Pages that share a process with no other page get a clock of 5 us instead of 100, where they are secure contexts.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_device_page(app: web.Application, package: str) -> None:
    """Serve the page.

    Args:
        package: the folder of the npm package; empty for none.
    """
    folder = Path(package) if package else None

    async def page(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(f"/device/{PAGE}?{request.query_string}")  # where its scripts are beside it

    async def file(request: web.Request) -> web.StreamResponse:
        if folder is None:
            raise web.HTTPNotFound(text="this farm has no page for devices: portcall farm --npm-package FOLDER\n")
        name = request.match_info["name"]
        path = folder / name
        if not _SERVED.fullmatch(name) or not os.path.isfile(path):  # False for names that no file can have, too
            raise web.HTTPNotFound(text=f"there is no file {name!r}\n")
        return web.FileResponse(path, headers={**_HEADERS, "Content-Type": _TYPES[path.suffix]})

    app.router.add_get("/device", page)
    app.router.add_get("/device/{name:.+}", file)
