"""Keeps the classes that Spark loads in an archive of the JVM's own kind, so that it starts with two thirds of the CPU.

`python -m penstock.run.warmup` makes the archive, `make setup` calls it. Without one, or with one of another Java,
the JVM starts as it always does. Beside it lie the options that Spark's launcher gives to Java, and a copy of Spark's
compiler without its signature: Java checks each class of a signed jar as it is loaded, and keeps none in its archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from penstock import plain


def archive() -> Path:
    """Where the archive lies: in the environment that it belongs to."""
    return Path(sys.prefix) / "share" / "penstock" / f"spark-{version('pyspark')}.jsa"


def used() -> list[str]:
    """The JVM's options for using the archive, if it is there. One that does not fit is left alone by Java."""
    if not plain.uses("archive") or not archive().exists():
        return []
    return [f"-XX:SharedArchiveFile={archive()}", "-Xlog:disable", "-Xlog:all=off"]


def recorded(path: Path) -> list[str]:
    """The JVM's options for writing the archive when it ends."""
    return [f"-XX:ArchiveClassesAtExit={path}"]


def launch_options() -> list[str] | None:
    """What Spark's launcher would give to Java; None when nobody has asked it."""
    path = _launch_file()
    return path.read_text().splitlines() if path.exists() else None


def ask_launcher(spark_home: Path, java: str) -> None:
    """Write down the options that it gives. Raises `OSError` or `CalledProcessError` when it cannot be asked."""
    main = "org.apache.spark.deploy.SparkSubmit"
    command = [java, "-cp", f"{spark_home}/jars/*", "org.apache.spark.launcher.Main", main, "pyspark-shell"]
    env = {**os.environ, "SPARK_HOME": str(spark_home), "SPARK_SCALA_VERSION": "2.13"}
    said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    words = [word.strip() for word in said.split("\0")]
    options = [word for word in words[: words.index(main)] if word.startswith("-")]
    # Not the class path and the memory, which are ours to say; the vector module is for Spark's machine learning, and
    # the JVM can take less from its archive with it.
    kept = [word for word in options if not word.startswith(("-cp", "-Xmx", "--add-modules"))]
    _launch_file().parent.mkdir(parents=True, exist_ok=True)
    _launch_file().unlink(missing_ok=True)
    _launch_file().write_text("\n".join(kept) + "\n")


_SIGNATURES = (".SF", ".RSA", ".DSA", ".EC")


def compiler() -> Path:
    """The compiler of Spark's generated code: the first batch of every query waits for it."""
    return archive().with_suffix(".compiler.jar")


def compiler_jars() -> list[str]:
    """What Java finds before the signed jars."""
    return [str(compiler())] if plain.uses("compiler") and compiler().exists() else []


def copy_compiler(jars: Path) -> None:
    """Its jars as one, without signatures."""
    compiler().parent.mkdir(parents=True, exist_ok=True)
    compiler().unlink(missing_ok=True)
    with zipfile.ZipFile(compiler(), "w") as made:
        for jar in (*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")):
            with zipfile.ZipFile(jar) as signed:
                for name in signed.namelist():
                    if not name.endswith("/") and name not in made.NameToInfo and not _of_signature(name):
                        made.writestr(name, signed.read(name))


def _of_signature(name: str) -> bool:
    """A manifest holds the digests of what is signed; without a signature nobody reads them."""
    return name.startswith("META-INF/") and (name.upper().endswith(_SIGNATURES) or name.endswith("MANIFEST.MF"))


def _launch_file() -> Path:
    return archive().with_suffix(".options")
