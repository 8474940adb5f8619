"""Sockets to Spark's Python workers lie where somebody removes them, and never where Spark would refuse them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import plain
from penstock.flows import session
from penstock.flows.engine.scratch import Scratch


def _sockets(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    held = Scratch.make(place)
    monkeypatch.setattr(session, "scratch", lambda: held)
    monkeypatch.delenv(plain.VARIABLE, raising=False)
    try:
        return session._sockets()
    finally:
        held.remove()
        os.close(held.held)


def test_sockets_lie_in_the_scratch_folder(monkeypatch) -> None:
    settings = _sockets(Path("/tmp"), monkeypatch)
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.python.unix.domain.socket.dir"].startswith("/tmp/penstock-spark-")
    assert plain.given_up() == {}


def test_with_a_long_path_spark_keeps_to_tcp(tmp_path, monkeypatch) -> None:
    assert _sockets(tmp_path / ("x" * 60), monkeypatch) == {}
    assert "too long" in plain.given_up()["unix_sockets"]
