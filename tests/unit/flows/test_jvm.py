"""Java is started by us where its options are known, and by PySpark everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import plain
from penstock.errors import JavaError
from penstock.flows.engine import class_archive, jvm
from penstock.flows.engine.jvm import Jvm


@pytest.fixture(autouse=True)
def _as_if_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Spark of somebody's own, and nothing of the environment changes for other tests."""
    for name in (plain.VARIABLE, "JAVA_HOME", *jvm._OF_A_SPARK):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")


def _command(folder: Path, name: str, script: str) -> Path:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    command = folder / "bin" / name
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return folder


def _own_spark(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    monkeypatch.setenv("SPARK_HOME", str(_command(folder, "spark-submit", script)))


def _our_java(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    monkeypatch.setattr(class_archive, "launch_options", lambda: ["--add-opens=a/b=ALL-UNNAMED"])
    monkeypatch.setenv("JAVA_HOME", str(_command(folder, "java", script)))


def test_java_is_started_itself_where_the_options_are_known(tmp_path, monkeypatch):
    _our_java(monkeypatch, tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/words; cat')
    Jvm.begin().end()
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-1].endswith("PythonGatewayServer")
    assert {"--add-opens=a/b=ALL-UNNAMED", "-Xss64m", "-XX:TieredStopAtLevel=1"} < set(words)


def test_a_jvm_ends_with_its_end_of_the_pipe(tmp_path, monkeypatch):
    _our_java(monkeypatch, tmp_path, f"cat; touch {tmp_path}/ended")
    Jvm.begin().end()
    assert (tmp_path / "ended").exists()


def test_where_our_java_fails_pyspark_starts_its_own(tmp_path, monkeypatch):
    _our_java(monkeypatch, tmp_path, "exit 3")
    submitted = []
    monkeypatch.setattr(Jvm, "_submit", lambda self: submitted.append(self._options))
    Jvm.begin().connect()
    assert len(submitted) == 1
    assert "exit code is 3" in plain.given_up()["launch"]


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_a_spark_of_somebodys_own_is_started_by_pyspark(tmp_path, monkeypatch, name):
    _our_java(monkeypatch, tmp_path, f"touch {tmp_path}/started")
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(Jvm, "_submit", lambda self: None)
    begun = Jvm.begin()
    begun.connect()
    assert not (tmp_path / "started").exists()
    assert plain.given_up()["launch"].startswith(f"{name} is set")


def test_without_javas_options_pyspark_starts_it(monkeypatch):
    monkeypatch.setattr(class_archive, "launch_options", lambda: None)
    monkeypatch.setattr(Jvm, "_submit", lambda self: None)
    Jvm.begin().connect()
    assert "warmup" in plain.given_up()["launch"]


def test_the_plain_way_gives_java_no_options_but_those_that_are_needed(tmp_path, monkeypatch):
    _our_java(monkeypatch, tmp_path, f"touch {tmp_path}/started")
    monkeypatch.setenv(plain.VARIABLE, "1")
    submitted = []
    monkeypatch.setattr(Jvm, "_submit", lambda self: submitted.append(self._options))
    Jvm.begin().connect()
    assert [option.partition("=")[0] for option in submitted[0]] == ["-Xss64m", "-Djava.io.tmpdir"]
    assert plain.given_up() == {}


def _submit_in_a_process(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """PySpark keeps what it has started in its classes."""
    code = "from penstock.flows.engine.jvm import Jvm; Jvm.begin().connect()"
    home = str(_command(folder, "spark-submit", script))
    env = {**os.environ, "SPARK_HOME": home, plain.VARIABLE: "1", **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


def test_a_jvm_that_ends_before_it_is_ready_is_an_error_of_ours(tmp_path):
    ended = _submit_in_a_process(tmp_path, f"echo $LC_ALL > {tmp_path}/locale; exit 3", LC_ALL="C")
    assert JavaError.__name__ in ended.stderr
    assert "JAVA_GATEWAY_EXITED" in ended.stderr
    assert (tmp_path / "locale").read_text().strip() == "C.UTF-8"  # so that it can name any folder


@pytest.mark.parametrize(("given", "seen"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("C.UTF-8", "C.UTF-8")])
def test_java_can_name_any_folder_whatever_the_locale(tmp_path, monkeypatch, given, seen):
    monkeypatch.setenv("LC_ALL", given)
    _our_java(monkeypatch, tmp_path, f"echo $LC_ALL > {tmp_path}/locale")
    Jvm.begin().end()
    assert (tmp_path / "locale").read_text().strip() == seen
    assert os.environ["LC_ALL"] == given
