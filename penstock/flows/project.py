"""Which source files are the user's own, so that a change in any of them is seen where a Python function uses it.

A module belongs to the project when it is neither installed (a `site-packages` folder, the interpreter's library) nor
Penstock itself. Where it lies does not matter: beside the app file, in a `src` folder, in an editable install. Modules
count that are imported now, and those that the project's files name in an `import` anywhere: a worker runs imports
inside functions that the driver never sees.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from penstock.view_query import ViewQuery

_PENSTOCK = "penstock"
_APP = ""
"""The name under which the app file counts: it is loaded under different ones."""
_FOLDERS = frozenset({"site-packages", "dist-packages"})


def project_sources(function: Callable[..., Any]) -> list[tuple[str, Path]]:
    """The modules of the project that `function` is part of, by name, in a stable order; the app file first."""
    app = _app_file(inspect.unwrap(function)).resolve()
    package = getattr(function, "__module__", None) or _APP
    found: dict[Path, str] = {}
    waiting = [(app, package), *_imported(package.partition(".")[0], app)]
    while waiting:
        path, name = waiting.pop()
        if path not in found:
            found[path] = name
            waiting += _named_in(path, name)
    found[app] = _APP
    return sorted((name, path) for path, name in found.items())


def _app_file(function: Callable[..., Any]) -> Path:
    return Path(function.place.file if isinstance(function, ViewQuery) else function.__code__.co_filename)


def is_installed(path: Path) -> bool:
    """Whether a file came with the interpreter or with a package that somebody installed."""
    return bool(_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in _library())


@cache
def _library() -> frozenset[Path]:
    """Not the prefixes themselves: with Debian's Python that is /usr, and a project may lie in /usr/src."""
    paths = sysconfig.get_paths()
    libraries = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*libraries, *site.getsitepackages(), site.getusersitepackages()]
    return frozenset(Path(folder).resolve() for folder in folders)


def _imported(package: str, app: Path) -> Iterator[tuple[Path, str]]:
    """What is imported now. An app that is itself installed still has its own package as its project."""
    for name, module in sorted(sys.modules.items()):
        path = _file(getattr(module, "__file__", None))
        if path is None or name == "__main__" or name.partition(".")[0] == _PENSTOCK:
            continue
        if not is_installed(path) or (is_installed(app) and name.partition(".")[0] == package):
            yield path, name


def _named_in(path: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Modules of the project that a file imports, also those that were not imported yet."""
    try:
        tree = ast.parse(path.read_bytes()) if path.suffix == ".py" else ast.Module([], [])
    except SyntaxError:
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for wanted in sorted({name for node in ast.walk(tree) for name in _names(node, package)}):
        for spec in _specs(wanted):
            found = _file(spec.origin)
            if found is not None and not is_installed(found):
                yield found, spec.name


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".") if package else []
        above = parts[: len(parts) - node.level + 1] if node.level else []
        start = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield f"{start}.{alias.name}" if start else alias.name


def _specs(name: str) -> Iterator[ModuleSpec]:
    """A module and the packages that it lies in, as far as there are such, without importing any."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == _PENSTOCK:
        return
    spec = _top(top)
    for part in name.split(".")[1:]:
        if spec is None:
            return
        yield spec
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    if spec is not None:
        yield spec


def _top(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module that was made by hand
        return None


def _file(name: str | None) -> Path | None:
    path = Path(name).resolve() if name else None
    return path if path is not None and path.is_file() else None
