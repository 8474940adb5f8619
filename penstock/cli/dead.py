"""`penstock dead`: the dead letters of a running app, looked at, mended and sent again."""

from __future__ import annotations

import json
from collections import deque
from typing import Annotated

import typer

from penstock.cli import letters as shown
from penstock.cli.letters import Chosen, Letter
from penstock.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from penstock.cli.remote import DEFAULT_URL, Remote
from penstock.run.exit_codes import FAILED, OK
from penstock.run.terminal import Terminal

app = typer.Typer(help="Look at events that were rejected, mend them and send them again.", no_args_is_help=True)
terminal = Terminal()

StreamOption = Annotated[str | None, typer.Option("--stream", help="Only letters meant for this stream.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only letters with this reason.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only letters from then on: a time, or '2 hours'.")]
AllOption = Annotated[bool, typer.Option("--all", help="All letters that were not replayed.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[LETTER]...", help="Names of letters, such as 0-17.")]


@app.command("list")
def list_letters(
    stream: StreamOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    replayed: Annotated[
        bool | None, typer.Option("--replayed/--not-replayed", help="Only those that were, or were not, replayed.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show the newest so many; --json: all.")] = 50,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest first; private fields are masked."""
    newest: deque[Letter] = deque(maxlen=limit)
    count = 0
    with Remote(url, key, ca) as remote:
        for letter in Chosen((), stream, reason, since, replayed).letters(remote, masked=True):
            count += 1
            if as_json:
                terminal.data(json.dumps(shown.body(letter), ensure_ascii=False))
            else:
                newest.append(letter)
    if newest:
        terminal.out.print(shown.table(list(newest)))
    terminal.note(f"{count:,} letters" + (f", the newest {limit} are shown" if newest and count > limit else ""))


@app.command()
def show(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="The name of a letter, such as 0-17.")],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything of one dead letter, private fields too."""
    with Remote(url, key, ca) as remote:
        (found,) = Chosen([letter]).letters(remote, masked=False)
    if as_json:
        terminal.data(json.dumps(shown.body(found), ensure_ascii=False))
    else:
        terminal.out.print(shown.whole(found))


@app.command()
def fix(
    file: Annotated[str, typer.Argument(metavar="FILE.py[:FUNCTION]", help="Where def fix(letter) stands.")],
    names: Names = None,
    stream: StreamOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    everything: AllOption = False,
    apply: Annotated[bool, typer.Option("--apply", help="Send what the function makes of them.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mend letters with a function and show what would become of them; with --apply, replay them."""
    chosen = Chosen(names or (), stream, reason, since, replayed=False)
    _replay(chosen, everything, file, Remote(url, key, ca), dry_run=not apply, as_json=as_json)


@app.command()
def replay(
    names: Names = None,
    stream: StreamOption = None,
    reason: ReasonOption = None,
    since: SinceOption = None,
    everything: AllOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of them.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send letters as they are into their stream again; each is taken once, however often this is run."""
    chosen = Chosen(names or (), stream, reason, since, replayed=False)
    _replay(chosen, everything, None, Remote(url, key, ca), dry_run=dry_run, as_json=as_json)


def _replay(
    chosen: Chosen, everything: bool, file: str | None, server: Remote, *, dry_run: bool, as_json: bool
) -> None:
    from penstock.cli import letter_replay

    chosen.refuse_nothing(everything)
    function = None if file is None else letter_replay.load_fix(file)
    with server as remote:
        sending = letter_replay.Sending(remote, terminal, dry_run=dry_run, as_json=as_json)
        try:
            sending.run(chosen.letters(remote, masked=False), function)
        finally:
            terminal.note(sending.tally.line(), "")
    raise typer.Exit(FAILED if sending.tally.bad else OK)
