"""Sends events from other programs, each once, and keeps what they read current, through crashes and cut networks.

`Producer` sends and `Client` reads from threads; `AsyncProducer` and `AsyncClient` do the same for asyncio. Nothing
here imports the server: the wire contract is all that the two share.
"""

from penstock.client.async_client import AsyncClient
from penstock.client.batch import Handle, Receipt
from penstock.client.conditions import Condition, col, fn, where
from penstock.client.live_rows import AsyncLive, Live
from penstock.client.outbox import Status
from penstock.client.producer import AsyncProducer, Producer
from penstock.client.read_request import Channel
from penstock.client.row_calls import AsyncCalling, Calling, RowChange
from penstock.client.subscription import Following, Notice
from penstock.client.sync_client import Client, Watch
from penstock.client.view_rows import Changes, Rows, ViewFacts

__all__ = [
    "AsyncCalling",
    "AsyncClient",
    "AsyncLive",
    "AsyncProducer",
    "Calling",
    "Changes",
    "Channel",
    "Client",
    "Condition",
    "Following",
    "Handle",
    "Live",
    "Notice",
    "Producer",
    "Receipt",
    "RowChange",
    "Rows",
    "Status",
    "ViewFacts",
    "Watch",
    "col",
    "fn",
    "where",
]
