"""What a filter may ask of a date or a timestamp, in UTC: its parts, the days between, and the hour it lies in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from penstock.errors import BadQueryError
from penstock.views.where.sql_types import BIGINT, DATE, INT, LOCAL, STRING, TIMESTAMP, SqlType
from penstock.views.where.terms import Build, FilterScope, Term, call_text, coerced, expect, expect_whole, strict

_ALL: Final = (TIMESTAMP, LOCAL, DATE)
_CLOCK: Final = (TIMESTAMP, LOCAL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(scope: FilterScope, name: str, term: Term, *kinds: SqlType) -> Term:
    """An argument that is a time; a literal in quotes is read as one."""
    if term.type == STRING and term.is_const:
        term = coerced(scope, term, TIMESTAMP)
    return expect(name, term, *kinds)


def _part(source: str, *kinds: SqlType) -> Build:
    """A whole number out of a time, as a Python expression over `{}`."""

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        moment = _moment(scope, name, arguments[0], *kinds)
        return strict(INT, call_text(name, [moment]), f"({source.format(moment.source)})", moment, total=True)

    return build


def _day_of_year(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    moment = _moment(scope, name, arguments[0], *_ALL)
    source = f"{scope.reference(day_of_year)}({moment.source})"
    return strict(INT, call_text(name, [moment]), source, moment, total=True)


def day_of_year(moment: date) -> int:
    return moment.toordinal() - date(moment.year, 1, 1).toordinal() + 1


def _as_date(scope: FilterScope, name: str, term: Term) -> Term:
    """A date; of a timestamp its day in UTC."""
    if term.type == STRING and term.is_const:
        return coerced(scope, term, DATE)
    return coerced(scope, expect(name, term, DATE, TIMESTAMP, LOCAL), DATE)


def _to(target: SqlType) -> Build:
    """A conversion, as CAST has it; a string column may hold texts that are no time."""

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        (value,) = arguments
        expect(name, value, STRING, DATE, TIMESTAMP, LOCAL)
        term = coerced(scope, value, target)
        text = term.text if term.is_const else f"CAST({value.text} AS {target})"
        return Term(target, text, term.source, term.guards, const=term.const, safe=term.safe and value.type != STRING)

    return build


def _shifted(sign: int) -> Build:
    def shift(day: date, days: int) -> date:
        return day + timedelta(days=sign * days)

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        day, days = _as_date(scope, name, arguments[0]), expect_whole(name, arguments[1])
        source = f"{scope.reference(shift)}({day.source}, {days.source})"
        return strict(DATE, call_text(name, [day, days]), source, day, days)

    return build


def _days_between(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    """From the second to the first."""
    end, start = (_as_date(scope, name, argument) for argument in arguments)
    return strict(INT, call_text(name, [end, start]), f"({end.source} - {start.source}).days", end, start, total=True)


def _since_1970(unit: timedelta) -> Build:
    def count(moment: datetime) -> int:
        return (moment - _EPOCH) // unit

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        moment = _moment(scope, name, arguments[0], TIMESTAMP)
        source = f"{scope.reference(count)}({moment.source})"
        return strict(BIGINT, call_text(name, [moment]), source, moment, total=True)

    return build


def _from_1970(unit: timedelta) -> Build:
    def moment(count: int) -> datetime:
        return _EPOCH + count * unit

    def build(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
        count = expect_whole(name, arguments[0])
        return strict(TIMESTAMP, call_text(name, [count]), f"{scope.reference(moment)}({count.source})", count)

    return build


# Cutting off


def _truncated(scope: FilterScope, name: str, arguments: Sequence[Term]) -> Term:
    unit, moment = arguments
    cut = _CUTS.get(unit.const.lower()) if isinstance(unit.const, str) else None
    if cut is None:
        raise BadQueryError(
            f"'{name}' needs a unit in quotes as its first argument, not {unit.text}.",
            hint=f"Units: {', '.join(sorted(_CUTS))}.",
        )
    moment = coerced(scope, _moment(scope, name, moment, TIMESTAMP, LOCAL, DATE), TIMESTAMP)
    source = f"{scope.reference(cut)}({moment.source})"
    return strict(TIMESTAMP, call_text(name, [unit, moment]), source, moment, total=True)


def _cut(**fields: int) -> Callable[[datetime], datetime]:
    return lambda moment: moment.replace(**fields)  # type: ignore[arg-type]


_SECOND: Final = {"microsecond": 0}
_MINUTE: Final = {"second": 0, **_SECOND}
_HOUR: Final = {"minute": 0, **_MINUTE}
_DAY: Final = {"hour": 0, **_HOUR}
_MONTH: Final = {"day": 1, **_DAY}


def _week(moment: datetime) -> datetime:
    return moment.replace(**_DAY) - timedelta(days=moment.weekday())  # type: ignore[arg-type]


def _quarter(moment: datetime) -> datetime:
    return moment.replace(month=moment.month - (moment.month - 1) % 3, **_MONTH)  # type: ignore[arg-type]


_CUTS: Final[dict[str, Callable[[datetime], datetime]]] = {
    "second": _cut(**_SECOND),
    "minute": _cut(**_MINUTE),
    "hour": _cut(**_HOUR),
    "day": _cut(**_DAY),
    "week": _week,
    "month": _cut(**_MONTH),
    "quarter": _quarter,
    "year": _cut(month=1, **_MONTH),
}

TIME_FUNCTIONS: Final[dict[str, tuple[int, int, Any]]] = {
    "year": (1, 1, _part("{}.year", *_ALL)),
    "quarter": (1, 1, _part("({}.month + 2) // 3", *_ALL)),
    "month": (1, 1, _part("{}.month", *_ALL)),
    "weekofyear": (1, 1, _part("{}.isocalendar()[1]", *_ALL)),
    "day": (1, 1, _part("{}.day", *_ALL)),
    "dayofweek": (1, 1, _part("{}.isoweekday() % 7 + 1", *_ALL)),
    "weekday": (1, 1, _part("{}.weekday()", *_ALL)),
    "dayofyear": (1, 1, _day_of_year),
    "hour": (1, 1, _part("{}.hour", *_CLOCK)),
    "minute": (1, 1, _part("{}.minute", *_CLOCK)),
    "second": (1, 1, _part("{}.second", *_CLOCK)),
    "date_trunc": (2, 2, _truncated),
    "date_add": (2, 2, _shifted(1)),
    "date_sub": (2, 2, _shifted(-1)),
    "date_diff": (2, 2, _days_between),
    "to_date": (1, 1, _to(DATE)),
    "to_timestamp": (1, 1, _to(TIMESTAMP)),
    "unix_seconds": (1, 1, _since_1970(timedelta(seconds=1))),
    "unix_millis": (1, 1, _since_1970(timedelta(milliseconds=1))),
    "timestamp_seconds": (1, 1, _from_1970(timedelta(seconds=1))),
    "timestamp_millis": (1, 1, _from_1970(timedelta(milliseconds=1))),
}
"""By name: the fewest and the most arguments, and what makes the term."""
