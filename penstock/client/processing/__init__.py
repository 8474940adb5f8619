"""Acts on the changes of a view, each once: what comes in and what goes out is logged before anything depends on it."""

from penstock.client.processing.handler_run import AsyncContext, Context
from penstock.client.processing.outgoing_call import NOT_APPLIED, Answer, Call
from penstock.client.processing.processor import Options, Processor
from penstock.client.processing.work import FailedTask, KeyChange, Progress
from penstock.client.processing.work_store import WorkStore, open_store

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
