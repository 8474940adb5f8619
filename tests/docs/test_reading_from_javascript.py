"""The examples of `docs/how-to/read-from-javascript.md` run against a real edge; the reference names every option."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from tests.built_client import CLIENT, built_client
from tests.docs.pages import ROOT, Block, blocks, page, section, table_codes
from tests.pretended import Pretended
from tests.unit.views.fake_flows import topic

HOW_TO = ROOT / "docs/how-to/read-from-javascript.md"
REFERENCE = "docs/reference/javascript.md"
SOURCE = CLIENT / "src/reader"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pretended]:
    built_client()
    edge = Pretended(tmp_path_factory.mktemp("reading"))
    for view, key in (("topics", ("topic",)), ("countries", ("topic",)), ("elsewhere", ("topic", "group"))):
        edge.build(view, key=key)
    edge.commit([topic("jazz", 42), topic("chess", 7), topic("go", 12)])
    edge.start()
    body = json.dumps({"topic": "jazz", "n": 3}).encode()
    post = urllib.request.Request(f"{edge.url}/streams/rsvps", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=60):
        yield edge
    edge.close()


EXPECTED = {
    "Rows that stay current": "2 topics at ",
    "Another filter, the same connection": "[ 'chess' ]",
    "Every batch, one after the other": "all rows: 3",
    "Events of a stream": "3 ",
    "Once, without following": "42\n",
    "A page that is opened again starts with what it knew": "live 3",
    "Keys": "3\n",
}


def heading(block: Block) -> str:
    above = block.path.read_text().splitlines()[: block.line]
    return next(line for line in reversed(above) if line.startswith("## ")).removeprefix("## ")


@pytest.mark.parametrize("flag", ["--experimental-websocket", "--no-warnings"])
@pytest.mark.parametrize("block", blocks(HOW_TO, "js"), ids=heading)
def test_the_examples_print_what_they_say(edge: Pretended, block: Block, flag: str) -> None:
    """With the WebSocket of Node, and without one."""
    done = subprocess.run(
        ["node", flag, "--input-type=module", "-"],
        input=block.code.replace("http://localhost:8080", edge.url).replace("limit: 20 }", "limit: null }"),
        cwd=CLIENT,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[heading(block)] in done.stdout


def interface(file: str, name: str) -> set[str]:
    """The names of the fields that an interface declares itself."""
    text = (SOURCE / file).read_text()
    found = re.search(rf"interface {name}\b[^{{]*{{\n(.*?)\n}}", text, re.DOTALL)
    assert found, name
    return set(re.findall(r"^  (?:readonly )?(\w+)\??:", found[1], re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "declared"),
    [
        ("Client", [("client.ts", "ClientOptions"), ("link.ts", "Timing")]),
        ("Questions", [("question.ts", "Question"), ("client.ts", "GetOptions")]),
        ("Watch", [("client.ts", "Following"), ("client.ts", "WatchOptions"), ("subscription.ts", "Manner")]),
        ("Live", [("client.ts", "LiveOptions"), ("subscription.ts", "Manner")]),
    ],
)
def test_every_option_is_documented(heading: str, declared: list[tuple[str, str]]) -> None:
    names = set().union(*(interface(*each) for each in declared)) - ({"name"} if heading == "Live" else set())
    text = section(page(REFERENCE), heading)
    options = "\n".join(table for table in text.strip().split("\n\n") if table.startswith("| option |"))
    assert table_codes(options) == names


def test_every_public_member_is_documented() -> None:
    for heading, file, kind in (
        ("Client", "client.ts", "Client"),
        ("Watch", "watch.ts", "Watch"),
        ("Live", "live.ts", "Live"),
    ):
        text = (SOURCE / file).read_text()
        body = text[text.index(f"export class {kind}") :]
        public = set(re.findall(r"^  (?:get |async |\*)?([a-z]\w*)[(<]", body.split("\n}\n")[0], re.MULTILINE))
        told = section(page(REFERENCE), heading)
        inherited = {"get", "has", "values", "keys", "entries", "forEach", "size"} if kind == "Live" else {"return"}
        for name in public - inherited - {"constructor"}:
            assert re.search(rf"`{name}[`(]", told), f"{kind}.{name}"


def test_the_defaults_are_those_of_the_code() -> None:
    text = section(page(REFERENCE), "Client")
    timing = re.search(r"TIMING: Timing = {([^}]*)}", (SOURCE / "client.ts").read_text())
    assert timing
    for name, ms in re.findall(r"(\w+): ([\d_]+)", timing[1]):
        assert f"| `{name}` | `{ms.replace('_', '')}` |" in text
