"""Writes docs/reference/cli.md out of the commands themselves, so that no verb or option is undocumented.

python -m penstock.cli.reference > docs/reference/cli.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from penstock.cli.main import app

_HEAD = """\
# The command line

This page is written by `python -m penstock.cli.reference`; a test compares the two.

Data goes to stdout and notes to stderr, so that every verb can stand in a pipe. Verbs that print data take
`--json`. `send`, `tail`, `dead`, `watch`, `status` and `rebuild` talk to a running server (`--url`); `run`,
`check`, `graph`, `verify` and `keys` take the app itself, and its data folder with `--data`.

An error is one paragraph: its code, what failed, why, and what to do. What nobody expected is one paragraph
too; it names the file that holds the trace.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; `run` and `demo`: stopped as asked; `verify`: every view equals its function over the log |
| 1 | an error; `check`: `run` would refuse this app; `send`, `dead fix`, `dead replay`: some events were rejected; \
`verify`: a view differs; `run`: a process could not be kept alive |
| 2 | the command line cannot be read; `verify`: nothing differs, but something could not be proved |
| 3 | only between processes: a child of `run` met an error that the next one would meet too |
| 130 | ended by Ctrl-C; `run` and `demo`: before they were up, or by a second one, which kills |
| 141 | nobody reads stdout any more, as in `penstock watch topics \\| head -1` |
| 143 | `run` and `demo`: ended by SIGTERM or SIGHUP before they were up |

## What `run` does

`run` is a supervisor with two children, `edge` and `flows`. It prints `ready <address>` on stdout once the
door is open, the views are loaded and every query has started.

- Before it starts anything it checks the declarations, Java (17 or newer), the data folder (a local disk,
  this app's, held by nobody else) and the port.
- A child that dies is started again after 0.2 s, then ever later, up to 10 s; 30 s of health start the
  count anew. After five deaths within 5 s of their start it gives up, shows the end of that child's log,
  and exits with 1.
- A child that lives but gives no sign of it (edge: `/healthz` for 10 s; flows: its heartbeat for 20 s,
  which also needs an answer from the JVM) writes its threads to its log, is killed and started again.
- SIGTERM, SIGINT and SIGHUP stop everything within 10 s. Nothing acknowledged is ever lost, however it ends.
- When the supervisor dies, its children and the JVM end within 2 s; the next `run` waits for them.
- Children's logs are `logs/edge.log` and `logs/flows.log` in the data folder, at most 8 MiB each, with
  three older ones.
- `run/supervisor.json` in the data folder says how the children are: state, pid, restarts, how often they
  hung.

## Verbs
"""


def reference() -> str:
    """The whole page."""
    command: Any = typer.main.get_command(app)
    return _HEAD + "".join(_verb(name, verb) for name, verb in _verbs(command.commands))


def _verbs(commands: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb by what a user types, also those of a group: `keys create`."""
    for name, verb in commands.items():
        if hasattr(verb, "commands"):
            yield from _verbs(verb.commands, f"{before}{name} ")
        else:
            yield before + name, verb


def _verb(name: str, verb: Any) -> str:
    arguments = [p for p in verb.params if p.param_type_name == "argument"]
    usage = " ".join(["penstock", name, *(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
    lines = ["", f"### {name}", "", " ".join((verb.help or "").split()), "", "```", usage, "```", ""]
    rows = [*(_argument(p) for p in arguments), *_options(verb)]
    return "\n".join([*lines, "| | default | |", "|---|---|---|", *rows, ""])


def _argument(parameter: Any) -> str:
    return f"| `{_cell(parameter.metavar or parameter.name.upper())}` | | {parameter.help} |"


def _options(verb: Any) -> Iterator[str]:
    for parameter in verb.params:
        if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "help":
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            yield f"| {names} | {_default(parameter.default)} | {_cell(parameter.help)} |"


def _default(value: Any) -> str:
    return "" if value is None or value is False else "yes" if value is True else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
