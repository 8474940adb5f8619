"""The command line: one verb per function, and the one place where an error becomes a paragraph and an exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock import spark_master
from penstock.cli import dead, kafka_verbs, key_verbs, log_verbs, reports
from penstock.cli.options import (
    AppArgument,
    CaOption,
    CheckpointOption,
    DataOption,
    HostOption,
    JsonOption,
    KeyOption,
    LogOption,
    MasterOption,
    ParamsOption,
    ParentOption,
    PortOption,
    ReadOnlyOption,
    StandbyOption,
    UrlOption,
    WhereOption,
    secured,
)
from penstock.cli.remote import DEFAULT_URL, Remote, path_of
from penstock.declaration import Application
from penstock.declaration_problems import unpublished
from penstock.errors import FolderMismatchError, PenstockError, UnknownViewError
from penstock.run.app_file import load
from penstock.run.broker import OWN, log_folder
from penstock.run.exit_codes import FAILED, INTERRUPTED, OK, UNREAD
from penstock.run.lifecycle import live
from penstock.run.security import Security
from penstock.run.terminal import Terminal, quietly, unexpected

app = typer.Typer(
    help="Events from the moment they happen to the screen, program or person that must act on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dead.app, name="dead")
app.add_typer(kafka_verbs.app, name="kafka")
app.add_typer(key_verbs.app, name="keys")
app.add_typer(log_verbs.app, name="log")
terminal = Terminal()


@app.command()
@secured
def run(
    target: AppArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    data: DataOption = None,
    log: LogOption = "sqlite",
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Start although the folder was closed by `export --close`.")
    ] = False,
    *,
    security: Security,
) -> None:
    """Run every tier of an app on this machine; prints `ready <address>` when it is."""
    from penstock.run import launch

    spark_master.choose(master, checkpoint)
    loaded = load(target)
    request = launch.Request.of(loaded, data, log, host, port, security, checkpoint)
    if reopen:
        from penstock.run import moving

        moving.reopen(request.folder, loaded.application.name)
    _exit(launch.run(request, terminal))


@app.command()
@secured
def edge(
    target: AppArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    data: DataOption = None,
    read_only: ReadOnlyOption = False,
    log: LogOption = "sqlite",
    standby: StandbyOption = False,
    parent: ParentOption = None,
    *,
    security: Security,
) -> None:
    """Run only the edge of an app: collection, views and data access. `run` does this for you."""

    def body() -> None:
        loaded = load(target)
        from penstock.run.edge_memory import leave_pandas_out

        leave_pandas_out()
        from penstock.run import edge as process

        with log_folder(loaded, data, log) as folder:
            process.run(loaded.application, folder, host, port, security, read_only=read_only, standby=standby)

    _exit(live("reading-edge" if read_only else "edge", parent, data, body))


@app.command()
def flows(
    target: AppArgument,
    data: DataOption = None,
    log: LogOption = "sqlite",
    master: MasterOption = None,
    checkpoint: CheckpointOption = None,
    standby: StandbyOption = False,
    parent: ParentOption = None,
) -> None:
    """Run only the flows of an app: the Spark driver. `run` does this for you."""

    def body() -> None:
        from penstock.flows.engine import jvm
        from penstock.run import flows as process
        from penstock.run.preflight import check_java

        spark_master.choose(master, checkpoint)
        if parent is None:  # else the supervisor has looked, and `boot.py` has begun
            check_java()
        jvm.begun()  # boots while the app file is loaded
        loaded = load(target, process.session)
        with log_folder(loaded, data, log, checkpoint) as folder:
            process.run(loaded, folder, standby=standby)

    _exit(live("flows", parent, data, body))


@app.command()
def check(target: AppArgument, data: DataOption = None, log: LogOption = "sqlite", as_json: JsonOption = False) -> None:
    """Find what is wrong with an app, with the line, without starting it."""
    from penstock.run.preflight import check_java

    loaded = load(target, _session)
    problems = loaded.application.problems()
    is_new = not loaded.root(data).exists()
    if not any(problem.level == "error" for problem in problems):
        check_java()
        from penstock.flows.check import check as check_plans

        with (
            nullcontext() if is_new else log_folder(loaded, data, log, makes=False) as folder,
            quietly(terminal, "asking Spark what it makes of the app"),
        ):
            problems = check_plans(loaded.application, folder)
    if log == "sqlite":
        problems = [*problems, *unpublished(loaded.application)]
    if as_json:
        terminal.data(json.dumps({"problems": [reports.problem_body(problem) for problem in problems]}))
    else:
        terminal.problems(problems)
        terminal.note(reports.problem_count(problems))
    _exit(FAILED if any(problem.level == "error" for problem in problems) else OK)


@contextmanager
def _session() -> Iterator[None]:
    """A session for an app file that uses one while it is imported; what Spark says of itself is not shown."""
    from penstock.run.flows import session

    with quietly(terminal, "starting Spark, which the app file uses"), session():
        pass
    yield


@app.command()
def graph(
    target: AppArgument,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="Print Mermaid.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what flows into what: as a tree, as Mermaid, or as JSON."""
    declared = load(target).application.graph()
    if as_json:
        terminal.data(json.dumps(declared))
    elif as_mermaid:
        terminal.data(reports.mermaid(declared))
    else:
        terminal.out.print(reports.tree(declared))


