"""A reader asks for some rows of a view in SQL, so this file compiles that condition into one function.

`compile_where` parses the text (`syntax`), checks every node against an allow-list (`compiler`) and every operand
against its type (`sql_types`), writes Python source in three-valued logic (`terms`) and compiles it once. It means
what Spark means in ANSI mode, in the time zone UTC.

1. A row passes only if the condition is TRUE. It does not where that is FALSE or NULL, or where it raises (a division
   by zero, an index past the end of an array): such rows are counted in `errors`, which all filters of a view share.
2. Whatever the text, the outcome is a `Where` or a `BadQueryError`.
3. Equal texts over equal columns are equal filters: whoever serves many readers evaluates each once per row. The
   text is canonical: a parameter's value stands in it as a literal, and the order of AND, OR and IN does not count.
4. `needs` is what an index may look rows up by: where none of a need's entries holds, the filter is not true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.change import Column, Row
from penstock.errors import BadQueryError
from penstock.views.where.bound_values import check_params
from penstock.views.where.compiler import Compiler
from penstock.views.where.needs import On
from penstock.views.where.syntax import parse
from penstock.views.where.terms import FilterScope, Term

__all__ = ["Column", "Where", "compile_where"]


class Where:
    """A compiled filter. Call it with a row, or take `test`, the same without the cost of a method call."""

    __slots__ = ("_constants", "_errors", "_schema", "columns", "needs", "test", "text")

    def __init__(
        self, term: Term, columns: frozenset[str], schema: tuple[Column, ...], scope: FilterScope, errors: list[int]
    ) -> None:
        # A text that begins and ends with a bracket was put between them by the node that wrote it.
        wrapped = term.text.startswith("(") and term.text.endswith(")")
        self.text = term.text[1:-1] if wrapped else term.text
        self.columns = columns
        self.test: Callable[[Row], bool] = _function(_TEST, term.truth(), scope.constants, errors)
        self.needs = term.needs
        self._schema = schema
        self._constants = scope.constants
        self._errors = errors

    def __call__(self, row: Row) -> bool:
        return self.test(row)

    @property
    def errors(self) -> int:
        """How many rows raised, and so did not pass, with those of the filters that share the count."""
        return self._errors[0]

    def reader(self, on: On) -> Callable[[Row], Any]:
        """A function that computes an expression of `needs` from a row."""
        read: Callable[[Row], Any] = _function(_READ, on.source, self._constants, self._errors)
        return read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and (self.text, self._schema) == (other.text, other._schema)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Where({self.text!r})"


def compile_where(
    text: str,
    columns: Sequence[Column],
    errors: list[int] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Where:
    """Compiles one SQL condition over these columns; a text that is not one raises `BadQueryError`.

    `errors` counts the rows on which it could not be evaluated, and several filters may share it. `params` are the
    values of parameters such as `:least`; they are never read as part of the text.

    >>> columns = [Column("city", "string"), Column("rsvps", "bigint")]
    >>> where = compile_where("city = :city and rsvps > 10", columns, params={"city": "Oslo"})
    >>> where(("Oslo", 11)), where(("Oslo", None))
    (True, False)
    """
    tree = parse(text)
    compiler = Compiler([(column.name, column.type) for column in columns], check_params(params or {}))
    try:
        term = compiler.condition(tree)
        used, errors = frozenset(compiler.used), [0] if errors is None else errors
        return Where(term, used, tuple(columns), compiler.scope, errors)
    except (RecursionError, MemoryError, SyntaxError):
        raise BadQueryError("The filter is too complex.", hint="Use fewer nested expressions.") from None


_TEST: Final = """
def bind(_errors, {names}):
    def test(r):
        try:
            return {source}
        except Exception:
            _errors[0] += 1
            return False
    return test
"""

_READ: Final = """
def bind(_errors, {names}):
    def read(r):
        return {source}
    return read
"""


def _function(template: str, source: str, constants: dict[str, Any], errors: list[int]) -> Any:
    names: dict[str, Any] = {"len": len, "abs": abs, "Exception": Exception, "__builtins__": {}}
    exec(compile(template.format(names=", ".join(constants), source=source), "<where>", "exec"), names)
    return names["bind"](errors, **constants)
