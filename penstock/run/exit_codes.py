"""How a process of Penstock ends, as a number: for shells, for scripts, and for the supervisor."""

OK = 0
FAILED = 1
"""An error, problems that stop `run`, or differences that `verify` found."""
UNSURE = 2
"""A command line that cannot be read; of `verify`, that nothing differs but not everything can be proved."""
USER_ERROR = 3
"""Between processes only: a child that ends with it must not be started again; `run/<child>.error.json`
says why."""
INTERRUPTED = 130
"""As a shell says it of programs that end by Ctrl-C."""
UNREAD = 141
"""Whoever read our output has gone: as a shell says it of programs that end by SIGPIPE."""
TERMINATED = 143
"""By SIGTERM, before `run` and `demo` were up. From then on a supervisor stops them in order, with 0."""
