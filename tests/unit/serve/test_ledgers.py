"""What a ledger quotes is masked for who has no right to the stream itself."""

import base64

import pytest

from penstock import App, Event, Private
from penstock.errors import ForbiddenError
from penstock.serve.stream_reads import LedgerMask


class Order(Event):
    amount: int
    email: Private[str] = ""


class Plain(Event):
    amount: int


def made(*kinds: type[Event]) -> LedgerMask:
    app = App("shop")
    for kind in kinds:
        app.stream(kind.__name__.lower(), kind)
    return LedgerMask(app.declared())


def test_late_and_dead_events_are_quoted_without_private_fields():
    mask = made(Order, Plain)
    late = {"stream": "order", "event": '{"amount":1,"email":"ann"}', "flow": "f"}
    assert mask.shown("late", late) == late | {"event": '{"amount":1,"email":"***"}'}
    assert mask.shown("late", late | {"stream": "plain"}) == late | {"stream": "plain"}
    dead = {"stream": "order", "raw": base64.b64encode(b"not JSON: ann").decode()}
    assert base64.b64decode(mask.shown("dead", dead)["raw"]) == b"***"
    assert mask.shown("dead", {"raw": "YW5u"}) == {"raw": "***"}, "whose it is was not selected"
    assert mask.shown("order", {"stream": "order", "raw": "YW5u"})["raw"] == "YW5u"


def test_a_filter_cannot_find_out_what_is_masked():
    mask = made(Order)
    for name, where in (("dead", "cast(RAW as string) like '%ann%'"), ("late", "event like '%ann%'")):
        with pytest.raises(ForbiddenError):
            mask.check(name, where)
    mask.check("dead", "reason = 'wrong_type'")
    mask.check("order", "raw = 1")
    made(Plain).check("dead", "raw is null")
