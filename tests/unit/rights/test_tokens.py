"""A token is believed when a key that we were given has signed it, in that key's algorithm, within its time."""

import base64
import hashlib
import hmac
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from playing import PlayedClock

from penstock.errors import SecretError
from penstock.observe.signals import JwksUnreadable
from penstock.rights.credential import TokenFault, TokenOptions
from penstock.rights.tokens import Tokens

SECRET = "a shared secret of at least 32 bytes"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)


def pem(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def jwk(key, kid, **more):
    return json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"} | more


@pytest.fixture
def clock():
    return PlayedClock()


@pytest.fixture
def made(tmp_path, clock):
    """Tokens by a shared secret, a public key and a JWKS file, each where the test wants it."""
    signals = []

    def make(*, secret=None, public=None, keys=None, **options):
        names = {"secret_file": secret and secret.encode(), "public_key": public}
        names["jwks"] = None if keys is None else json.dumps({"keys": keys}).encode()
        for name, content in names.items():
            if content is not None:
                (tmp_path / name).write_bytes(content)
                options[name] = tmp_path / name
        tokens = Tokens(TokenOptions(**options), clock, signals.append)
        return tokens

    make.signals = signals
    make.folder = tmp_path
    return make


def fault(tokens, token):
    with pytest.raises(TokenFault) as caught:
        tokens.credential(token)
    assert len(token) < 3 or token not in caught.value.text
    return caught.value.reason


def test_a_token_gives_its_subject_scopes_claims_and_end(made, clock):
    claims = {"sub": "ann", "scope": "openid read:orders write:*", "exp": clock.now_s + 60, "team": 7}
    found = made(secret=SECRET).credential(jwt.encode(claims, SECRET, "HS256"))
    assert (found.id, found.name, found.expires_us) == ("jwt/ann", "ann", (clock.now_s + 60) * 1_000_000)
    assert [str(scope) for scope in found.scopes] == ["read:orders", "write:*"]
    assert found.claims["team"] == 7


def test_scopes_may_be_a_list_and_anything_else_is_none(made):
    tokens = made(secret=SECRET)
    for scope, expected in ((["read:a", 5, "admin"], ["read:a", "admin"]), (5, []), (None, [])):
        found = tokens.credential(jwt.encode({"scope": scope}, SECRET, "HS256"))
        assert [str(one) for one in found.scopes] == expected


def test_time_is_judged_by_our_clock_also_for_a_token_that_was_seen_before(made, clock):
    tokens = made(secret=SECRET)
    token = jwt.encode({"exp": clock.now_s + 10, "nbf": clock.now_s + 100}, SECRET, "HS256")
    assert fault(tokens, token) == "early"
    token = jwt.encode({"exp": clock.now_s + 10, "nbf": clock.now_s + 20}, SECRET, "HS256")
    tokens.credential(token)
    clock.pass_s(10)
    assert fault(tokens, token) == "expired"


def test_a_public_key_is_never_a_shared_secret_and_none_is_no_algorithm(made):
    tokens = made(public=pem(RSA))
    tokens.credential(jwt.encode({"sub": "ann"}, RSA, "RS256"))
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(b'{"sub":"eve","scope":"admin"}').rstrip(b"=")
    signed = base64.urlsafe_b64encode(hmac.new(pem(RSA), header + b"." + body, hashlib.sha256).digest()).rstrip(b"=")
    assert fault(tokens, b".".join((header, body, signed)).decode()) == "unknown"
    assert fault(tokens, jwt.encode({"scope": "admin"}, None, "none")) == "unknown"
    assert fault(tokens, jwt.encode({"sub": "eve"}, OTHER_RSA, "RS256")) == "unknown"
    assert fault(tokens, jwt.encode({"sub": "eve"}, RSA, "RS512")) == "unknown"
    assert fault(tokens, "not.a.token") == "unknown"
    assert fault(tokens, "x") == "unknown"


def test_audience_and_issuer_are_asked_for_where_they_are_given(made):
    tokens = made(secret=SECRET, audience="penstock", issuer="https://id.example")
    good = {"aud": ["other", "penstock"], "iss": "https://id.example"}
    tokens.credential(jwt.encode(good, SECRET, "HS256"))
    for wrong in ({"aud": "other"}, {"iss": "https://evil.example"}, {"aud": None}):
        claims = {name: value for name, value in (good | wrong).items() if value is not None}
        assert fault(tokens, jwt.encode(claims, SECRET, "HS256")) == "unknown"
    made(secret=SECRET).credential(jwt.encode({"aud": "whoever"}, SECRET, "HS256"))


def test_keys_of_a_set_are_chosen_by_id_and_followed_when_the_file_changes(made, clock):
    tokens = made(keys=[jwk(RSA, "one"), jwk(OTHER_RSA, "enc", use="enc")])
    old = jwt.encode({"sub": "ann"}, RSA, "RS256", {"kid": "one"})
    new = jwt.encode({"sub": "ann"}, OTHER_RSA, "RS256", {"kid": "two"})
    tokens.credential(old)
    assert fault(tokens, new) == "unknown"
    file = made.folder / "jwks"
    file.write_text("{")
    clock.pass_s(1.5)
    tokens.credential(old)
    assert [type(signal) for signal in made.signals] == [JwksUnreadable]
    file.write_text(json.dumps({"keys": [jwk(OTHER_RSA, "two")]}))
    clock.pass_s(1.5)
    tokens.credential(new)
    assert fault(tokens, old) == "unknown"


def test_keys_of_an_unknown_kind_do_not_keep_the_others_of_a_set_away(made):
    strange = [{"kty": "XYZ", "kid": "x"}, jwk(OTHER_RSA, "o", alg="RSA-OAEP", use="sig"), {"kty": "EC", "crv": "P-1"}]
    tokens = made(keys=[*strange, jwk(RSA, "one")])
    tokens.credential(jwt.encode({"sub": "ann"}, RSA, "RS256", {"kid": "one"}))
    assert fault(tokens, jwt.encode({"sub": "ann"}, OTHER_RSA, "RS256", {"kid": "o"})) == "unknown"
    with pytest.raises(SecretError, match="no key that signs"):
        made(keys=strange)


@pytest.mark.parametrize(
    ("claims", "text"), [({"sub": 42}, "'sub' is not a text"), ({"jti": 1}, "'jti' is not a text")]
)
def test_what_is_wrong_with_a_claim_is_not_said_of_the_signature(made, claims, text):
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    signed = header + b"." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET.encode(), signed, "sha256")).rstrip(b"=")
    with pytest.raises(TokenFault, match=text):
        made(secret=SECRET).credential((signed + b"." + signature).decode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": "too short"},
        {"secret": pem(RSA).decode()},
        {"public": b"no key"},
        {"keys": [{"kty": "RSA"}]},
        {"secret_file": "nowhere"},
    ],
)
def test_files_that_hold_no_key_are_refused_at_start(made, wrong):
    wrong = {name: Path(value) if name == "secret_file" else value for name, value in wrong.items()}
    with pytest.raises(SecretError):
        made(**wrong)
