"""Turns what a user names on the command line (`app.py`, `app.py:app`, `pkg.mod:app`) into an `Application`.

Whatever is wrong with the file is an `AppFileError` that begins with the user's file and line and shows
that line. The module stays in `sys.modules`, where Spark's pickling and msgspec look for it, and its folder
in `sys.path`.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from penstock import spark_master
from penstock.app import App
from penstock.config import Folder
from penstock.declaration import Application, Place
from penstock.errors import AppFileError, BadLogError, BadMasterError, PenstockError
from penstock.log.kafka_settings import client_settings

_EXAMPLE = "give a file (app.py), a file and a name (app.py:app), or a module (pkg.mod:app)"
_LOG = re.compile(r"kafkas?://[^/?#,@\s]+:\d+(,[^/?#,@\s]+:\d+)*/?")
_NEEDS_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "AssertionError")
"""What PySpark raises without a session: an error with a name, or a bare assertion."""


def needs_spark(error: BaseException) -> bool:
    """Whether an import may have failed only because no Spark session is there."""
    return "pyspark" in sys.modules and any(word in str(error) for word in _NEEDS_SESSION)


def spark_started() -> bool:
    """Whether this process has a Spark session."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


class StandIn:
    """PySpark's session for who only declares: it answers everything with itself, and makes a type of a type's text.

    Declaring runs nothing, but PySpark asks a running JVM about types and columns as soon as they are written down
    (`@F.udf("int")`, `F.col("x")`). The edge and the supervisor need only the declarations; the flows import the same
    file with a real session.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self

    def _parse_ddl(self, text: str) -> Any:
        types = importlib.import_module("pyspark.sql.types")
        return types.StructType() if {" ", ":"} & set(text.strip()) else types.StringType()


@contextmanager
def stand_in() -> Iterator[None]:
    """Within this block PySpark believes in a session."""
    context = importlib.import_module("pyspark").SparkContext
    context._active_spark_context = StandIn()
    try:
        yield
    finally:
        context._active_spark_context = None


@dataclass(frozen=True)
class Loaded:
    """An app file that was imported: the words that named it, where it is, and what it declares."""

    target: str
    file: Path
    application: Application

    def root(self, data: Path | None) -> Path:
        """Where the data folder lies, whatever log it has."""
        return (data or self.file.parent / ".penstock" / self.application.name).absolute()

    def folder(self, data: Path | None, log: str = "sqlite", checkpoint: Path | None = None) -> Folder:
        """The data folder: what `--data` says, else `.penstock/<app name>` beside the app file; with the log that
        `--log` names, and the checkpoints where `--checkpoint` says."""
        name, root = self.application.name, self.root(data)
        shared = None if checkpoint is None else _mounted(checkpoint) / name
        if log == "sqlite" and (master := spark_master.cluster()):
            raise BadMasterError(
                f"'{master}' cannot read a log that is a file of this machine",
                hint="keep the log on Kafka: --log kafka://host:9092",
            )
        return Folder(root, None if log == "sqlite" else f"{_cluster(log)}/{name}", shared)


def _mounted(checkpoint: Path) -> Path:
    if "://" in str(checkpoint) or re.match(r"[a-z0-9]+:/", str(checkpoint)):
        raise BadMasterError(
            f"--checkpoint '{checkpoint}' is a URL",
            hint="name a folder that is mounted under the same path on this machine and on all workers",
        )
    return checkpoint.absolute()


def _cluster(log: str) -> str:
    match = _LOG.fullmatch(log)
    if match is None:
        raise BadLogError(
            f"'{log}' is no log",
            hint="write --log sqlite, kafka for a broker of its own, or kafka://host:9092[,host:9092] for a cluster",
        )
    if find_spec("confluent_kafka") is None:
        raise BadLogError("a log on Kafka needs the package confluent-kafka", hint="pip install 'penstock[kafka]'")
    client_settings(secure=match[0].startswith("kafkas"))
    return match[0].rstrip("/")


Session = Callable[[], AbstractContextManager[Any]]


def load(target: str, session: Session = stand_in) -> Loaded:
    """Import the app file or module and find its `App`.

    Called once by each process. A file that uses Spark while it is imported is imported again within `session`: a
    stand-in where there is no JVM. Raises `AppFileError`, or the `DeclarationError` that the file's own line caused.
    """
    path, name = _split(target)
    had_session = spark_started()
    try:
        module = _import(path)
    except AppFileError as error:
        if not needs_spark(error):
            raise
        with session():
            module = _import(path)
    else:
        if spark_started() and not had_session:
            raise AppFileError(
                f"{path} starts a Spark session while it is imported",
                detail="every process of the app imports the file, and one of them has a session, Penstock's own",
                hint="name a parameter of the function 'spark', which is the session, and use it inside the function",
            )
    file = Path(module.__file__ or path).absolute()
    return Loaded(target, file, _pick(module, file, path, name).declared())


def _import(path: str) -> ModuleType:
    return import_file(Path(path)) if _is_file(path) else _import_module(path)


def _split(target: str) -> tuple[str, str | None]:
    path, colon, name = target.rpartition(":")
    return (path, name) if colon and path and name.isidentifier() else (target, None)


def _is_file(path: str) -> bool:
    return path.endswith(".py") or "/" in path or Path(path).exists()


class _AsItIs(SourceFileLoader):
    """Compiles the file as it is now. What Python kept of it counts as fresh if size and second are the same: a file
    that was saved twice in a second would run as it was, while its fingerprint is of what it has become."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def import_file(path: Path) -> ModuleType:
    """A Python file of the user's; what is wrong with it is told with its line."""
    file = path.absolute()
    if file.is_dir():
        inside = file / "app.py"
        hint = f"name the file in it: {path / 'app.py'}" if inside.exists() else _EXAMPLE
        raise AppFileError(f"'{path}' is a folder, not an app file", hint=hint)
    if not file.exists():
        raise AppFileError(f"there is no file '{path}'", detail=f"looked for {file}", hint=_EXAMPLE)
    name = _module_name(file.stem)
    if file.suffix != ".py":
        raise AppFileError(f"'{path}' is not a Python file", hint=_EXAMPLE)
    loader = _AsItIs(name, str(file))
    module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=str(file)))
    module.__file__ = str(file)
    _on_path(file.parent)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _refused(error, file) from None
    return module


