"""Sockets to Spark's Python workers lie where somebody removes them, and never where Spark would refuse them."""

from __future__ import annotations

from pathlib import Path

from penstock.flows.session import _sockets


def test_sockets_lie_in_the_nurserys_folder() -> None:
    settings = _sockets(Path("/tmp/penstock-python-abc"))
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.python.unix.domain.socket.dir"] == "/tmp/penstock-python-abc"


def test_without_a_folder_or_with_a_long_path_spark_keeps_to_tcp() -> None:
    assert _sockets(None) == {}
    assert _sockets(Path("/tmp") / ("x" * 60)) == {}
