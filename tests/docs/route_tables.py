"""Writes the tables of docs/reference/http.md out of the table of routes: `make routes`.

A table stands between `<!-- routes -->` or `<!-- parameters: GET /views/{view} -->` and `<!-- end -->`; everything else
of the page is written by hand.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.collect import collect_routes
from penstock.route import Parameter, Route, Subject, schema_for
from penstock.serve.describe import serve_routes
from penstock.serve.webhooks import webhook_routes
from tests.docs.pages import ROOT

ROUTES = (*serve_routes.ROUTES, *collect_routes.ROUTES, *webhook_routes.ROUTES)
PAGE = ROOT / "docs" / "reference" / "http.md"
_BLOCK = re.compile(r"<!-- (routes|parameters)(?:: ([^>]+))? -->\n.*?<!-- end -->", re.DOTALL)
_NEEDS = {
    "open": "nothing",
    "any": "any credential",
    "some": "any right to read",
    "all": "`read:*`",
    "admin": "`admin`",
    "ack": "`write:` or `read:` of its stream",
}


def filled(text: str) -> str:
    """The page with its tables as they should be."""
    return _BLOCK.sub(lambda match: _block(match[0].partition("\n")[0], match[1], match[2]), text)


def _block(head: str, kind: str, request: str | None) -> str:
    if kind == "routes":
        lines = [
            "| request | needs | edge | |",
            "|---|---|---|---|",
            *(_route(route) for route in sorted(ROUTES, key=_place)),
        ]
    else:
        (route,) = [route for route in ROUTES if route.request == request]
        lines = ["| parameter | meaning |", "|---|---|", *(_parameter(p) for p in route.parameters if p.name)]
    return "\n".join([head, *lines, "<!-- end -->"])


def _place(route: Route) -> tuple[str, str]:
    return route.path, route.method


def _route(route: Route) -> str:
    thing = f"a {route.of}"
    words = route.summary.format(thing=thing, Thing=thing.capitalize())
    needs = _NEEDS.get(route.right) or f"`{route.right}:<{route.of}>`"
    return f"| `{route.request}` | {needs} | {'writing' if route.needs_writer else 'any'} | {words} |"


def _parameter(parameter: Parameter) -> str:
    name = f"`{parameter.name}`" + (f", `{parameter.also_called}`" if parameter.also_called else "")
    place = {"header": " (header)", "path": " (in the path)", "query": ""}[parameter.place]
    return f"| {name}{place} | {parameter.words} {_values(schema_for(parameter.schema, Subject()))} |".replace(
        "  |", " |"
    )


def _values(schema: dict[str, Any]) -> str:
    """Bounds, choices and default."""
    said = [f"one of {', '.join(f'`{value}`' for value in schema['enum'])}"] if "enum" in schema else []
    if "maximum" in schema:
        said.append(f"{schema['minimum']:,} to {schema['maximum']:,.0f}")
    if "default" in schema:
        default = schema["default"]
        said.append(f"default {default:,}" if isinstance(default, int) else f"default `{default}`")
    return f"({'; '.join(said)})" if said else ""


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