def _module_name(stem: str) -> str:
    """The file's own name, so that workers can import it too, unless that is the name of something else."""
    if stem.isidentifier() and stem not in sys.modules and stem not in sys.stdlib_module_names:
        return stem
    name = f"{''.join(c if c.isalnum() else '_' for c in stem)}_app"
    while name in sys.modules:
        name += "_"
    return name


def _import_module(name: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise AppFileError(f"there is no module '{error.name}'", hint=_EXAMPLE) from None
        spec = importlib.util.find_spec(name)
        raise _refused(error, Path(spec.origin if spec and spec.origin else name)) from None


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _refused(error: BaseException, file: Path) -> BaseException:
    """Why the import failed, in the user's terms: their line, never ours."""
    if isinstance(error, PenstockError | KeyboardInterrupt):
        return error
    if isinstance(error, SyntaxError):
        return _syntax(error, file)
    place = _user_place(error, file)
    what = "it calls exit()" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return AppFileError(f"{place}: {what}", detail=_source(place), hint=_hint(error))


def _syntax(error: SyntaxError, file: Path) -> AppFileError:
    place = Place(error.filename or str(file), error.lineno or 1)
    line = (error.text or _source(place) or "").rstrip("\n").expandtabs(1)
    stripped = line.lstrip()
    at = max(0, (error.offset or 1) - 1 - (len(line) - len(stripped)))
    detail = f"{stripped}\n{' ' * min(at, len(stripped))}^" if stripped else None
    return AppFileError(f"{place}: {error.msg}", detail=detail, hint="correct this line and try again")


def _user_place(error: BaseException, file: Path) -> Place:
    """The innermost line of the app file's folder; the app file itself when none of its neighbours failed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _belongs(f.filename, file.parent)]
    last = own[-1] if own else None
    return Place(last.filename, last.lineno or 1) if last else Place(str(file), 1)


def _belongs(filename: str, folder: Path) -> bool:
    path = Path(filename)
    ours = path.is_relative_to(Path(__file__).parents[1]) or "site-packages" in path.parts
    return path.is_relative_to(folder) and not ours


def _source(place: Place) -> str | None:
    return linecache.getline(place.file, place.line).strip() or None


def _hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        return f"install it into {sys.prefix} (pip install {package}), or correct its name"
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "name the file as a module, from the folder above its package: pkg.mod, or pkg.mod:app"
    if isinstance(error, SystemExit):
        return "an app file only declares; take the call out, or put it under if __name__ == '__main__'"
    if isinstance(error, TypeError) and "App.view()" in str(error):
        return 'say at least by what column its rows are kept: @app.view(key="...")'
    return "correct this line and try again"


def _pick(module: ModuleType, file: Path, path: str, name: str | None) -> App:
    """The App that was asked for, or the only one; `path` is the file or module as the user wrote it."""
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name is not None and name in apps:
        return apps[name]
    if name is not None:
        there = f"its Apps are: {', '.join(apps)}" if apps else "it has no App at all"
        raise AppFileError(f"{file.name} has no App called '{name}'", detail=there, hint=_EXAMPLE)
    if not apps:
        raise AppFileError(f"{file.name} has no App", hint='write app = App("name") in it')
    if len({id(app) for app in apps.values()}) > 1:
        raise AppFileError(
            f"{file.name} has {len(apps)} Apps: {', '.join(apps)}",
            hint=f"say which: {path}:{next(iter(apps))}",
        )
    return next(iter(apps.values()))
