"""`run` refuses to start where it cannot work, and says what to install or to choose instead."""

import os
import socket
from pathlib import Path

import pytest

from penstock.errors import JavaError, PortInUseError
from penstock.run.preflight import check_java, check_port


def fake_java(folder: Path, says: str) -> Path:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_java")
def test_without_java_it_says_what_to_install():
    with pytest.raises(JavaError, match="no java on PATH") as caught:
        check_java()
    assert "openjdk-17" in (caught.value.hint or "")


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize(
    ("says", "version"),
    [('openjdk version "11.0.2" 2019-01-15', "11"), ('java version "1.8.0_402"', "8")],
)
def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path, monkeypatch, says, version):
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("PATH", str(java.parent))
    with pytest.raises(JavaError, match=f"is Java {version}; Spark needs 17"):
        check_java()


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16'])
def test_a_java_that_is_new_enough_is_taken(tmp_path, monkeypatch, says):
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("PATH", str(java.parent))
    assert check_java() == str(java)


@pytest.mark.usefixtures("no_java")
def test_a_jdks_own_file_tells_its_version_without_starting_it(tmp_path, monkeypatch):
    fake_java(tmp_path, "never asked")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="is Java 11"):
        check_java()


@pytest.mark.usefixtures("no_java")
def test_java_home_goes_first_as_in_spark(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", 'version "21"').parent))
    fake_java(tmp_path / "home", 'version "11.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaError, match="is Java 11"):
        check_java()


def test_a_java_home_without_java_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="there is no java in it"):
        check_java()


@pytest.mark.usefixtures("no_java")
def test_something_else_called_java_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, "hello").parent))
    with pytest.raises(JavaError, match="does not say its version"):
        check_java()


def test_a_taken_port_names_who_has_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is taken") as caught:
            check_port("127.0.0.1", port)
    assert f"process {os.getpid()} listens there" in (caught.value.detail or "")


def test_a_free_port_is_fine_and_stays_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)


def test_an_address_that_is_not_ours_is_refused():
    with pytest.raises(PortInUseError, match=r"cannot listen on 203\.0\.113\.1:8080"):
        check_port("203.0.113.1", 8080)


def test_a_host_that_nobody_knows_is_an_error_with_a_way_out():
    with pytest.raises(PortInUseError, match=r"cannot listen on nosuch\.invalid:8080") as caught:
        check_port("nosuch.invalid", 8080)
    assert "--host" in (caught.value.hint or "")
