"""A real edge process with keys, tokens and TLS: the command line changes its keys, and no secret is left anywhere."""

import hashlib
import hmac
import io
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import urlsplit

import jwt
import pytest

from penstock.cli.key_verbs import hand_over
from penstock.cli.main import app, guarded
from penstock.cli.remote import Remote
from penstock.config import Folder
from penstock.errors import CertificateError, NotTakenError, PenstockError
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import make_key
from penstock.run.exit_codes import USER_ERROR
from penstock.run.probe import EdgeProbe
from penstock.run.security import OPEN, PROBE

SHOP = """
from penstock import App, Event, Private, signed
app = App("shop")
class Order(Event):
    amount: int
    email: Private[str] = ""
app.stream("orders", Order)
app.stream("hooks", Order, signed=signed.github(secret_env="HOOK_SECRET"))
"""
SALES = """
class Sale(Event):
    user_id: str
    amount: int = 0
sales = app.stream("sales", Sale, visible_where="user_id = :sub")
app.channel("large", sales, where="amount > 10", select=["amount"])
@app.view(key="user_id", visible_where="user_id = ANY(:users)")
def totals(sales):
    return sales.groupBy("user_id").count()
"""
HOOK = "hook-secret-5f1c"
TOKEN_SECRET = "token-secret-of-at-least-32-bytes-77aa"
SUPERVISOR = "supervisor-secret-31c9"
PERSON = "ann-9b1e@example.org"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class World:
    """An app file, its data folder, and whatever runs on them."""

    def __init__(self, folder: Path) -> None:
        self.file, self.data = folder / "shop_secure.py", folder / "data"
        self.file.write_text(SHOP)
        self.log = folder / "edge.log"
        self.env = os.environ | {"HOOK_SECRET": HOOK, PROBE: SUPERVISOR}
        self.edges: list[subprocess.Popen[bytes]] = []

    def penstock(self, *words: object, **env: str) -> Done:
        """A verb as the console script runs it, in this process: a new one takes a second."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, self.env | env | {"COLUMNS": "300"}):
            code = guarded(lambda: app([str(word) for word in words], prog_name="penstock"))
        return Done(code, out.getvalue(), err.getvalue())

    def keys(self, verb: str, *words: object) -> Done:
        return self.penstock("keys", verb, self.file, "--data", self.data, *words)

    def key(self, *words: object) -> str:
        done = self.keys("create", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def edge(self, *words: object) -> subprocess.Popen[bytes]:
        (self.data / "run" / "edge.json").unlink(missing_ok=True)
        words = ("edge", self.file, "--data", self.data, "--port", 0, "--parent", os.getpid(), *words)
        command = [sys.executable, "-m", "penstock.cli.main", *map(str, words)]
        with self.log.open("ab") as log:
            self.edges.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.env))
        return self.edges[-1]

    def url(self) -> str:
        address = self.data / "run" / "edge.json"
        deadline = time.monotonic() + 30
        while not address.exists():
            assert self.edges[-1].poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        where = json.loads(address.read_text())
        return f"{where['scheme']}://127.0.0.1:{where['port']}"

    def remote(self, key: str | None = None) -> Remote:
        return Remote(self.url(), key, self.data / "tls" / "cert.pem" if (self.data / "tls").exists() else None)

    def code(self, key: str | None, method: str = "GET", path: str = "/status", body: bytes | None = None, **more: str):
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        with self.remote(key) as remote:
            reply = remote.request(method, path, body, headers)
            return reply.error().code if reply.status >= 400 else reply.status


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for edge in made.edges:
        edge.kill()
        edge.wait()


def test_a_server_for_other_machines_needs_a_key_and_keys_need_no_server(world):
    child = world.edge("--host", "0.0.0.0")
    assert child.wait(60) == USER_ERROR, "a supervisor must not try again"
    refused = json.loads((world.data / "run" / "edge.error.json").read_text())
    assert refused["code"] == "no_key"
    assert refused["message"].startswith("--host 0.0.0.0 would open this server")
    assert "penstock keys create" in refused["hint"]
    assert not (world.data / "run" / "edge.json").exists()

    key = world.key("--scope", "read:*", "--scope", "write:orders", "--name", "ops", "--claim", "sub=ann")
    expiring = json.loads(world.keys("create", "--scope", "admin", "--expires", "30 days", "--json").stdout)
    assert expiring["expires"] > expiring["created"]
    slip = world.keys("create", "--scope", "write:ordres")
    assert "no stream, view or channel 'ordres'" in slip.stderr
    assert world.keys("create", "--scope", "wirte:orders").stderr.startswith(
        "bad_request: 'wirte:orders' is not a scope"
    )
    listed = json.loads(world.keys("list", "--json").stdout)["keys"]
    assert [(k["name"], k["scopes"], k["claims"], k["state"]) for k in listed[:1]] == [
        ("ops", ["read:*", "write:orders"], {"sub": "ann"}, "valid")
    ]
    assert key not in world.keys("list").stdout
    assert world.keys("revoke", "nobody").stderr.startswith("unknown_key")

    world.edge("--host", "0.0.0.0")
    assert world.code(key) == 200
    assert world.code(None) == "unauthorized"
    assert OPEN not in world.log.read_text()


def test_keys_have_claims_columns_and_limits_and_a_ticket_outlives_its_edge(world):
    world.file.write_text(SHOP + SALES)
    ann = world.key("--scope", "read:sales", "--scope", "read:large", "--claim", "sub=ann", "--connections", "3")
    writer, slow = (
        world.key("--scope", "write:*"),
        world.key("--scope", "write:*", "--rate", "1/hour", "--name", "till"),
    )
    listed = world.key("--scope", "read:totals(user_id)", "--claim", "users=ann", "--claim", "users=bob")
    for words, said in (
        (("--scope", "read:totals(count)"), "leaves out the key of the view, user_id"),
        (("--scope", "read:sales", "--rate", "often"), "is not a rate"),
        (
            (
                "--scope",
                "read:sales()",
            ),
            "is not a scope",
        ),
        (("--scope", "read:sales", "--claim", "sub"), "is not a claim"),
    ):
        assert said in world.keys("create", *words).stderr
    bodies = {k["name"]: k for k in json.loads(world.keys("list", "--json").stdout)["keys"]}
    assert bodies["till"]["rate"] == "1/hour"
    assert {"users": ["ann", "bob"]} in [body["claims"] for body in bodies.values()]
    shown = world.keys("list").stdout
    assert all(text in shown for text in ("sub=ann", "users=ann users=bob", "1/hour", "3 connections"))

    world.edge("--key-rate", "1000/s", "--key-connections", "7", "--max-connections", "500")
    for user in ("ann", "bob"):
        sale = json.dumps({"user_id": user, "amount": 50}).encode()
        assert world.code(writer, "POST", "/streams/sales", sale, Content_Type="application/json") == 200
    assert world.code(listed, path="/streams/sales") == "forbidden"
    with world.remote(ann) as remote:
        assert [e["user_id"] for e in remote.get("/streams/sales")["events"]] == ["ann"]
        assert [e["amount"] for e in remote.get("/channels/large")["events"]] == [50]
        ticket = remote.request("POST", "/tickets", b'{"channel": "large"}', {}).body["ticket"]
    world.code(slow, "POST", "/streams/sales", b"{}", Content_Type="application/json")
    assert world.code(slow, "POST", "/streams/sales", b"{}", Content_Type="application/json") == "too_many"

    world.edges[-1].kill()
    world.edges[-1].wait()
    world.edge()
    with socket.create_connection((urlsplit(world.url()).hostname, urlsplit(world.url()).port)) as raw:
        raw.settimeout(60)
        raw.sendall(f"GET /channels/large/events?ticket={ticket} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        said = b""
        while b"data:" not in said:
            said += raw.recv(65_536)
    assert b" 200 " in said
    assert world.keys("revoke", bodies[next(n for n, b in bodies.items() if b["connections"])]["id"]).returncode == 0
    assert world.code(None, path=f"/channels/large/events?ticket={ticket}") == "unauthorized"
    assert ticket.split(".")[2] not in world.log.read_text()


def test_a_running_edge_follows_at_once_and_a_stopped_one_is_told_of(world):
    edge = world.edge()
    assert world.code(None) == 200
    assert OPEN in world.log.read_text()
    key, record = make_key("phone", ("read:*",), {}, 1, None)
    folder = Folder(world.data)
    hand_over(folder, "shop", Instruction("create", record.id, record))
    assert world.code(key) == 200
    assert world.code(None) == "unauthorized"

    os.kill(edge.pid, signal.SIGSTOP)
    _, late = make_key("late", ("read:*",), {}, 1, None)
    for instruction in (Instruction("create", late.id, late), Instruction("revoke", record.id, at_us=5)):
        with pytest.raises(NotTakenError, match="did not take the instruction"):
            hand_over(folder, "shop", instruction, wait_s=0.3)
    os.kill(edge.pid, signal.SIGCONT)
    deadline = time.monotonic() + 60
    while world.code(key) != "unauthorized":
        assert time.monotonic() < deadline, "what was to be revoked must be, once the edge is back"
    assert [k["name"] for k in json.loads(world.keys("list", "--json").stdout)["keys"]] == ["phone"]

    edge.kill()
    edge.wait()
    hand_over(folder, "shop", Instruction("create", late.id, late))
    assert len(json.loads(world.keys("list", "--json").stdout)["keys"]) == 2


def test_an_edge_over_tls_is_probed_and_talked_to_and_leaves_no_secret_behind(world, tmp_path):
    (tmp_path / "token-secret").write_text(TOKEN_SECRET)
    edge = world.edge("--tls", "self", "--jwt-secret-file", tmp_path / "token-secret", "--cors", "https://shop.example")
    assert world.url().startswith("https://")
    assert stat.S_IMODE((world.data / "tls" / "key.pem").stat().st_mode) == 0o600
    with pytest.raises(CertificateError, match="not trusted"), Remote(world.url()) as stranger:
        stranger.get("/status")

    key, writer = world.key("--scope", "read:*", "--scope", "write:*"), world.key("--scope", "write:orders")
    token = jwt.encode({"sub": "ann", "scope": "read:orders"}, TOKEN_SECRET, "HS256")
    ca = ("--url", world.url(), "--ca", world.data / "tls" / "cert.pem")
    (tmp_path / "events").write_text(json.dumps({"amount": 1}) + "\n")
    assert world.penstock("send", "orders", tmp_path / "events", *ca, PENSTOCK_KEY=key).returncode == 0
    seen = world.penstock("tail", "orders", "--no-follow", "--since", "start", *ca, "--key", token)
    assert json.loads(seen.stdout)["amount"] == 1
    unsent = world.penstock("send", "orders", tmp_path / "events", *ca, PENSTOCK_KEY=token)
    assert unsent.stderr.startswith("forbidden: 'ann' does not have the right write:orders")
    assert world.penstock("status", *ca).stderr.startswith("unauthorized:")

    probe = EdgeProbe(lambda: ("127.0.0.1", int(world.url().rpartition(":")[2])), secret=SUPERVISOR, tls=True)
    probe.start()
    deadline = time.monotonic() + 60
    while not (probe.ready and probe.pulse()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    probe.close()

    use_every_secret(world, key, writer, token)
    with world.remote(key) as remote:
        remote._connection.request("GET", "/metrics", headers=remote._shown)
        metrics = remote._connection.getresponse().read().decode()
    assert "penstock_rights_refused_total" in metrics
    edge.terminate()
    edge.wait(60)
    said = world.log.read_text() + metrics + "".join(p.read_text() for p in (world.data / "logs").glob("*"))
    assert "KeyCreated" in said
    for secret in (key, writer, token, HOOK, TOKEN_SECRET, SUPERVISOR, PERSON):
        assert secret.rpartition("_")[2] not in said, secret
        assert secret not in " ".join(map(str, edge.args))


def use_every_secret(world: World, key: str, writer: str, token: str) -> None:
    """Rightly, wrongly, and in requests that a server can only complain about."""
    order = json.dumps({"amount": "x", "email": PERSON}).encode()
    json_body = {"Content_Type": "application/json"}
    for shown in (key, token, key + "0", token + "x"):
        world.code(shown, "POST", "/streams/orders", order, **json_body)
        world.code(shown, "GET", f"/streams/{shown}")
        world.code(shown, "GET", f"/views/topics?key={shown}")
    world.code(None, "POST", f"/streams/orders?key={writer}", order, Content_Type="text/plain")
    world.code(None, "POST", f"/streams/orders?key={key}", order, Content_Type="text/plain")
    good = hmac.new(HOOK.encode(), order, hashlib.sha256).hexdigest()
    assert world.code(None, "POST", "/streams/hooks", order, X_Hub_Signature_256=f"sha256={good}", **json_body) == (
        "events_rejected"
    )
    assert world.code(None, "POST", "/streams/hooks", order, X_Hub_Signature_256=f"sha256={HOOK}", **json_body) == (
        "bad_signature"
    )
    for line in (f"GET /?key={writer} HTTP/9.9", f"B@D /?key={writer} HTTP/1.1", f"GET /?key={key}"):
        raw_request(world, f"{line}\r\nAuthorization: Bearer {token}\r\nBad header {key}\r\n\r\n".encode())


def raw_request(world: World, request: bytes) -> None:
    context = ssl._create_unverified_context()
    address = ("127.0.0.1", int(world.url().rpartition(":")[2]))
    with socket.create_connection(address, 5) as plain, context.wrap_socket(plain) as secure:
        secure.sendall(request)
        secure.settimeout(60)
        assert secure.recv(4096).startswith(b"HTTP/1")


def test_a_missing_secret_is_a_users_error_that_names_the_line(world):
    world.env.pop("HOOK_SECRET")
    edge = world.edge()
    assert edge.wait(60) == USER_ERROR
    error = json.loads((world.data / "run" / "edge.error.json").read_text())
    assert error["code"] == "bad_secret"
    assert "shop_secure.py:8" in error["message"]
    assert "HOOK_SECRET" in error["detail"]


def test_an_instruction_left_by_a_command_that_died_is_taken_at_the_next_start(world):
    key, record = make_key("left", ("read:*",), {}, 1, None)
    (world.data).mkdir()
    Inbox(Folder(world.data).inbox).post(Instruction("create", record.id, record))
    world.edge()
    assert world.code(key) == 200
    with pytest.raises(PenstockError), world.remote() as remote:
        remote.get("/status")
