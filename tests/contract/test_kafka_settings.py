"""A log on a broker that wants TLS and a password: what it is given reaches it, and nobody else."""

from __future__ import annotations

import pickle
import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import BadLogError, LogRefusedError
from penstock.flows.source import Feed, LogStreamReader, offset_of
from penstock.log.kafka_settings import client_settings
from penstock.log.log import StreamSpec
from penstock.log.opening import open_log, open_reader
from penstock.run.app_file import _cluster
from penstock.testing.contracts.log_events import SCHEMA, everything, put
from tests.kafka_broker import Broker


@pytest.fixture
def settings(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a client that may come in."""
    file = tmp_path / "kafka.properties"
    file.write_text(
        f"# of the tests\nssl.ca.location={kafka.authority.ca}\nsasl.mechanism=PLAIN\n"
        f"sasl.username={kafka.USER}\nsasl.password=env:THE_PASSWORD\n"
    )
    monkeypatch.setenv("PENSTOCK_KAFKA_SETTINGS", str(file))
    monkeypatch.setenv("THE_PASSWORD", kafka.PASSWORD)
    return file


def place(address: str, folder: Path, scheme: str = "kafkas") -> str:
    return f"{scheme}://{address}/settings-{time.time_ns()}/edge?index={folder / 'index.db'}"


def test_a_log_lies_on_a_broker_with_tls_and_a_password(kafka: Broker, settings: Path, tmp_path: Path) -> None:
    where = place(kafka.named, tmp_path)
    with closing(open_log(where, app=where.split("/")[3], clock=SystemClock())) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1, 2])
        with closing(open_reader(where)) as reader:
            assert everything(reader, stream) == [1, 2]


def test_a_wrong_password_is_told_and_never_shown(
    kafka: Broker, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_PASSWORD", "a wrong password")
    with pytest.raises(LogRefusedError, match="does not let this client in") as told:
        open_log(place(kafka.named, tmp_path), app="any", clock=SystemClock())
    assert "PENSTOCK_KAFKA_SETTINGS" in told.value.paragraph()
    assert "a wrong password" not in told.value.paragraph()


def test_an_authority_that_nobody_knows_is_told(
    kafka: Broker, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_KAFKA_SETTINGS")
    with pytest.raises(LogRefusedError, match="does not let this client in") as told:
        open_log(place(kafka.secure, tmp_path), app="any", clock=SystemClock())
    assert "certificate" in told.value.paragraph()


def test_missing_rights_are_named(kafka: Broker, settings: Path, tmp_path: Path) -> None:
    settings.write_text(settings.read_text().replace(kafka.USER, kafka.STRANGER))
    with pytest.raises(LogRefusedError, match="too few rights") as told:
        open_log(place(kafka.named, tmp_path), app="any", clock=SystemClock())
    assert "ACLs" in (told.value.hint or "")
    assert "Write" in (told.value.hint or "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("acks=1", "names 'acks', which is not yours to set"),
        ("enable.idempotence=false", "names 'enable.idempotence'"),
        ("isolation.level=read_committed", "names 'isolation.level'"),
        ("allow.auto.create.topics=true", "names 'allow.auto.create.topics'"),
        ("bootstrap.servers=elsewhere:9092", "names 'bootstrap.servers'"),
        ("security.protocol=SASL_SSL", "names 'security.protocol'"),
        ("just words", "line 1 is not name=value"),
        ("sasl.password=env:NOT_SET", "from the variable NOT_SET, which is not set"),
    ],
)
def test_a_setting_that_is_ours_or_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"{line}\n")
    monkeypatch.setenv("PENSTOCK_KAFKA_SETTINGS", str(file))
    with pytest.raises(BadLogError) as told:
        _cluster("kafka://localhost:9092")
    assert says in (told.value.detail or "")


def test_a_setting_that_the_client_does_not_know_is_refused_without_its_value(
    kafka: Broker, settings: Path, tmp_path: Path
) -> None:
    settings.write_text(settings.read_text() + "sasl.oauthbearer.method=very secret\n")
    with pytest.raises(BadLogError, match="does not take its settings") as told:
        open_reader(place(kafka.named, tmp_path)).streams()
    assert kafka.PASSWORD not in told.value.paragraph()


def test_secrets_are_taken_out_of_any_text(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("sasl.username=ann\nsasl.password=open sesame\nclient.id=env:WHO\nssl.ca.location=/etc/ca.pem\n")
    given = client_settings(secure=True, environment={"PENSTOCK_KAFKA_SETTINGS": str(file), "WHO": "hidden"})
    assert given.redact("ann said open sesame to hidden at /etc/ca.pem") == "*** said *** to *** at /etc/ca.pem"
    assert "sesame" not in repr(given)


def test_the_settings_name_no_file_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KAFKA_SETTINGS", str(tmp_path / "none"))
    with pytest.raises(BadLogError, match="are not usable"):
        _cluster("kafkas://localhost:9093")


def test_what_an_executor_needs_travels_with_its_job_and_through_no_file(
    kafka: Broker, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place(kafka.named, tmp_path)
    with closing(open_log(where, app=where.split("/")[3], clock=SystemClock())) as log:
        stream = log.create(StreamSpec("numbers", SCHEMA))
        put(log, stream, [1, 2])
        reader = LogStreamReader(Feed(stream))
        (split,) = reader.partitions(offset_of(stream, 0, (0,)), offset_of(stream, 1, (2,)))
    feed = Path(Feed(stream).options(tmp_path / "feeds")["feed"])
    assert kafka.PASSWORD.encode() not in feed.read_bytes()
    sent = pickle.dumps((reader, split))
    monkeypatch.delenv("PENSTOCK_KAFKA_SETTINGS")
    monkeypatch.delenv("THE_PASSWORD")
    there, work = pickle.loads(sent)
    assert [n for batch in there.read(work) for n in batch.column("n").to_pylist()] == [1, 2]
