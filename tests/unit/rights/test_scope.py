from __future__ import annotations

import pytest

from penstock.errors import BadRequestError
from penstock.rights.credential import Credential
from penstock.rights.scope import parse_scope

SCOPES = "admin read:orders write:* read:a_* read:orders(a) read:orders(a,b_2,_id)"
NONE = """read read: read:a*b delete:x read:orders() read:orders(a read:orders(a,) write:orders(a) read:*(a) read:a_*(a)
read:orders(a)(b) read:orders(a)x read:(a) admin(a) Read:orders read:orders(a,(b))"""


@pytest.mark.parametrize("text", SCOPES.split())
def test_a_scope_is_written_as_it_was_read(text):
    assert str(parse_scope(text)) == text


@pytest.mark.parametrize(
    "text", ["", "read:a b", "read:\u0000", "read:orders(a\u00a0b)", "read:orders( a)", *NONE.split()]
)
def test_what_is_no_scope_is_refused(text):
    with pytest.raises(BadRequestError):
        parse_scope(text)


def test_columns_are_those_of_all_rights_to_it_together():
    def columns(*scopes: str) -> frozenset[str] | None:
        return Credential("k", "k", tuple(map(parse_scope, scopes))).columns("orders")

    assert columns("read:orders(a)", "read:orders(b)") == {"a", "b"}
    assert columns("read:orders(a)", "read:*") is None
    assert columns("read:orders(a)", "admin") is None
    assert columns("read:others", "write:orders") == frozenset()
    assert columns("read:orders(a)", "write:*") == {"a"}
