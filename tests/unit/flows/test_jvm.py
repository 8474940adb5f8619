from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import JavaError
from penstock.flows.jvm import Jvm


def spark_home(tmp_path: Path, script: str) -> str:
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    return str(tmp_path)


def test_a_jvm_that_ends_before_it_is_ready_is_told_with_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, "exit 3"))
    with pytest.raises(JavaError) as told:
        Jvm.begin([]).connect()
    assert "3" in (told.value.detail or "")


def test_a_jvm_ends_with_its_end_of_the_pipe(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, f"cat; touch {tmp_path}/ended"))
    Jvm.begin([]).end()
    assert (tmp_path / "ended").exists()
