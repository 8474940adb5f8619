"""What `run` makes sure of before it starts anything: Java for Spark, and an address to listen on."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import JavaError, PortInUseError
from penstock.run.ownership import command_of

JAVA_AT_LEAST = 17
_INSTALL = (
    f"install a JDK {JAVA_AT_LEAST} or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at one"
)


def check_java() -> str:
    """The java that Spark will start, as Spark finds it: JAVA_HOME first, then PATH."""
    java = _java()
    version = _version(java)
    if version is None:
        raise JavaError(f"'{java}' does not say its version", detail="it may not be a Java at all", hint=_INSTALL)
    if version < JAVA_AT_LEAST:
        raise JavaError(f"'{java}' is Java {version}; Spark needs {JAVA_AT_LEAST} or newer", hint=_INSTALL)
    return java


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(
                f"JAVA_HOME is '{home}', and there is no java in it",
                detail=f"looked for {java}",
                hint=_INSTALL,
            )
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaError(
            "there is no java on PATH, and JAVA_HOME is not set", detail="Spark runs on Java", hint=_INSTALL
        )
    return found


def _version(java: str) -> int | None:
    """17 for `version "17.0.15"`, 8 for the older `version "1.8.0_402"`."""
    return _released(java) or _asked_version(java)


def _released(java: str) -> int | None:
    """As a JDK's own file tells it: to ask the program takes a tenth of a second."""
    path = Path(shutil.which(java) or java).resolve().parents[1] / "release"
    try:
        match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None


def _asked_version(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else None


def check_port(host: str, port: int) -> None:
    """Raise `PortInUseError` when nobody could listen there; port 0 is always free."""
    if port == 0:
        return
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise port_error(host, port, error) from None
    with socket.socket(family, kind, number) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise port_error(host, port, error) from None


def port_error(host: str, port: int, error: OSError) -> PortInUseError:
    """Why the address cannot be listened on, and who has it where the kernel tells."""
    if error.errno != errno.EADDRINUSE:
        return PortInUseError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="choose another address with --host and --port",
        )
    pid = port_owner(port)
    return PortInUseError(
        f"port {port} of {host} is taken",
        detail=f"process {pid} listens there: {command_of(pid)}" if pid else None,
        hint=f"stop it, or choose another port: --port {port + 1}, or --port 0 for any free one",
    )


def port_owner(port: int) -> int | None:
    """The process that listens on a port; None when it belongs to another user or the kernel does not
    tell."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        try:
            if os.readlink(link) in sockets:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield fields[9]
