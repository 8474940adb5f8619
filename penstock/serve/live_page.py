"""Serves the live page that `make setup` builds into `serve/page`, or says how to build it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from penstock.rights.guard import bind
from penstock.route import Route
from penstock.serve.describe.serve_routes import PAGE as _ROUTE

PAGE = Path(__file__).parent / "page"
_NOT_BUILT = (
    "Penstock is running. The live page is not built: `make setup` builds it, and archives of `make dist` have it.\n"
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; style-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Files under `assets/` have a hash of their content in their name."""


def add_page(app: web.Application, folder: Path = PAGE) -> None:
    """`/` and one route for each file that was built, so that no path can lead out of the folder."""
    index = folder / "index.html"
    if not index.is_file():
        bind(app, [_ROUTE], page=_not_built)
        return
    bind(app, [_ROUTE], page=_file(index, _HEADERS | {"Cache-Control": "no-cache"}))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != index:
            name = path.relative_to(folder).as_posix()
            cache = _FOR_EVER if name.startswith("assets/") else {"Cache-Control": "no-cache"}
            bind(app, [Route(f"GET /{name}", "open", "file")], file=_file(path, _HEADERS | cache))


async def _not_built(request: web.Request) -> web.Response:
    return web.Response(text=_NOT_BUILT)


def _file(path: Path, headers: dict[str, str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def send(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(path, headers=headers)

    return send