@app.command()
def send(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to send to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="NDJSON; - is stdin.")] = "-",
    producer: Annotated[
        str | None, typer.Option("--producer", help="Resume under this name; default: the file's fingerprint.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a file of JSON lines; the same command again goes on where it stopped."""
    from penstock.cli import file_sender

    with Remote(url, key, ca) as remote:
        sent = file_sender.send(remote, stream, file, producer, terminal)
    terminal.note(reports.sent(stream, sent), "")
    if as_json:
        terminal.data(json.dumps(sent.body()))
    _exit(FAILED if sent.rejected else OK)


@app.command()
def tail(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="A stream; also dead and late.")],
    since: Annotated[
        str | None, typer.Option("--since", help="start, end or a position; default: the newest 10 events.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="End after so many events.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events.")] = True,
    where: WhereOption = None,
    params: ParamsOption = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
) -> None:
    """Print the events of a stream as they come, one JSON object a line."""
    from penstock.cli.stream_tail import TailReader

    with Remote(url, key, ca) as remote:
        for event in TailReader(remote, stream, where, terminal.note, params).events(since, limit, follow):
            terminal.data(json.dumps(event, ensure_ascii=False))


@app.command()
def watch(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view to watch.")],
    where: WhereOption = None,
    params: ParamsOption = None,
    select: Annotated[str | None, typer.Option("--select", help="Only these columns, with commas between.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many rows.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only what changed behind this position; default: all rows first.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one change a line as JSON.")] = False,
) -> None:
    """Show a view as a table that moves with it; in a pipe, print each change as a line of JSON."""
    from penstock.cli import view_watch

    wanted = view_watch.Wanted(view, where, params, select, limit, since)
    view_watch.watch(url, key, ca, wanted, terminal, as_json=as_json or not terminal.out.is_terminal)


@app.command()
def status(
    url: UrlOption = DEFAULT_URL, key: KeyOption = None, ca: CaOption = None, as_json: JsonOption = False
) -> None:
    """Show how an app is: its processes, streams, views and flows."""
    with Remote(url, key, ca) as remote:
        body = remote.get("/status")
    if as_json:
        terminal.data(json.dumps(body))
    else:
        terminal.out.print(reports.status(body))


@app.command()
def verify(
    target: AppArgument,
    names: Annotated[
        list[str] | None, typer.Option("--view", help="Only this view or flow; may be given several times.")
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(
            "--units", min=1, help="Of views that are computed unit by unit, compare a sample of so many units."
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compute views that others read anew too, down to the streams.")
    ] = False,
    data: DataOption = None,
    log: LogOption = "sqlite",
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute every view anew from the log and compare, row by row, on a live or a stopped system."""
    from penstock.run.preflight import check_java

    spark_master.choose(master)
    loaded = load(target, _session)
    _known(loaded.application, names or ())
    if log in ("sqlite", OWN) and not (root := loaded.root(data)).exists():
        raise FolderMismatchError(f"there is no data folder '{root}'", hint="run the app, or name it with --data")
    check_java()
    from penstock.flows import verify as proof

    with log_folder(loaded, data, log, makes=False) as folder, quietly(terminal, "computing every view anew"):
        proved = proof.verify(loaded.application, folder, names or (), units=units, deep=deep)
    for report in proved:
        if as_json:
            terminal.data(json.dumps(reports.report_body(report)))
        else:
            terminal.out.print(reports.report_text(report))
    _exit(proof.exit_code(proved))


@app.command()
def rebuild(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The view or flow to build anew from the log.")],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
) -> None:
    """Build a view or flow anew from the log, with what is made from it; old rows are served until that is level."""
    with Remote(url, key, ca) as remote:
        reply = remote.request("POST", path_of("flows", name, "rebuild"))
    if reply.status not in (200, 202):
        raise reply.error()
    terminal.note(f"'{name}' is being rebuilt; `penstock status` shows when it is level")


@app.command()
def export(
    target: AppArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; it must not exist.")],
    data: DataOption = None,
    checkpoint: CheckpointOption = None,
    close: Annotated[
        bool, typer.Option("--close", help="Stop the app and close its folder, so that only the copy goes on.")
    ] = False,
) -> None:
    """Write an app's data folder into one file: streams, views, state. The app may run meanwhile."""
    from penstock.run import moving

    loaded = load(target)
    folder = loaded.folder(data, "sqlite", checkpoint)
    archive = moving.export(folder, loaded.application.name, file.absolute(), close=close, tell=terminal.note)
    terminal.note(f"'{archive.app}' is in {file}: {len(archive.files):,} files, {archive.bytes:,} bytes")
    if close:
        terminal.note(f"'{folder.root}' is closed: it starts again with --reopen only")


@app.command(name="import")
def import_(
    target: AppArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `export` has written.")],
    data: DataOption = None,
) -> None:
    """Make a data folder out of an archive; readers and producers go on where they were."""
    from penstock.run import moving

    loaded = load(target)
    folder = loaded.folder(data)
    archive = moving.restore(folder, loaded.application.name, file.absolute())
    terminal.note(f"'{archive.app}' of {archive.exported} is in {folder.root}: run it")


@app.command()
def demo(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="RSVPs per second.")] = 50,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    data: Annotated[Path | None, typer.Option("--data", help="Keep the data here; default: nowhere.")] = None,
    log: LogOption = "sqlite",
) -> None:
    """Run the Meetup example with its simulated feed."""
    from penstock.cli.demo import demo as run_demo

    _exit(run_demo(terminal, host=host, port=port, rate=rate, data=data, log=log))


def _known(application: Application, names: Sequence[str]) -> None:
    there = [node.name for node in application.nodes]
    for name in names:
        if name not in there:
            raise UnknownViewError(f"the app has no view or flow '{name}'", hint=f"it has: {', '.join(there)}")


def _exit(code: int) -> NoReturn:
    raise typer.Exit(code)


def main() -> None:
    """The console script. Nothing that goes wrong below shows a stack trace."""
    sys.exit(guarded(lambda: app(prog_name="penstock")))


def guarded(body: Callable[[], object]) -> int:
    """Run a verb; every way in which it can end is an exit code."""
    try:
        body()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere
        return UNREAD
    except PenstockError as error:
        terminal.error(error)
        return error.exit_code
    except Exception as error:
        terminal.error(unexpected(error))
        return FAILED
    return OK


if __name__ == "__main__":
    main()
