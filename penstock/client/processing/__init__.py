"""Acts on the changes of a view, each once: what comes in and what goes out is logged before anything depends on it."""

from penstock.client.processing.outgoing import NOT_APPLIED, Answer, Call
from penstock.client.processing.processor import Options, Processor
from penstock.client.processing.run_context import AsyncContext, Context
from penstock.client.processing.stores.choice import open_store
from penstock.client.processing.work import FailedTask, KeyChange, Progress
from penstock.client.processing.work_store import WorkStore

__all__ = [
    "NOT_APPLIED",
    "Answer",
    "AsyncContext",
    "Call",
    "Context",
    "FailedTask",
    "KeyChange",
    "Options",
    "Processor",
    "Progress",
    "WorkStore",
    "open_store",
]
