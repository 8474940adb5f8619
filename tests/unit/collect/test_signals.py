"""What the server's log says of the door never quotes what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_edge import Edge, running
from shop_app import shop

from penstock.collect.intake import Intake
from penstock.observe.signals import CollectFailed, ReceiptLost


async def test_an_unexpected_error_is_logged_by_type_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*arguments: Any, **more: Any) -> Any:
        raise ValueError("cannot read ann@example.org")

    async with running(shop(), tmp_path) as edge:
        monkeypatch.setattr(Intake, "take", broken)
        assert (await edge.post("orders", b'{"order_id": 1}')).status == 500
        assert failures(edge) == 1
    assert "ValueError at unit/collect/test_signals.py:" in caplog.text
    assert "ann@" not in caplog.text


def failures(edge: Edge) -> float:
    return edge.observer.value("penstock_collect_request_failures_total")


def test_an_error_is_not_quoted() -> None:
    error = KeyError("ann@example.org")
    assert CollectFailed("/streams/orders", error).facts() == {"path": "/streams/orders", "error": "KeyError"}
    assert ReceiptLost("orders", "udp", error, 3).facts()["error"] == "KeyError"
