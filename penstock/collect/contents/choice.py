"""Chooses how a body is read by what it says it is: JSON, lines, CSV, Arrow, or a CloudEvent around JSON."""

from __future__ import annotations

from penstock.collect.contents.arrow import decode_arrow
from penstock.collect.contents.cloudevents import decode_cloudevents
from penstock.collect.contents.csv import decode_csv
from penstock.collect.judging.admit import Judge
from penstock.collect.judging.arrival import Decoded
from penstock.collect.judging.cutting import Form


def decoded_as(judge: Judge, body: bytes, form: Form) -> Decoded:
    """Each event judged alone where it must be. Raises `BadBodyError` and `TooLargeError` for the body as a whole."""
    if form == "csv":
        return decode_csv(judge, body)
    if form == "arrow":
        return decode_arrow(judge, body)
    if form in ("cloudevent", "cloudevents"):
        return decode_cloudevents(judge, body)
    return judge.decode_apart(body, form)
