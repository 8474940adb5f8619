"""Whatever is written to a log, no secret is in it."""

import logging
import sys

import pytest

from penstock.rights.keys import make_key
from penstock.rights.redaction import RedactingFormatter, redacted

KEY = make_key("", (), {}, 0, None, bytes)[0]
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize("secret", [KEY, TOKEN, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
def test_no_secret_survives(secret):
    for text in (
        f"GET /streams/visits/pixel.gif?page=1&key={secret}&x=2 HTTP/1.1",
        f"b'GET /?key={secret}'",
        f"Authorization: Bearer {secret}",
        f"('Authorization', 'Bearer {secret}')",
        f"{secret}",
        f"penstock send orders --key {secret} file",
    ):
        assert secret not in redacted(text)
    assert redacted("GET /streams/visits?limit=5") == "GET /streams/visits?limit=5"


def test_stack_traces_are_redacted_too():
    try:
        raise ValueError(f"cannot read {KEY}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "bad %s", (KEY,), sys.exc_info())
    text = RedactingFormatter("%(message)s").format(record)
    assert KEY.rpartition("_")[2] not in text
    assert "ValueError" in text
