"""Asks the kernel how many datagrams it dropped before we could read them, because nothing else would ever tell."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_TABLES = {socket.AF_INET: Path("/proc/net/udp"), socket.AF_INET6: Path("/proc/net/udp6")}
_INODE, _DROPS = 9, 12


def kernel_drops(listening: socket.socket) -> int | None:
    """Since the socket was made; None where the system has no such table."""
    table = _TABLES.get(listening.family)
    try:
        inode = str(os.fstat(listening.fileno()).st_ino)
        lines = table.read_text().splitlines()[1:] if table else []
    except OSError:
        return None
    found = [columns for columns in map(str.split, lines) if len(columns) > _DROPS and columns[_INODE] == inode]
    return int(found[0][_DROPS]) if found else None
