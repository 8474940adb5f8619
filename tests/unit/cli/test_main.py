"""What a user sees of the command line: data on stdout, one paragraph on stderr, and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import JavaError

SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    amount: float
orders = app.stream("orders", Order)

@app.view(key="amount")
def totals(orders{extra}):
    return orders
"""


def penstock(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | env, check=False)


def shop(folder: Path, extra: str = "") -> Path:
    path = folder / "shop.py"
    path.write_text(SHOP.format(extra=extra))
    return path


def test_run_refuses_a_syntax_error_with_the_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("from penstock import App\napp = App(\n")
    done = penstock("run", path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "bad_app_file: broken.py:2: '(' was never closed\n"
        "  app = App(\n           ^\n"
        "  What to do: correct this line and try again\n"
    )


def test_run_names_every_wrong_declaration_and_starts_nothing(tmp_path):
    done = penstock("run", shop(tmp_path, ", ordres, users"), "--data", tmp_path / "data")
    assert done.returncode == 1
    assert "error shop.py:8: 'totals' reads 'ordres'" in done.stderr
    assert "'users'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_run_without_java_says_what_to_install(tmp_path):
    done = penstock("run", shop(tmp_path), PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.startswith("no_java: there is no java on PATH")
    assert "openjdk" in done.stderr


def test_check_without_java_still_tells_what_needs_none(tmp_path):
    done = penstock("check", shop(tmp_path, ", nope"), "--json", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    (problem,) = [p for p in json.loads(done.stdout)["problems"] if p["level"] == "error"]
    assert problem["code"] == "unknown_input"
    assert problem["place"] == {"file": str(tmp_path / "shop.py"), "line": 8}


def test_a_server_that_is_not_there_is_one_paragraph():
    done = penstock("status", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("unreachable: no server answers at http://127.0.0.1:1\n")


@pytest.mark.parametrize("words", [["fly"], ["run"], ["run", "app.py", "--port", "70000"], ["graph", "a.py", "--x"]])
def test_a_command_line_that_cannot_be_read_is_2(words):
    assert penstock(*words).returncode == 2


def test_verify_refuses_a_name_that_the_app_has_not(tmp_path):
    done = penstock("verify", shop(tmp_path), "--view", "nope")
    assert done.returncode == 1
    assert done.stderr.startswith("unknown_view: the app has no view or flow 'nope'")


def test_the_edge_and_the_graph_need_no_java_gateway():
    code = "import sys, penstock.cli.main, penstock.run.edge; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_nobody_expected_is_a_paragraph_that_names_the_trace(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("penstock.run.terminal.tempfile.gettempdir", lambda: str(tmp_path))

    def breaks() -> None:
        raise KeyError("lost")

    assert main.guarded(breaks) == 1
    said = capsys.readouterr().err
    assert said.startswith("internal: Penstock failed in a way that it does not know: KeyError: 'lost'\n")
    trace = next(tmp_path.iterdir())
    assert str(trace) in said
    assert "in breaks" in trace.read_text()


def test_an_error_of_ours_is_its_paragraph(capsys):
    def refuses() -> None:
        raise JavaError("no [java]", detail="a\nb", hint="install it")

    assert main.guarded(refuses) == 1
    assert capsys.readouterr().err == "no_java: no [java]\n  a\n  b\n  What to do: install it\n"
