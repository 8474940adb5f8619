"""Options of security mean the same in a supervisor and in its child, and nobody is let in by mistake."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.main import app as commands
from penstock.config import Folder
from penstock.errors import BadRequestError, NoKeyError
from penstock.rights.credential import TokenOptions
from penstock.run import launch
from penstock.run.app_file import load
from penstock.run.security import OPEN, PROBE, Security, is_loopback, refuse_open
from penstock.run.terminal import Terminal

SHOP = "from penstock import App\napp = App('shop')\n"


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    monkeypatch.delenv(PROBE, raising=False)
    (tmp_path / "shop_launch.py").write_text(SHOP)
    loaded = load(str(tmp_path / "shop_launch.py"))

    def make(host="127.0.0.1", **options):
        return launch.Request(loaded, Folder(tmp_path / "data"), host, 8080, Security(**options))

    yield make
    os.environ.pop(PROBE, None)


def test_a_child_gets_the_same_options_as_absolute_names_of_files(request_for, monkeypatch):
    tokens = TokenOptions(Path("s"), Path("p"), Path("j"), "aud", "iss")
    security = {"tokens": tokens, "tls_cert": Path("c"), "tls_key": Path("k"), "cors": ("https://a.example", "*")}
    request = request_for(**security)
    command = launch._edge_plan(request, launch.DoorAddress(request), launch.EdgeProbe(lambda: None)).command()
    given = {}
    monkeypatch.setattr("penstock.run.lifecycle.die_with", lambda parent: None)
    monkeypatch.setattr("penstock.run.edge.run", lambda *arguments, **_: given.update(security=arguments[-1]))
    with pytest.raises(SystemExit):
        commands(command[command.index("edge") :], standalone_mode=True)
    here = Path.cwd()
    there = given["security"]
    assert there.tokens == TokenOptions(here / "s", here / "p", here / "j", "aud", "iss")
    assert (there.tls_cert, there.tls_key, tuple(there.cors)) == (here / "c", here / "k", ("https://a.example", "*"))
    assert launch.DoorAddress(request).url() == "https://127.0.0.1:8080"


def test_run_says_who_is_let_in_and_refuses_to_let_everybody_in(request_for):
    said = io.StringIO()
    terminal = Terminal(err=Console(file=said, width=400))
    with pytest.raises(NoKeyError):
        launch._secure(request_for("0.0.0.0"), terminal)
    launch._secure(request_for(), terminal)
    assert OPEN in said.getvalue()
    assert len(os.environ[PROBE]) == 64
    said.truncate(0)
    launch._secure(request_for("0.0.0.0", tokens=TokenOptions(jwks=Path("j")), tls="self"), terminal)
    assert OPEN not in said.getvalue()
    assert "SHA-256 " in said.getvalue()


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")),
        *((host, False) for host in ("0.0.0.0", "::", "", "192.0.2.1", "no such name")),
    ],
)
def test_what_is_loopback(host, here):
    assert is_loopback(host) is here
    refuse_open(host, False)
    if not here:
        with pytest.raises(NoKeyError):
            refuse_open(host, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_cert": Path("c")},
        {"tls_key": Path("k")},
        {"tls": "yes"},
        {"tls": "self", "tls_cert": Path("c"), "tls_key": Path("k")},
        {"cors": ("shop.example",)},
        {"cors": ("https://shop.example/page",)},
        {"cors": ("null",)},
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(BadRequestError):
        Security(**wrong)


def test_a_command_starts_without_what_only_servers_need():
    """Every one of these costs a tenth of a second, and more on a busy machine."""
    heavy = ("aiohttp", "jwt", "cryptography", "sqlglot", "uvloop", "pyspark")
    program = f"import sys, penstock.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
