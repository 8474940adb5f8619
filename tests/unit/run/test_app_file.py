"""Whatever is wrong with an app file, the error names the user's file and line and shows that line."""

import os
import sys
from pathlib import Path

import pytest

from penstock.errors import AppFileError, DeclarationError
from penstock.run.app_file import import_file, load

APP = 'from penstock import App\napp = App("shop")\n'


@pytest.fixture(autouse=True)
def _modules_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "corner_app.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(target: object) -> AppFileError:
    with pytest.raises(AppFileError) as caught:
        load(str(target))
    return caught.value


def test_a_file_gives_its_app_and_the_folder_beside_it(tmp_path):
    loaded = load(str(write(tmp_path, APP)))
    assert loaded.application.name == "shop"
    assert loaded.folder(None).root == tmp_path / ".penstock" / "shop"
    assert loaded.folder(tmp_path / "d").root == tmp_path / "d"


def test_the_module_is_where_spark_and_msgspec_look_for_it(tmp_path):
    load(str(write(tmp_path, APP)))
    assert sys.modules["corner_app"].app.name == "shop"
    assert str(tmp_path) in sys.path


def test_a_file_called_like_another_module_does_not_replace_it(tmp_path):
    import json

    load(str(write(tmp_path, APP, "json.py")))
    assert sys.modules["json"] is json


def test_nor_does_it_replace_one_with_the_name_that_is_taken_instead(tmp_path):
    first = load(str(write(tmp_path, APP, "json.py")))
    second = load(str(write(tmp_path, APP, "json.py")))
    assert first.application.nodes == second.application.nodes == ()
    assert {"json_app", "json_app_"} <= set(sys.modules)


def test_the_file_may_import_its_neighbours(tmp_path):
    write(tmp_path, "NAME = 'neighbour'", "shop_words.py")
    loaded = load(str(write(tmp_path, "from shop_words import NAME\nfrom penstock import App\napp = App(NAME)\n")))
    assert loaded.application.name == "neighbour"


def test_a_name_chooses_among_several_apps(tmp_path):
    path = write(tmp_path, APP + 'other = App("other")\n')
    assert load(f"{path}:other").application.name == "other"


def test_a_module_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "shop_pkg").mkdir()
    write(tmp_path / "shop_pkg", APP, "mod.py")
    monkeypatch.chdir(tmp_path)
    assert load("shop_pkg.mod:app").application.name == "shop"


def test_a_syntax_error_shows_the_line_and_the_place_in_it(tmp_path):
    error = refused(write(tmp_path, APP + "def f(:\n    pass\n"))
    assert error.message == "corner_app.py:3: invalid syntax"
    assert error.detail == "def f(:\n      ^"


def test_an_exception_names_the_users_line_not_ours(tmp_path):
    error = refused(write(tmp_path, APP + "def price():\n    return 1 / 0\n\nprice()\n"))
    assert error.message == "corner_app.py:4: ZeroDivisionError: division by zero"
    assert error.detail == "return 1 / 0"


def test_a_wrong_declaration_keeps_its_own_code_and_line(tmp_path):
    text = APP + 'from penstock import Event\nclass E(Event):\n    a: int\napp.stream("s", E, retain="soon")\n'
    with pytest.raises(DeclarationError, match=r"^corner_app.py:6: "):
        load(str(write(tmp_path, text)))


def test_an_exception_inside_a_library_names_the_line_that_called_it(tmp_path):
    error = refused(write(tmp_path, APP + "import json\n\nx = json.loads('{')\n"))
    assert error.message.startswith("corner_app.py:5: JSONDecodeError")


def test_an_error_in_a_neighbour_names_the_neighbour(tmp_path):
    write(tmp_path, "x = 1\ny = x + None\n", "shop_broken.py")
    error = refused(write(tmp_path, "import shop_broken\n"))
    assert error.message.startswith("shop_broken.py:2: TypeError")


def test_a_missing_package_says_how_to_install_it(tmp_path):
    error = refused(write(tmp_path, "import no_such_package.inside\n"))
    assert "corner_app.py:1: ModuleNotFoundError" in error.message
    assert "pip install no_such_package)" in (error.hint or "")


def test_a_file_that_exits_is_refused(tmp_path):
    assert "corner_app.py:1: it calls exit()" in refused(write(tmp_path, "raise SystemExit(0)\n")).message


