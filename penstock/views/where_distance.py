"""Whoever looks for what is near a place compares distances, which Spark's SQL has no function for.

`distance(lat, lon, lat, lon)` is the great-circle distance in kilometres (haversine, mean radius of the earth). In
kilometres, because that is how people say "near": `distance(venue.lat, venue.lon, 59.91, 10.75) < 25`. A latitude
outside -90..90 or a longitude outside -180..180 is not a place: the row fails and is counted, NaN gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.views.where_arguments import call_text, expect_number
from penstock.views.where_implied import expression
from penstock.views.where_terms import Scope, Term, coerced, strict
from penstock.views.where_types import DOUBLE

EARTH_KM: Final = 6371.0088
"""Mean radius (IUGG)."""
KM_PER_DEGREE: Final = EARTH_KM * math.pi / 180


def distance(scope: Scope, name: str, arguments: Sequence[Term]) -> Term:
    """The term of a call. With one place written out, a bound on the distance bounds the other's latitude."""
    terms = [coerced(scope, expect_number(name, argument), DOUBLE) for argument in arguments]
    source = f"{scope.reference(great_circle_km)}({', '.join(term.source for term in terms)})"
    term = strict(DOUBLE, call_text(name, terms), source, *terms)
    for there, here in ((terms[:2], terms[2:]), (terms[2:], terms[:2])):
        on = expression(there[0])
        if on and here[0].is_const and not here[0].is_null:
            return replace(term, centre=(on, here[0].const, KM_PER_DEGREE))
    return term


def great_circle_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Raises `ValueError` for what is not a place.

    >>> round(great_circle_km(59.9139, 10.7522, 60.3913, 5.3221))
    305
    """
    if lat1 != lat1 or lon1 != lon1 or lat2 != lat2 or lon2 != lon2:
        return math.nan
    if not (-90 <= lat1 <= 90 and -180 <= lon1 <= 180 and -90 <= lat2 <= 90 and -180 <= lon2 <= 180):
        raise ValueError("not a latitude and a longitude")
    one, two = math.radians(lat1), math.radians(lat2)
    across = math.sin(math.radians(lon2 - lon1) / 2) ** 2
    part = math.sin((two - one) / 2) ** 2 + math.cos(one) * math.cos(two) * across
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, part)))
