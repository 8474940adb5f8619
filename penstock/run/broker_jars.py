"""The jars of a Kafka broker: which ones by name and SHA-256, where they lie, and how they come there without Docker.

With Kafka comes the piece that lets it say what is wrong (`log4j-slf4j-impl`). Ivy, which pyspark brings along, takes
them from Maven Central, once for this user (43 MB). They are taken all or not at all, and only if they are exactly
those that this package names (`broker_jars.sha256`).

The folder is what `PENSTOCK_KAFKA_JARS` names, or `penstock/kafka-4.1.1` in the user's cache. Where there is no way to
Maven Central, a copy of a folder that was filled elsewhere is as good.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BrokerError
from penstock.run.preflight import check_java

VERSION = "4.1.1"
PLACE = "PENSTOCK_KAFKA_JARS"
FETCH = "penstock kafka fetch"
_PINNED = Path(__file__).with_name("broker_jars.sha256")
_FETCH_S = 600
_IVY = f"""<ivy-module version="2.0"><info organisation="penstock" module="broker"/>
<configurations><conf name="broker"/></configurations>
<dependencies>
<dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="broker->default"/>
<dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.24.3" conf="broker->default"/>
</dependencies>
</ivy-module>"""


def folder() -> Path:
    """Where the jars lie, or will."""
    given = os.environ.get(PLACE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "penstock" / f"kafka-{VERSION}"


def jars() -> list[Path]:
    """All of them, in the order of their names. Raises `BrokerError` for one that is missing or another."""
    where = folder()
    if why := _fault(where):
        raise BrokerError(
            f"the jars of a Kafka broker are not in '{where}'",
            detail=why,
            hint=f"{FETCH} brings them from Maven Central (43 MB); without a network, copy that folder from a machine"
            f" that has them, or name it with {PLACE}",
        )
    return [where / name for name in sorted(_pinned())]


def fetch() -> bool:
    """Bring the jars into their folder; False: they are there. Raises `BrokerError` with what kept them away."""
    where = folder()
    if _fault(where) is None:
        return False
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent) as scratch:
        fetched = Path(scratch) / "jars"
        _retrieve(Path(scratch), fetched)
        if why := _fault(fetched):
            raise BrokerError("what came are not the jars of Kafka " + VERSION, detail=why, hint="try again")
        _replace(where, fetched, Path(scratch) / "before")
    return True


def _pinned() -> dict[str, str]:
    """SHA-256 by name."""
    lines = (line.split() for line in _PINNED.read_text().splitlines())
    return {name: digest for digest, name in lines}


def _fault(where: Path) -> str | None:
    """What is wrong with a folder of jars; None: nothing."""
    pinned = _pinned()
    missing = [name for name in pinned if not (where / name).is_file()]
    if missing:
        return f"{len(missing)} of {len(pinned)} are missing, such as {missing[0]}"
    others = [n for n, digest in pinned.items() if hashlib.sha256((where / n).read_bytes()).hexdigest() != digest]
    return f"{others[0]} is not the file that it should be" if others else None


def _retrieve(scratch: Path, into: Path) -> None:
    file = scratch / "ivy.xml"
    file.write_text(_IVY)
    words = [
        check_java(), "-jar", str(_ivy()), "-ivy", str(file), "-confs", "broker", "-types", "jar", "bundle",
        "-cache", str(scratch / "cache"), "-retrieve", f"{into}/[artifact]-[revision].[ext]",
    ]  # fmt: skip
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=_FETCH_S)
    except subprocess.TimeoutExpired:
        why = f"it took longer than {_FETCH_S} s"
    except subprocess.CalledProcessError as error:
        why = next((line.strip() for line in error.stdout.splitlines() if "Exception" in line), error.stdout[-300:])
    else:
        return
    raise BrokerError(
        "Maven Central does not give the jars of Kafka " + VERSION,
        detail=why,
        hint=f"see that this machine reaches repo1.maven.org and run `{FETCH}` again, or copy '{folder()}' from a"
        " machine that has it",
    )


def _ivy() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (ivy,) = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    return ivy


def _replace(where: Path, fetched: Path, before: Path) -> None:
    """Put the folder where it belongs; what was there was not whole. Another one may have been quicker."""
    if where.exists() and _fault(where):
        where.rename(before)
    try:
        fetched.rename(where)
    except OSError:
        if _fault(where):
            raise
