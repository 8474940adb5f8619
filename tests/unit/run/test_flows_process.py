"""The main of the flows process, without a Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Folder
from penstock.declaration import Application
from penstock.run import flows


class Ended(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> flows._Flows:
    def gone() -> object:
        raise ConnectionError("nobody answers")

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(flows, "_jvm", gone)
    monkeypatch.setattr(flows.os, "_exit", end)
    monkeypatch.setattr(flows, "DYING_S", 0.01)
    return flows._Flows(Application("shop", "f"), Folder(tmp_path), "free")


def test_a_process_whose_jvm_has_died_ends_and_says_why(
    process: flows._Flows, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ended, match="1"):
        process._ask_jvm()
    assert "the JVM does not answer any more" in caplog.text


@pytest.mark.parametrize("why", ["_asked", "_done"])
def test_a_process_that_ends_anyway_says_nothing_of_its_jvm(
    process: flows._Flows, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    setattr(process, why, True)
    process._ask_jvm()
    assert caplog.text == ""
