"""A key opens what its scopes say, for as long as it lasts, and what is kept of it opens nothing."""

import msgspec
import pytest
from playing import START_US

from penstock.errors import BadRequestError, ForbiddenError
from penstock.log.control import ControlMap
from penstock.rights.credential import ANONYMOUS, NOBODY, Credential
from penstock.rights.keys import KeyBook, make_key, stored
from penstock.rights.scope import ADMIN, Scope, known_scopes, parse_scope


def book(*records):
    memory: dict[str, object] = {}
    for record in records:
        memory |= stored(record)
    return KeyBook(ControlMap(memory | {"producer/orders/x": [0, 1, "t"]}))


def test_a_key_is_found_by_itself_alone_and_is_not_in_what_is_kept():
    key, record = make_key("shop", ("write:orders",), {"sub": "ann"}, START_US, None)
    other, _ = make_key("shop", ("write:orders",), {}, START_US, None)
    keys = book(record)
    found = keys.find(key, START_US)
    assert isinstance(found, Credential)
    assert (found.id, found.name, found.claims) == (f"key/{record.id}", "shop", {"sub": "ann"})
    assert keys.find(other, START_US) == "unknown"
    assert keys.find(key[:-1] + ("0" if key[-1] != "0" else "1"), START_US) == "unknown"
    assert keys.find("psk_", START_US) == "unknown"
    assert key not in repr(stored(record))
    assert key.rpartition("_")[2] not in repr(stored(record))
    assert len(key.rpartition("_")[2]) * 4 == 256


def test_a_key_ends_at_its_time_and_when_it_is_revoked():
    key, record = make_key("", ("read:*",), {}, START_US, START_US + 10)
    assert isinstance(book(record).find(key, START_US + 9), Credential)
    assert book(record).find(key, START_US + 10) == "expired"
    assert book(msgspec.structs.replace(record, revoked_us=1)).find(key, START_US) == "revoked"


@pytest.mark.parametrize(
    ("scope", "verb", "name", "may"),
    [
        ("read:orders", "read", "orders", True),
        ("read:orders", "read", "orders_eu", False),
        ("read:orders", "write", "orders", False),
        ("read:orders_*", "read", "orders_eu", True),
        ("read:orders_*", "read", "orders", False),
        ("read:*", "read", "dead", True),
        ("read:*", "read", "*", True),
        ("read:orders", "read", "*", False),
        ("read:*", "admin", "*", False),
        ("write:*", "read", "orders", False),
        ("admin", "write", "orders", True),
        ("admin", "admin", "*", True),
    ],
)
def test_what_a_scope_allows(scope, verb, name, may):
    credential = Credential("key/1", "k", (parse_scope(scope),))
    assert credential.may(verb, name) is may
    if not may:
        with pytest.raises(ForbiddenError, match=f"does not have the right {verb}"):
            credential.require(verb, name)


@pytest.mark.parametrize("text", ["", "*", "read", "read:", "delete:orders", "read:a*b", "Admin", "read: x", "admin:*"])
def test_what_is_no_scope_is_refused_for_a_key_and_means_nothing_in_a_token(text):
    with pytest.raises(BadRequestError):
        parse_scope(text)
    assert list(known_scopes([text, "admin"])) == [ADMIN]


def test_everybody_nobody_and_those_who_only_write():
    assert ANONYMOUS.may("admin")
    assert not NOBODY.may("read", "orders")
    assert not NOBODY.only_writes
    assert Credential("k", "k", (Scope("write", "a"), Scope("write", "*"))).only_writes
    assert not Credential("k", "k", (Scope("write", "a"), Scope("read", "a"))).only_writes
    assert not Credential("k", "k", (ADMIN,)).only_writes