def test_a_failed_file_is_not_left_half_imported(tmp_path):
    refused(write(tmp_path, "raise ValueError\n"))
    assert "corner_app" not in sys.modules


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("x = 1\n", "", "corner_app.py has no App"),
        (APP + 'b = App("b")\n', "", "corner_app.py has 2 Apps: app, b"),
        (APP, ":nope", "corner_app.py has no App called 'nope'"),
        (APP + "n = 3\n", ":n", "corner_app.py has no App called 'n'"),
    ],
)
def test_no_app_or_an_unclear_one_is_refused(tmp_path, text, name, expected):
    assert refused(f"{write(tmp_path, text)}{name}").message == expected


def test_which_of_two_apps_is_said_as_the_user_named_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corner_pkg").mkdir()
    write(tmp_path / "corner_pkg", APP + 'b = App("b")\n', "shop.py")
    assert refused("corner_pkg.shop").hint == "say which: corner_pkg.shop:app"
    assert refused("corner_pkg/shop.py").hint == "say which: corner_pkg/shop.py:app"


def test_a_file_of_a_package_that_imports_its_neighbour_is_to_be_named_as_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corner_pkg").mkdir()
    write(tmp_path / "corner_pkg", APP, "other.py")
    write(tmp_path / "corner_pkg", "from .other import app\n", "shop.py")
    assert "pkg.mod" in (refused("corner_pkg/shop.py").hint or "")
    assert load("corner_pkg.shop").application.name == "shop"


def test_a_file_that_starts_spark_is_refused_and_told_what_to_write(tmp_path, monkeypatch):
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    as_get_or_create = "from pyspark import SparkContext\nSparkContext._active_spark_context = object()\n"
    error = refused(write(tmp_path, APP + as_get_or_create))
    assert error.message.endswith("starts a Spark session while it is imported")
    assert "a parameter of the function 'spark'" in (error.hint or "")
    loaded = load(str(write(tmp_path, APP, "fine_app.py")))  # a session that was there before is no reason
    assert loaded.application.name == "shop"


def test_two_names_of_one_app_are_one_app(tmp_path):
    assert load(str(write(tmp_path, APP + "same = app\n"))).application.name == "shop"


def test_what_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("nope.py").message == "there is no file 'nope.py'"
    assert refused("no_such_module").message == "there is no module 'no_such_module'"
    assert refused("no_such_module.inside:app").message == "there is no module 'no_such_module'"


def test_a_folder_says_which_file_in_it_to_name(tmp_path):
    write(tmp_path, APP, "app.py")
    error = refused(tmp_path)
    assert "is a folder" in error.message
    assert str(tmp_path / "app.py") in (error.hint or "")


ORDERS = """from datetime import timedelta
from penstock import App, Event
app = App("shop")
class Order(Event):
    country: str
"""


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('app.stream("orders", Order, late_after=600)', "10 minutes"),
        ('app.stream("orders", Order, late_after=timedelta(minutes=-1))', "10 minutes"),
        ('app.stream("orders", Order, key=5)', "names as texts"),
        ('app.stream("orders", Order, partitions="3")', "whole number"),
        ('app.stream("orders", Order(country="NL"))', "class X(Event)"),
        ('app.pull("orders", "ws://feed.example")', "app.table returned"),
        ('app.view(key="country", limit="ten")(lambda orders: orders)', "whole number"),
        ('app.view(key="country", where=5)(lambda orders: orders)', "SQL"),
        ('app.view(key=["country", None])(lambda orders: orders)', "names as texts"),
    ],
)
def test_an_option_of_the_wrong_type_says_what_to_write(tmp_path, line, hint):
    with pytest.raises(DeclarationError, match=r"^corner_app.py:6: ") as caught:
        load(str(write(tmp_path, f"{ORDERS}{line}\n")))
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("line", ["@app.view", "@app.view()"])
def test_a_view_without_its_key_says_what_to_write(tmp_path, line):
    error = refused(write(tmp_path, f"{APP}{line}\ndef counts(orders): ...\n"))
    assert error.message.startswith("corner_app.py:3:")
    assert '@app.view(key="...")' in error.hint


def test_a_file_that_was_saved_twice_in_a_second_is_run_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    for n in (1, 2):
        path.write_text(f"n = {n}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert import_file(path).n == n
