"""A pattern comes from a stranger and must not stall the edge, so LIKE is not one regular expression.

The pattern is cut at each %, and each part is looked for once, from the left, in time linear in the value.
RLIKE is left out of the language for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from penstock.errors import BadQueryError
from penstock.views.where_arguments import expect
from penstock.views.where_implied import equals, has_prefix
from penstock.views.where_needs import Needs
from penstock.views.where_terms import Scope, Term, once, strict
from penstock.views.where_types import BOOLEAN, STRING


def like(scope: Scope, text: str, value: Term, pattern: str, escape: str) -> Term:
    """`value LIKE pattern`, as the cheapest Python that decides it."""
    alone = expect("LIKE", value, STRING)
    value, parts = once(scope, alone), like_parts(pattern, escape)
    source = _simple_like(value.source, parts)
    if source is None:
        source = f"{scope.reference(like_matcher(parts))}({value.source})"
    return replace(strict(BOOLEAN, text, source, value, total=True), needs=_needs(alone, parts))


def _needs(value: Term, parts: list[list[str | None]]) -> Needs:
    """What comes before the first wildcard, or the whole of a pattern without one."""
    first = parts[0]
    prefix = "".join(char for char in takewhile(lambda char: char is not None, first) if char)
    return equals(value, prefix) if len(parts) == 1 and None not in first else has_prefix(value, prefix)


def like_parts(pattern: str, escape: str) -> list[list[str | None]]:
    """The pattern cut at each %, a part being characters with None for _."""
    parts: list[list[str | None]] = [[]]
    at = iter(pattern)
    for char in at:
        if char == escape:
            char = next(at, "")
            if char not in ("%", "_", escape):
                raise BadQueryError(
                    f"In the pattern {pattern!r}, {escape!r} must stand before %, _ or itself.",
                    hint="Double it, or choose another character with ESCAPE.",
                )
            parts[-1].append(char)
        elif char == "%":
            parts.append([])
        else:
            parts[-1].append(None if char == "_" else char)
    return parts


def _simple_like(value: str, parts: list[list[str | None]]) -> str | None:
    """Python's own string tests, for a pattern without _ that has at most one word between % signs."""
    if any(None in part for part in parts):
        return None
    words = ["".join(filter(None, part)) for part in parts]
    if len(words) == 1:
        return f"({value} == {words[0]!r})"
    first, last, middle = words[0], words[-1], [word for word in words[1:-1] if word]
    if not middle:
        return _framed(value, first, last)
    return f"({middle[0]!r} in {value})" if len(middle) == 1 and not first and not last else None


def _framed(value: str, first: str, last: str) -> str:
    tests = [f"{value}.startswith({first!r})"] if first else []
    tests += [f"{value}.endswith({last!r})"] if last else []
    if first and last:
        tests.append(f"len({value}) >= {len(first) + len(last)}")
    return f"({' and '.join(tests) or 'True'})"


def like_matcher(parts: list[list[str | None]]) -> Callable[[str], bool]:
    """Takes each part at its leftmost place, which leaves most for the others: there is nothing to retry."""
    searches = [_part_pattern(part) for part in parts]
    sizes = [len(part) for part in parts]
    if len(parts) == 1:
        return lambda value: searches[0].fullmatch(value) is not None

    def matches(value: str) -> bool:
        end = len(value) - sizes[-1]
        if end < sizes[0] or not searches[0].match(value) or not searches[-1].match(value, end):
            return False
        at = sizes[0]
        for search in searches[1:-1]:
            found = search.search(value, at, end)
            if not found:
                return False
            at = found.end()
        return True

    return matches


def _part_pattern(part: Sequence[str | None]) -> re.Pattern[str]:
    return re.compile("".join("." if char is None else re.escape(char) for char in part), re.DOTALL)
