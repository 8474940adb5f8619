from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from penstock.testing.contracts.log_backends import BACKENDS, KafkaBackend
from penstock.testing.contracts.log_contract import LogContract
from tests import kafka_broker, postgres_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test of the log's contract that was skipped has failed, unless its backend lacks what it needs."""
    report = yield
    if report.skipped and issubclass(getattr(item, "cls", None) or object, LogContract):
        lacks = BACKENDS[item.callspec.params["backend"]].lacks  # type: ignore[attr-defined]
        if not set(lacks) & set(getattr(item.function, "needs", ())):  # type: ignore[attr-defined]
            report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The address of a PostgreSQL of this run's own."""
    why = postgres_server.missing()
    if why is not None:
        pytest.skip(f"THE STORE IN POSTGRESQL IS NOT TESTED: {why}")
    with postgres_server.server() as address:
        yield address


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafka_broker.Broker]:
    """A broker of this run's own behind the backend `kafka`."""
    why = kafka_broker.why_not()
    if why is not None:
        pytest.fail(f"THE LOG ON KAFKA IS NOT TESTED: {why}")
    backend = BACKENDS["kafka"]
    assert isinstance(backend, KafkaBackend)
    with kafka_broker.broker_in_memory() as broker:
        backend.servers, backend.data = broker.address, broker.data
        yield broker
