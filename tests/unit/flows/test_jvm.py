from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import JavaError
from penstock.flows.engine import class_archive, jvm
from penstock.flows.engine.jvm import Jvm


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


def test_java_is_started_itself_where_the_options_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(class_archive, "launch_options", lambda: ["--add-opens=a/b=ALL-UNNAMED"])
    for name in jvm._OF_A_SPARK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", "/java")
    command = jvm._command(["-Xss64m"], {"spark.local.dir": "/a b"})
    assert command[0] == "/java/bin/java"
    assert command[-1].endswith("PythonGatewayServer")
    assert {"--add-opens=a/b=ALL-UNNAMED", "-Xss64m", "-Dspark.local.dir=/a b"} < set(command)


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_a_spark_of_somebodys_own_is_started_its_own_way(tmp_path, monkeypatch, name):
    monkeypatch.setattr(class_archive, "launch_options", list)
    monkeypatch.setenv(name, str(tmp_path))
    command = jvm._command(["-Xss64m", "-Dx=a b"], {})
    assert command[0].endswith("bin/spark-submit")
    assert 'spark.driver.extraJavaOptions=-Xss64m "-Dx=a b"' in command


@pytest.mark.parametrize(("given", "seen"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("C.UTF-8", "C.UTF-8")])
def test_java_can_name_any_folder_whatever_the_locale(tmp_path, monkeypatch, given, seen):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("LC_ALL", given)
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, f"echo $LC_ALL > {tmp_path}/locale"))
    Jvm.begin([]).end()
    assert (tmp_path / "locale").read_text().strip() == seen
