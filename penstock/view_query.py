"""A view that is written as SQL: which inputs its text names, where it stands in the app file, and how it is run.

Spark alone judges the text. It is cut into words here to see what stands behind `FROM` and `JOIN`, since the graph of
an app must be known where no Spark runs. A name that is overlooked or taken for a relation by mistake is an error of
`check`, never a wrong view: Spark knows no other relations than the inputs found here.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.declaration import Place
from penstock.errors import DeclarationError

if TYPE_CHECKING:
    from sqlglot.tokens import Token

_BEGINS = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "(")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE")
_ENDS_FROM = frozenset(
    {
        "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "QUALIFY", "LIMIT", "UNION",
        "EXCEPT", "MINUS", "INTERSECT", "PIVOT", "UNPIVOT", "VIEW", "|>",
    }
)  # fmt: skip
"""Words after which a comma leads to no further relation."""
_SPARKS_PLACE = re.compile(r"line (\d+),? pos (\d+)")
_SPARKS_CODE = re.compile(r"^\[[A-Z_.]+\] ")
_registered = threading.Lock()
"""Names of relations are the session's, and several threads ask it."""


@dataclass(frozen=True)
class ViewQuery:
    """The function of a view that is SQL. It is called like any other: with a frame for each input."""

    view: str
    text: str
    place: Place
    """Where `app.sql` is called."""
    doc: str = ""
    inputs: tuple[str, ...] = field(init=False)
    places: dict[str, Place] = field(init=False, repr=False, compare=False)
    """Where each input is named first."""
    _begins: Place | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise DeclarationError(f"query={self.text!r} of '{self.view}' is no text", hint="write it as SQL")
        object.__setattr__(self, "_begins", _literal(self.place, self.text))
        places = {name: self._place(*_line_and_column(self.text, at)) for name, at in _relations(_words(self))}
        object.__setattr__(self, "places", places)
        object.__setattr__(self, "inputs", tuple(places))

    def __call__(self, **frames: Any) -> Any:
        """The query over these frames, as Spark analyses it."""
        spark = next(iter(frames.values())).sparkSession
        with _registered:
            try:
                for name, frame in frames.items():
                    frame.createOrReplaceTempView(f"`{name}`")
                return spark.sql(self.text)
            finally:
                for name in frames:
                    spark.catalog.dropTempView(name)

    def explained(self, error: BaseException) -> tuple[Place, str]:
        """Where in the app file the query is wrong, and why, by what Spark says of it."""
        said = str(error).strip()
        found = _SPARKS_PLACE.search(said)
        text = _SPARKS_CODE.sub("", said.partition(" SQLSTATE")[0].split("\n")[0])
        if found is None:
            return self.place, text
        line, column = int(found[1]), int(found[2]) + 1
        if self._begins is None:
            text = f"line {line}, column {column} of its query: {text}"
        return self._place(line, column), text

    def _place(self, line: int, column: int) -> Place:
        """A place of the text in the app file; where the text does not stand there as it is, that of the call."""
        if self._begins is None:
            return self.place
        before = self._begins.column or 1
        line_of_file = self._begins.line + line - 1
        return Place(self._begins.file, line_of_file, column if line > 1 else before + column - 1)


def _literal(place: Place, text: str) -> Place | None:
    """Where a text begins in the file; None: it is computed, or put together there."""
    try:
        source = Path(place.file).read_text()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == text and (node.end_lineno or 0) >= place.line:
            written = ast.get_source_segment(source, node) or ""
            if text in written:
                return Place(place.file, node.lineno, node.col_offset + written.index(text) + 1)
    return None


