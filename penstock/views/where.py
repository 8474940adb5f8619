"""A reader asks for some rows of a view in SQL, so this file compiles that condition into one function.

`compile_where` parses the text (`where_syntax`), checks every node against an allow-list (`where_nodes`) and
every operand against its type (`where_types`), writes Python source in three-valued logic (`where_terms`) and
evaluates it once. Semantics are Spark's in ANSI mode, in the time zone UTC.

1. A row passes only if the condition is TRUE. FALSE, NULL and a row that raises (a division by zero, an index
   past the end of an array) do not pass; the last are counted in `errors`, which all filters of a view share.
2. Whatever the text, the outcome is a `Where` or a `BadQueryError`.
3. Equal texts over equal columns are equal filters: whoever serves many readers evaluates each once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from penstock.change import Column, Row
from penstock.errors import BadQueryError
from penstock.views.where_nodes import Compiler
from penstock.views.where_syntax import parse, plain

__all__ = ["Column", "Where", "compile_where"]


class Where:
    """A compiled filter. Call it with a row, or take `test`, the same without the cost of a method call."""

    __slots__ = ("_errors", "_schema", "columns", "test", "text")

    def __init__(
        self,
        text: str,
        columns: frozenset[str],
        schema: tuple[Column, ...],
        test: Callable[[Row], bool],
        errors: list[int],
    ) -> None:
        self.text = text
        self.columns = columns
        self.test = test
        self._schema = schema
        self._errors = errors

    def __call__(self, row: Row) -> bool:
        return self.test(row)

    @property
    def errors(self) -> int:
        """How many rows raised, and so did not pass; those of other filters with the same count are among them."""
        return self._errors[0]

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

    `errors` is a count that several filters may share: of rows on which one could not be evaluated.

    >>> columns = [Column("city", "string"), Column("rsvps", "bigint")]
    >>> where = compile_where("city = 'Oslo' and rsvps > 10", columns)
    >>> where(("Oslo", 11)), where(("Oslo", None))
    (True, False)
    """
    tree = bound(parse(text), params or {})
    compiler = Compiler([(column.name, column.type) for column in columns])
    try:
        term = compiler.condition(tree)
        errors = [0] if errors is None else errors
        test = _function(term.truth(), compiler.scope.constants, errors)
    except (RecursionError, MemoryError, SyntaxError):
        raise BadQueryError("The filter is too complex.", hint="Use fewer nested expressions.") from None
    # A text that begins and ends with a bracket was put between them by the node that wrote it.
    wrapped = term.text.startswith("(") and term.text.endswith(")")
    return Where(term.text[1:-1] if wrapped else term.text, frozenset(compiler.used), tuple(columns), test, errors)


def bound(tree: Any, params: Mapping[str, Any]) -> Any:
    """The tree with a value in the place of each parameter; `x = ANY(:list)` becomes `x IN (...)`."""

    def value_of(node: Any) -> Any:
        if node.this not in params:
            raise BadQueryError(f"There is no value for the parameter ':{node.this or '?'}'.")
        return params[node.this]

    def replaced(node: Any) -> Any:
        if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
            inner = plain(node.expression.this)
            if isinstance(inner, exp.Placeholder) and isinstance(value := value_of(inner), list):
                items = [_node(item) for item in value]
                return (
                    exp.In(this=node.this, expressions=items)
                    if items
                    else exp.and_(exp.EQ(this=node.this, expression=exp.Null()), exp.Boolean(this=False))
                )
        return _node(value_of(node)) if isinstance(node, exp.Placeholder) else node

    return tree.transform(replaced)


def _node(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return exp.Null() if value is None else exp.Boolean(this=value)
    if isinstance(value, int | float):
        return exp.Literal.number(value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    raise BadQueryError("A parameter must be a text, a number, a boolean, null, or a list for ANY.")


_TEMPLATE: Final = """
def bind(_errors, {names}):
    def test(r):
        try:
            return {condition}
        except Exception:
            _errors[0] += 1
            return False
    return test
"""


def _function(condition: str, constants: dict[str, Any], errors: list[int]) -> Callable[[Row], bool]:
    names = {"len": len, "abs": abs, "Exception": Exception, "__builtins__": {}}
    source = _TEMPLATE.format(names=", ".join(constants), condition=condition)
    exec(compile(source, "<where>", "exec"), names)
    test: Callable[[Row], bool] = names["bind"](errors, **constants)  # type: ignore[operator]
    return test
