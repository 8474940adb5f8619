"""What pip installs on a machine with Python and Java alone runs the demo and an app of one's own: no Node, no make.

`make test-wheel` builds the archives first. Everything here happens in an environment that knows nothing of this
checkout: a fresh venv, an empty home, an empty folder, and a PATH without what a user need not have.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks

DIST = ROOT / "dist"
ABSENT = ("node", "nodejs", "npm", "npx", "make", "gmake", "javac", "python", "python3", "penstock", "pip")
DEADLINE_S = 300.0
"""A first start takes 40 seconds of CPU."""


def archive(pattern: str) -> Path:
    (found,) = DIST.glob(pattern)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


def path_without(folder: Path, *absent: str) -> str:
    """A folder with links to every command of this machine but these."""
    folder.mkdir()
    for command in (c for path in os.environ["PATH"].split(os.pathsep) for c in Path(path).glob("*")):
        link = folder / command.name
        if command.name not in absent and not link.is_symlink():
            link.symlink_to(command)
    return str(folder)


@pytest.fixture(scope="module")
def env(place: Path) -> dict[str, str]:
    (place / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TZ")}
    return kept | {"HOME": str(place / "home"), "PATH": path_without(place / "bin", *ABSENT)}


@pytest.fixture(scope="module")
def penstock(place: Path) -> str:
    """The command of a fresh venv into which the wheel was installed."""
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    install = [place / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*install, "--constraint", ROOT / "constraints.txt", archive("*.whl")], check=True)
    return str(place / "venv/bin/penstock")


@contextmanager
def started(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """A `run` or `demo` that is ready: its address, and the file with what it said. In the end it is asked to stop."""
    folder.mkdir(exist_ok=True)
    said = folder.parent / f"{folder.name}.out"
    with said.open("w") as out:
        process = subprocess.Popen([*command, "--port", "0"], cwd=folder, env=env, stdout=out, stderr=out)
    try:
        yield until(lambda: address(said, process), f"{command} is ready"), said
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert "Traceback" not in said.read_text()
    finally:
        process.kill()
        process.wait()


def address(said: Path, process: subprocess.Popen[bytes]) -> str | None:
    lines = said.read_text().splitlines()
    assert process.poll() is None, lines
    return next((line.split()[1] for line in lines if line.startswith("ready http")), None)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if (value := condition()) is not None:
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


def get(url: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as reply:
        return bytes(reply.read())


def rows(url: str) -> list[Any]:
    found: list[Any] = json.loads(get(url))["rows"]
    return found


def test_both_archives_hold_the_page_and_the_demos_example() -> None:
    with zipfile.ZipFile(archive("*.whl")) as wheel, tarfile.open(archive("*.tar.gz")) as source:
        for names in (wheel.namelist(), [name.partition("/")[2] for name in source.getnames()]):
            assert {"penstock/serve/page/index.html", "penstock/cli/meetup/app.py", "penstock/py.typed"} <= set(names)
            assert any(name.startswith("penstock/serve/page/assets/") for name in names)
        assert not [entry.name for entry in source if entry.issym()]


def test_the_source_archive_gives_the_same_wheel_without_node(place: Path, env: dict[str, str]) -> None:
    made = place / "made"
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    without = os.environ | {"PATH": env["PATH"]}
    subprocess.run([*wheel, "--wheel-dir", made, archive("*.tar.gz")], check=True, env=without)
    with zipfile.ZipFile(archive("*.whl")) as ours, zipfile.ZipFile(next(made.glob("*.whl"))) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())


@pytest.mark.parametrize("verb", ["demo", "run", "check"])
@pytest.mark.parametrize("old", [False, True], ids=["no Java", "an old Java"])
def test_without_a_java_that_spark_can_use_there_is_one_clear_paragraph(
    tmp_path: Path, env: dict[str, str], penstock: str, verb: str, old: bool
) -> None:
    path = path_without(tmp_path / "bin", *ABSENT, "java")
    if old:
        java = tmp_path / "bin" / "java"
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        java.chmod(0o755)
    (tmp_path / "shop.py").write_text(blocks(ROOT / "README.md", "python")[0].code)
    command = [penstock, verb, *(["shop.py"] if verb != "demo" else [])]
    done = subprocess.run(command, cwd=tmp_path, env=env | {"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("no_java: ")
    assert ("is Java 11" if old else "no java on PATH") in done.stderr
    assert "What to do: install a JDK 17" in done.stderr
    assert done.stderr.count("\n") <= 3


def test_the_demo_shows_the_page_and_its_bars_move(place: Path, env: dict[str, str], penstock: str) -> None:
    with started([penstock, "demo"], place / "demo", env) as (url, said):
        page = get(url).decode()
        script = page.partition('src="')[2].partition('"')[0]
        assert len(get(f"{url}/{script.lstrip('./')}")) > 10_000
        first = until(lambda: rows(f"{url}/views/topics") or None, "the first rows")
        until(lambda: True if rows(f"{url}/views/topics") != first else None, "rows that moved")
        assert "penstock runs 'meetup'" in said.read_text()
    assert not list((place / "demo").iterdir()), "a demo leaves nothing in the folder that it was started in"


def test_an_app_of_ones_own_runs_in_an_empty_folder(place: Path, env: dict[str, str], penstock: str) -> None:
    folder = place / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(blocks(ROOT / "README.md", "python")[0].code)
    with started([penstock, "run", "shop.py"], folder, env) as (url, _):
        order = {"order_id": 1, "country": "NL", "amount": 12.5, "at": 1_700_000_000_000}
        ack = json.loads(get(f"{url}/streams/orders", order))["ack"]
        assert rows(f"{url}/views/countries?after={ack}&wait=60") == [{"country": "NL", "orders": 1, "turnover": 12.5}]
    assert {path.name for path in folder.iterdir()} <= {"shop.py", "__pycache__", ".penstock"}
