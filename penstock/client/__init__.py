"""Sends events from other programs so that each counts once, through crashes and cut networks on either side.

`Producer` is for threads, `AsyncProducer` for asyncio; both are faces of the same parts. Nothing here imports the
server: the wire contract is all that the two share.
"""

from penstock.client.batch import Receipt
from penstock.client.handle import Handle
from penstock.client.outbox import Status
from penstock.client.producer import AsyncProducer, Producer

__all__ = ["AsyncProducer", "Handle", "Producer", "Receipt", "Status"]
