"""Runs one view or flow of an app as a batch over given events, so that a user's function can have a unit test.

No log, no checkpoint and no server take part, and nothing is late: what the function computes is tested, the rest is
Penstock's to test. A view that stands behind flows is computed through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock import schema
from penstock.app import App
from penstock.change import DELETE, OP, UPSERT, Column
from penstock.collect.system_columns import SystemColumns
from penstock.config import Folder
from penstock.declaration import Application, FlowDef, Node, StreamDef, ViewDef
from penstock.errors import DeclarationError, DuplicateKeyError
from penstock.flows import tree
from penstock.flows.plan import Planner
from penstock.flows.session import open_session
from penstock.flows.sink import _event_keys, _event_times
from penstock.schema import simple_type
from penstock.views.query import evaluate, parse_query
from penstock.views.unpack import ops_of, rows_of

Rows = list[dict[str, Any]]

_UNORDERED = {"Union", "Join", "RepartitionByExpression", "Repartition", "Aggregate"}
"""Above these rows do not come in the order of the events, so two rows of one key are an error, as in the sink."""
