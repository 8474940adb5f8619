"""Says what the events of a stream look like, now and in the versions before: `GET /streams/{stream}/schema`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.change import Column
from penstock.clock import rfc3339
from penstock.errors import NotReadyError, UnknownStreamError, UnknownVersionError
from penstock.log.class_change import class_of
from penstock.log.folder_log import FolderLog
from penstock.log.log import Version
from penstock.schema import simple_type
from penstock.serve.describe.message_schemas import row_spec


def schema_body(log: FolderLog, name: str, number: int) -> dict[str, Any]:
    """The newest version, or the one of that number (0: the newest). Reads the disk: call it in a thread."""
    versions = _versions(log, name)
    if number > len(versions):
        raise UnknownVersionError(
            f"the stream '{name}' has no version {number}", hint=f"its versions are 1 to {len(versions)}"
        )
    version = versions[number - 1]
    listed = [{"version": v.number, "since": _since(v), "held": v.held} for v in versions]
    return {
        "stream": name,
        "version": version.number,
        "since": _since(version),
        "schema": class_of(version.schema) or _columns(version.schema),
        "versions": listed,
    }


def newest_version(log: FolderLog, name: str) -> int:
    return _versions(log, name)[-1].number


def _versions(log: FolderLog, name: str) -> list[Version]:
    try:
        part = next(part for part in log.find(name).parts if part.stream is not None)
    except UnknownStreamError:
        raise NotReadyError(f"the stream '{name}' is not there yet", hint="ask again in a moment") from None
    assert part.stream is not None
    return part.log.versions(part.stream)


def _since(version: Version) -> str | None:
    return None if version.made_us is None else rfc3339(version.made_us)


def _columns(schema: pa.Schema) -> dict[str, Any]:
    """What no class was declared for: a flow's stream, a ledger."""
    return row_spec([Column(f.name, simple_type(f.type)) for f in schema if not f.name.startswith("_")])
