"""A self-made certificate is kept, private, good for loopback, and made anew when it no longer does."""

import datetime as dt
import ssl
import stat

import pytest

from penstock.errors import CertificateError
from penstock.rights.tls import LIFE_DAYS, Certificate, self_made


def test_it_is_made_once_and_belongs_to_its_owner(tmp_path):
    made = self_made(tmp_path / "tls", "127.0.0.1")
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700
    assert len(made.fingerprint()) == 95
    assert self_made(tmp_path / "tls", "127.0.0.1").fingerprint() == made.fingerprint()


def test_it_is_made_anew_before_it_ends_and_for_another_name(tmp_path):
    first = self_made(tmp_path, "127.0.0.1").fingerprint()
    named = self_made(tmp_path, "data.example").fingerprint()
    assert named != first
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=LIFE_DAYS - 20)
    assert self_made(tmp_path, "data.example", later).fingerprint() != named


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    one, other = self_made(tmp_path / "a", "127.0.0.1"), self_made(tmp_path / "b", "127.0.0.1")
    assert one.context().minimum_version == ssl.TLSVersion.TLSv1_2
    for cert, key in ((one.cert, other.key), (one.key, one.key), (tmp_path / "nowhere", one.key)):
        with pytest.raises(CertificateError):
            Certificate(cert, key).context()
