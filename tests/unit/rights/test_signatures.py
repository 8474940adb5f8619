"""A webhook is taken when its signature is that of its very bytes under our secret, and not too old."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from playing import PlayedClock
from standardwebhooks.webhooks import Webhook

from penstock import App, Event, signed
from penstock.errors import DeclarationError, SecretError, SignatureError
from penstock.rights.signatures import Signatures

SECRET = "whsec_" + base64.b64encode(b"our own secret, 24 bytes").decode()
BODY = b'{"amount": 1}'


class Order(Event):
    amount: int


class Hooks:
    def __init__(self, tmp_path, **env):
        (tmp_path / "hub").write_text("old secret\nnew secret\n")
        app = App("hooks")
        app.stream("standard", Order, signed=signed.standard(secret_env="STANDARD"))
        app.stream("github", Order, signed=signed.github(secret_file=str(tmp_path / "hub")))
        app.stream("stripe", Order, signed=signed.stripe(secret_env="STRIPE", tolerance="1 minute"))
        app.stream("plain", Order)
        self.clock, self.told = PlayedClock(), []
        self.application = app.declared()
        self.made = Signatures(
            self.application, self.clock, self.told.append, {"STANDARD": SECRET, "STRIPE": "stripe secret"} | env
        )

    def takes(self, stream, headers, body=BODY):
        before = len(self.told)
        try:
            credential = self.made.check(stream, headers, body)
        except SignatureError as error:
            shown = f"{error.paragraph()} {self.told[before].reason}"
        else:
            shown = ""
        assert not any(secret in shown for secret in (SECRET, "stripe secret", "new secret", "old secret"))
        if shown:
            return False
        assert credential.may("write", stream)
        assert not credential.may("write", "plain")
        assert not credential.may("read", stream)
        return True

    def standard(self, body=BODY, secret=SECRET, ahead_s=0):
        at = datetime.fromtimestamp(self.clock.now_s + ahead_s, UTC)
        headers = {"webhook-id": "m1", "webhook-timestamp": str(int(at.timestamp()))}
        return headers | {"webhook-signature": Webhook(secret).sign("m1", at, body.decode())}

    def stripe(self, body=BODY, secret=b"stripe secret", ahead_s=0):
        stamp = str(self.clock.now_s + ahead_s)
        digest = hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        return {"Stripe-Signature": f"t={stamp},v1={'0' * 64},v1={digest},v0=x"}


@pytest.fixture
def hooks(tmp_path):
    return Hooks(tmp_path)


def github(secret, body=BODY):
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()}


def test_each_style_takes_what_is_signed_and_nothing_else(hooks):
    assert "plain" not in hooks.made
    assert hooks.takes("standard", hooks.standard())
    assert hooks.takes("github", github(b"new secret"))
    assert hooks.takes("github", github(b"old secret"))
    assert hooks.takes("stripe", hooks.stripe())
    for stream, headers in (
        ("standard", hooks.standard()),
        ("github", github(b"new secret")),
        ("stripe", hooks.stripe()),
    ):
        assert not hooks.takes(stream, headers, BODY + b" ")
        for name in headers:
            assert not hooks.takes(stream, {key: value for key, value in headers.items() if key != name})
    assert not hooks.takes("standard", hooks.standard(secret="whsec_" + base64.b64encode(b"another").decode()))
    assert not hooks.takes("github", github(b"guess"))
    assert not hooks.takes("stripe", hooks.stripe(secret=b"guess"))


def test_one_of_several_signatures_is_enough(hooks):
    headers = hooks.standard()
    headers["webhook-signature"] = f"v1a,xyz v1,AAAA {headers['webhook-signature']} v2"
    assert hooks.takes("standard", headers)


def test_old_and_early_signatures_are_refused(hooks):
    assert hooks.takes("standard", hooks.standard(ahead_s=-300))
    assert not hooks.takes("standard", hooks.standard(ahead_s=-301))
    assert not hooks.takes("standard", hooks.standard(ahead_s=301))
    assert hooks.takes("stripe", hooks.stripe(ahead_s=-60))
    assert not hooks.takes("stripe", hooks.stripe(ahead_s=-61))


@pytest.mark.parametrize(
    ("stream", "headers"),
    [
        ("standard", {"webhook-id": "a", "webhook-timestamp": "x", "webhook-signature": "v1,a"}),
        ("standard", {"webhook-id": "a", "webhook-timestamp": "1700000000", "webhook-signature": "\xff\x00 v1,\xff"}),
        ("github", {"X-Hub-Signature-256": "sha256=\xe9"}),
        ("stripe", {"Stripe-Signature": "=,,t=1700000000,v1=\u0301"}),
        ("stripe", {"Stripe-Signature": "t=99999999999999999999,v1=a"}),
    ],
)
def test_odd_headers_are_wrong_signatures_and_no_errors_of_ours(hooks, stream, headers):
    assert not hooks.takes(stream, headers)
    assert not hooks.takes(stream, headers, b"\xff\xfe")


def test_a_missing_or_unreadable_secret_is_told_at_start_without_it(tmp_path):
    for env in ({"STANDARD": ""}, {"STANDARD": "not base64: $$$$"}):
        with pytest.raises(
            SecretError, match=r"test_signatures\.py:\d+: the secret of the stream 'standard'"
        ) as caught:
            Hooks(tmp_path, **env)
        assert "$$$$" not in caught.value.paragraph()


def test_declarations_show_the_name_of_a_secret_and_never_the_secret(hooks):
    shown = repr(hooks.application)
    assert "STRIPE" in shown
    assert SECRET not in shown
    assert "stripe secret" not in shown
    with pytest.raises(DeclarationError):
        signed.github()
    with pytest.raises(DeclarationError):
        signed.github(secret_env="A", secret_file="b")
