"""The fingerprint covers every module of the user's project, wherever it lies, and nothing that was installed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.flows.project import is_installed, project_sources

TESTS = Path(__file__).parents[2]
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file of a project with an `app` and a `src` folder, both on the path."""
    for name, module in list(sys.modules.items()):  # a project too: pytest has hundreds of tests imported
        if (getattr(module, "__file__", None) or "").startswith(f"{TESTS}{os.sep}"):
            monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    for folder in ("app", "src"):
        (tmp_path / folder).mkdir()
        monkeypatch.syspath_prepend(str(tmp_path / folder))

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def own(tmp_path: Path, function: Any) -> list[tuple[str, str]]:
    """Of the test's own project."""
    found = project_sources(function)
    return [(name, str(path.relative_to(tmp_path))) for name, path in found if path.is_relative_to(tmp_path)]


def loaded(name: str) -> Any:
    return importlib.import_module(name).view


VIEW = "def view(): ...\n"


def test_modules_outside_of_the_apps_folder_count(tmp_path: Path, write: Write) -> None:
    write("app/shop_a.py", "import prices_a\n" + VIEW)
    write("src/prices_a.py", "RATE = 2\n")
    assert own(tmp_path, loaded("shop_a")) == [("", "app/shop_a.py"), ("prices_a", "src/prices_a.py")]


def test_packages_count_with_their_init_and_namespace_packages_without(tmp_path: Path, write: Write) -> None:
    write("app/shop_b.py", "from whole_b.inner import rates\nfrom space_b.deep import taxes\n" + VIEW)
    write("src/whole_b/__init__.py", "")
    write("src/whole_b/inner/__init__.py", "from . import rates\n")
    write("src/whole_b/inner/rates.py", "from ..base import BASE\n")
    write("src/whole_b/base.py", "BASE = 1\n")
    write("src/space_b/deep/taxes.py", "TAX = 1\n")
    assert own(tmp_path, loaded("shop_b")) == [
        ("", "app/shop_b.py"),
        ("space_b.deep.taxes", "src/space_b/deep/taxes.py"),
        ("whole_b", "src/whole_b/__init__.py"),
        ("whole_b.base", "src/whole_b/base.py"),
        ("whole_b.inner", "src/whole_b/inner/__init__.py"),
        ("whole_b.inner.rates", "src/whole_b/inner/rates.py"),
    ]


def test_an_import_inside_a_function_counts_before_it_has_run(tmp_path: Path, write: Write) -> None:
    write("app/shop_c.py", "def view():\n    from late_c import rates\n    import later_c.deep\n")
    write("src/late_c/__init__.py", "")
    write("src/late_c/rates.py", "import behind_c\n")
    write("src/behind_c.py", "")
    write("src/later_c/deep.py", "")
    names = [name for name, _ in own(tmp_path, loaded("shop_c"))]
    assert names == ["", "behind_c", "late_c", "late_c.rates", "later_c.deep"]
    assert "late_c" not in sys.modules


def test_a_module_that_was_imported_by_a_computed_name_counts(tmp_path: Path, write: Write) -> None:
    write("app/shop_g.py", "import importlib\nimportlib.import_module('plug' + 'in_g')\n" + VIEW)
    write("src/plugin_g.py", "")
    assert own(tmp_path, loaded("shop_g")) == [("", "app/shop_g.py"), ("plugin_g", "src/plugin_g.py")]


def test_the_order_is_that_of_names_however_modules_were_imported(tmp_path: Path, write: Write) -> None:
    write("app/shop_d.py", "import b_d, a_d\n" + VIEW)
    write("src/a_d.py", "")
    write("app/b_d.py", "")
    view = loaded("shop_d")
    first = project_sources(view)
    sys.modules["a_d"] = sys.modules.pop("a_d")
    assert project_sources(view) == first == sorted(first)


def test_what_is_installed_does_not_count(tmp_path: Path, write: Write) -> None:
    write("app/shop_e.py", "import json, msgspec, numpy, penstock.app, packed_e\n" + VIEW)
    (tmp_path / "site-packages").mkdir()
    write("site-packages/packed_e.py", "")
    sys.path.insert(0, str(tmp_path / "site-packages"))
    try:
        assert own(tmp_path, loaded("shop_e")) == [("", "app/shop_e.py")]
    finally:
        sys.path.remove(str(tmp_path / "site-packages"))
    everything = project_sources(loaded("shop_e"))
    assert not [name for name, _ in everything if name.split(".")[0] in ("json", "msgspec", "numpy", "penstock")]


def test_an_installed_app_has_its_own_package_as_its_project(tmp_path: Path, write: Write) -> None:
    write("site-packages/packed_f/__init__.py", "")
    write("site-packages/packed_f/app.py", "from packed_f import rates\nimport other_f\n" + VIEW)
    write("site-packages/packed_f/rates.py", "")
    write("site-packages/other_f.py", "")
    sys.path.insert(0, str(tmp_path / "site-packages"))
    try:
        names = [name for name, _ in own(tmp_path, loaded("packed_f.app"))]
    finally:
        sys.path.remove(str(tmp_path / "site-packages"))
    assert names == ["", "packed_f", "packed_f.rates"]


def test_installed_is_decided_by_the_folder() -> None:
    assert is_installed(Path(msgspec.__file__).resolve())
    assert is_installed(Path(importlib.__file__).resolve())
    assert not is_installed(Path(__file__).resolve())
    assert not is_installed(Path("/usr/src/shop/app.py"))