def _line_and_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _words(query: ViewQuery) -> list[Token]:
    """The text in words, if it is a query and nothing that writes: Spark would do that at once."""
    from sqlglot.dialects.spark import Spark  # only an app with SQL pays for it
    from sqlglot.errors import SqlglotError

    try:
        words: list[Token] = Spark().tokenize(query.text)
    except SqlglotError as error:
        raise DeclarationError(f"the query of '{query.view}' cannot be read: {error}") from None
    depth = 0
    for word in words:
        depth += (word.text == "(") - (word.text == ")")
        if not depth and _upper(word) in _WRITES:
            break
    else:
        if words and _upper(words[0]) in _BEGINS:
            return words
    raise DeclarationError(f"'{query.view}' is no query", hint="it begins with SELECT or WITH, and only reads")


def _upper(word: Token) -> str:
    """A word as a keyword, `GROUP BY` by its first part; what is quoted is none."""
    quoted = word.token_type.name in ("STRING", "IDENTIFIER")
    return "" if quoted else word.text.upper().split()[0]


@dataclass
class _Bracket:
    """What stands between two brackets, as far as it was read."""

    defines: str | None = None
    """It is the query that WITH gives this name."""
    awaits: bool = False
    """The next word names a relation."""
    lists: bool = False
    """A comma leads to another relation."""
    is_query: bool = False
    names_next: bool = False
    """The next word is a name that WITH gives."""
    naming: str | None = None
    names: set[str] = field(default_factory=set)
    """Names that WITH has given: they stand for queries from here on."""


def _relations(words: list[Token]) -> Iterator[tuple[str, int]]:
    """The relations that a query reads, each with the place of its name in the text."""
    open_ = [_Bracket(is_query=True)]
    for number, word in enumerate(words):
        inner, keyword = open_[-1], _upper(word)
        following = _upper(words[number + 1]) if number + 1 < len(words) else ""
        if keyword == "(":
            defines = inner.naming if _before(words, number) == "AS" else None
            open_.append(_Bracket(defines=defines, awaits=inner.awaits, lists=inner.awaits, is_query=inner.awaits))
            inner.awaits = False
        elif keyword == ")" and len(open_) > 1:
            _close(open_)
        elif keyword == "WITH" and following not in ("ROLLUP", "CUBE"):
            inner.is_query = inner.names_next = True
        elif inner.names_next and keyword not in ("RECURSIVE", ","):
            inner.names_next, inner.naming = False, word.text.lower()
            inner.names |= {inner.naming} if _before(words, number) == "RECURSIVE" else set()
        elif keyword == "SELECT":
            inner.is_query, inner.naming = True, None
            inner.awaits = inner.lists = False
        elif keyword in ("FROM", "JOIN") or (keyword == "TABLE" and _begins_query(words, number)):
            first = not number or _before(words, number) == "("
            inner.awaits = (inner.is_query or first) and _before(words, number) != "DISTINCT"
            inner.lists = inner.lists or inner.awaits
        elif keyword == ",":
            inner.awaits = inner.lists
            inner.names_next = not inner.lists and _before(words, number) == ")" and inner.naming is not None
        elif keyword in _ENDS_FROM:
            inner.awaits = inner.lists = False
        elif inner.awaits and keyword != "LATERAL":
            inner.awaits = False
            name = _dotted(words, number)
            given = word.token_type.name in ("NUMBER", "STRING") or keyword == "VALUES" or following == "("
            if not given and not any(name.lower() in part.names for part in open_):
                yield name, word.start


def _close(open_: list[_Bracket]) -> None:
    closed = open_.pop()
    if closed.defines is not None:
        open_[-1].names.add(closed.defines)


def _before(words: list[Token], number: int) -> str:
    return _upper(words[number - 1]) if number else ""


def _begins_query(words: list[Token], number: int) -> bool:
    return not number or _before(words, number) in ("(", "UNION", "ALL", "EXCEPT", "INTERSECT", "MINUS", "DISTINCT")


def _dotted(words: list[Token], number: int) -> str:
    """A name with what it is qualified by."""
    name = str(words[number].text)
    while number + 2 < len(words) and words[number + 1].text == ".":
        number += 2
        name += f".{words[number].text}"
    return name
