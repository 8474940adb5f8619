"""`penstock dead`: letters are seen, mended and sent again, against a real edge, also one that is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.letter_replay import load_fix
from penstock.cli.letters import Letter
from penstock.cli.remote import Remote
from penstock.errors import AppFileError, UnreachableError

SHOP = """
from penstock import App, Event
app = App("shop")
class Order(Event):
    order_id: int
    country: str = "de"
app.stream("orders", Order)
app.stream("others", Order)
"""
FIX = """
def fix(letter):
    if letter.event is None:
        return None
    number = {"two": 2, "three": 3}.get(letter.event["order_id"])
    return letter.event | {"order_id": number or letter.event["order_id"]}

def fails(letter):
    raise KeyError("country")

def several(letter):
    return [{"order_id": 1}, '{"order_id": 2}']
"""


class Server:
    """An edge in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop_dead.py").write_text(SHOP)
        self.start()

    def start(self) -> None:
        address = self.folder / "data" / "run" / "edge.json"
        address.unlink(missing_ok=True)
        words = ["edge", self.folder / "shop_dead.py", "--data", self.folder / "data", "--port", 0]
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, words), "--parent", str(os.getpid())]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not address.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{json.loads(address.read_text())['port']}"

    def post(self, stream: str, *lines: str) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        request = urllib.request.Request(f"{self.url}/streams/{stream}", "\n".join(lines).encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            if refused.code != 422:
                raise

    def events(self, stream: str) -> list[Any]:
        with Remote(self.url) as remote:
            return [event["order_id"] for event in remote.get(f"/streams/{stream}", {"limit": 10_000})["events"]]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def dead(server: Server, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        code = main.guarded(lambda: main.app(["dead", *map(str, words), "--url", server.url], prog_name="penstock"))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_letters_are_listed_shown_mended_and_replayed_once(
    server: Server, dead: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    fix = tmp_path / "mend.py"
    fix.write_text(FIX)
    server.post("orders", '{"order_id": "two"}', "garbage", '{"order_id": "three"}')
    server.post("others", '{"order_id": "four"}')

    code, out, err = dead("list")
    assert code == 0
    assert "0-0" in out
    assert "wrong_type" in out
    assert '{"order_id": "two"}' in out
    assert "4 letters" in err
    assert [json.loads(line)["letter"] for line in dead("list", "--stream", "others", "--json")[1].splitlines()] == [
        "0-3"
    ]
    assert json.loads(dead("list", "--reason", "malformed", "--json")[1])["text"] == "garbage"
    assert dead("list", "--since", "1 hour", "--json")[1].count("\n") == 4
    assert dead("list", "--since", "2999-01-01", "--json")[1] == ""
    assert '"order_id": "two"' in dead("show", "0-0")[1]
    assert json.loads(dead("show", "0-0", "--json")[1])["event"] == {"order_id": "two"}
    assert "unknown_letter" in dead("show", "0-99")[2]

    code, out, err = dead("fix", fix, "--stream", "orders")
    assert '+ {"order_id":2}' in out
    assert "would be accepted" in err
    assert "1 left as they are" in err
    assert server.events("orders") == []
    assert code == 0

    code, out, err = dead("fix", fix, "--all", "--apply")
    assert server.events("orders") == [2, 3]
    assert "2 replayed" in err
    assert "1 rejected again" in err
    assert "expected int, found str" in out
    assert code == 1
    assert "1 left as they are; 1 rejected again" in dead("fix", fix, "--all", "--apply")[2]
    assert "were replayed before" in dead("fix", fix, "0-0", "--apply")[2]
    assert server.events("orders") == [2, 3]

    code, out, err = dead("replay", "--stream", "others", "--dry-run", "--json")
    assert (code, json.loads(out)["result"]) == (1, "rejected")
    assert "KeyError: 'country'" in dead("fix", f"{fix}:fails", "0-1")[1]
    assert "1 replayed" in dead("fix", f"{fix}:several", "0-1", "--apply")[2]
    assert server.events("orders") == [2, 3, 1, 2]
    assert "it is not said which letters are meant" in dead("replay")[2]
    assert "replayed" in dead("list", "--replayed")[1]
    assert "1 letters" in dead("list", "--not-replayed")[2]


def test_each_letter_is_replayed_once_though_the_server_is_killed(server: Server) -> None:
    """Kills at seeded moments while letters are replayed one request after another, repeated until all are done."""
    letters, random = 60, Random(4)
    server.post("orders", *['{"order_id": "x"}'] * letters)
    settled: set[int] = set()
    for kill in (True, True, False):
        timer = threading.Timer(random.uniform(0.01, 0.12), server.process.kill) if kill else None
        if timer:
            timer.start()
        try:
            with Remote(server.url) as remote:
                for number in range(letters):
                    body = json.dumps({"letters": [{"letter": f"0-{number}", "events": [{"order_id": number}]}]})
                    reply = remote.request("POST", "/dead/replay", body.encode(), {"Content-Type": "application/json"})
                    result = reply.body["letters"][0]["result"]
                    assert result == ("already_replayed" if number in settled else result)
                    settled.add(number)
        except UnreachableError:
            assert kill
        if timer:
            timer.join()
            server.process.wait(60)
            server.start()
    assert server.events("orders") == list(range(letters))


def test_what_is_wrong_with_the_users_file_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mend_wrong.py"
    with pytest.raises(AppFileError, match="there is no file"):
        load_fix(str(file))
    file.write_text("def fix(letter:\n")
    with pytest.raises(AppFileError, match=r"mend_wrong\.py:1"):
        load_fix(str(file))
    file.write_text("x = 1\n")
    with pytest.raises(AppFileError, match="no function 'fix'"):
        load_fix(str(file))


def test_what_was_sent_is_read_as_far_as_it_can_be() -> None:
    import gzip

    def sent(raw: bytes) -> Letter:
        return Letter("0-0", "orders", "bad_body", None, "", None, None, raw)

    assert sent(b'{"a": 1}').event == {"a": 1}
    assert sent(b"\xff{").text == "\\xff{"
    assert sent(b"\xff{").event is None
    assert sent(gzip.compress(b'{"a": 1}')).event == {"a": 1}
    assert sent(gzip.compress(b'{"a": 1}' * 9)[:30]).text != ""
