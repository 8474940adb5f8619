"""Conditions as Python writes them: what they say becomes SQL, and the values in them parameters, never text.

>>> where((col.topic == "jazz") & (col.rsvps > 3)).sql()
('(`topic` = :p1) AND (`rsvps` > :p2)', {'p1': 'jazz', 'p2': 3})
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from penstock.errors import BadQueryError
from penstock.protocol import wire


class Parameters:
    """The values of one condition, under names that nothing else uses."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = taken
        self._count = 0
        self.values: dict[str, Any] = {}

    def add(self, value: Any) -> str:
        """The text that stands for a value. Times and decimals travel as texts, which the server reads as what they
        are compared with."""
        name = self._next()
        self.values[name] = wire(value)
        return f":{name}"

    def _next(self) -> str:
        while True:
            self._count += 1
            if (name := f"p{self._count}") not in self._taken:
                return name


Build = Callable[[Parameters], str]


def _comparison(operator: str) -> Callable[[Expression, object], Condition]:
    return lambda self, other: _compared(self, operator, other)


def _arithmetic(operator: str) -> tuple[Callable[[Expression, object], Expression], ...]:
    """What stands for the operator with the expression on its left, and on its right."""
    return lambda self, other: _computed(self, operator, other), lambda self, other: _computed(other, operator, self)


class Expression:
    """Something with a value in each row: a column, a field of one, arithmetic over them, a function's result."""

    __slots__ = ("_build",)

    def __init__(self, build: Build) -> None:
        self._build = build

    def build(self, parameters: Parameters) -> str:
        return self._build(parameters)

    # Comparisons

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self.is_null() if other is None else _compared(self, "=", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self.is_not_null() if other is None else _compared(self, "<>", other)

    __lt__ = _comparison("<")
    __le__ = _comparison("<=")
    __gt__ = _comparison(">")
    __ge__ = _comparison(">=")
    __hash__ = None  # type: ignore[assignment]

    def is_in(self, values: Collection[object]) -> Condition:
        """Equal to one of them; never, if there are none."""
        members = list(values)
        if not members:
            return Condition(lambda p: "FALSE")
        if any(isinstance(member, Expression) for member in members):
            return Condition(lambda p: f"{self.build(p)} IN ({', '.join(_text(m, p) for m in members)})")
        return Condition(lambda p: f"{self.build(p)} = ANY({p.add(members)})")

    def between(self, low: object, high: object) -> Condition:
        """From `low` to `high`, both included."""
        return Condition(lambda p: f"{self.build(p)} BETWEEN {_text(low, p)} AND {_text(high, p)}")

    def like(self, pattern: str) -> Condition:
        """`%` stands for any text, `_` for any one character."""
        return Condition(lambda p: f"{self.build(p)} LIKE {p.add(pattern)}")

    def ilike(self, pattern: str) -> Condition:
        """As `like`, in any case."""
        return Condition(lambda p: f"{self.build(p)} ILIKE {p.add(pattern)}")

    def any(self, value: object) -> Condition:
        """Of an array: it holds this value."""
        return Condition(lambda p: f"{_text(value, p)} = ANY({self.build(p)})")

    def is_null(self) -> Condition:
        return Condition(lambda p: f"{self.build(p)} IS NULL")

    def is_not_null(self) -> Condition:
        return Condition(lambda p: f"{self.build(p)} IS NOT NULL")

    # Arithmetic

    __add__, __radd__ = _arithmetic("+")
    __sub__, __rsub__ = _arithmetic("-")
    __mul__, __rmul__ = _arithmetic("*")
    __truediv__, __rtruediv__ = _arithmetic("/")
    __mod__, __rmod__ = _arithmetic("%")

    def __neg__(self) -> Expression:
        return Expression(lambda p: f"(-{self.build(p)})")

    def __bool__(self) -> NoReturn:
        raise _not_a_truth()

    def __repr__(self) -> str:
        parameters = Parameters()
        return f"<{self.build(parameters)} {parameters.values}>"


class ColumnExpression(Expression):
    """A column, or a field of one: `col.window.start`, `col("group")["group_country"]`."""

    __slots__ = ("_path",)

    def __init__(self, path: Sequence[str]) -> None:
        self._path = tuple(path)
        super().__init__(lambda p: ".".join(map(_quoted, self._path)))

    def __getattr__(self, name: str) -> ColumnExpression:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> ColumnExpression:
        """The field of a struct, also one with the name of a method."""
        if not isinstance(name, str):
            raise BadQueryError(f"a field is named by a text, not by {name!r}", hint='write col("a")["b"]')
        return ColumnExpression((*self._path, name))


class Condition(Expression):
    """True, false or unknown in each row. `&` is AND, `|` is OR, `~` is NOT."""

    __slots__ = ()

    def __and__(self, other: Condition) -> Condition:
        return _joined(self, "AND", other)

    def __or__(self, other: Condition) -> Condition:
        return _joined(self, "OR", other)

    def __invert__(self) -> Condition:
        return Condition(lambda p: f"NOT ({self.build(p)})")

    def sql(self, taken: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
        """The text, and what its parameters stand for; their names are none of `taken`."""
        parameters = Parameters(taken)
        text = self.build(parameters)
        return text, parameters.values


class Columns:
    """`col.name`, or `col("any name")` where the name is no Python word."""

    def __call__(self, name: str) -> ColumnExpression:
        return ColumnExpression((name,))

    def __getattr__(self, name: str) -> ColumnExpression:
        if name.startswith("__"):
            raise AttributeError(name)
        return ColumnExpression((name,))


class Functions:
    """`fn.lower(col.topic)`: a function of the filter language over expressions and values."""

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: object) -> Expression:
            return Expression(lambda p: f"{name}({', '.join(_text(a, p) for a in arguments)})")

        return call


col = Columns()
fn = Functions()


def where(condition: Condition, *others: Condition) -> Condition:
    """All of these conditions at once."""
    for one in (condition, *others):
        if not isinstance(one, Condition):
            raise BadQueryError(
                f"{one!r} is no condition", hint="compare a column with something: where(col.rsvps > 3)"
            )
    for other in others:
        condition = condition & other
    return condition


def spelled(
    condition: str | Condition | None, params: Mapping[str, Any] | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Text and parameters as they go over the wire, whichever way the condition was written."""
    bound = {name: wire(value) for name, value in (params or {}).items()}
    if not isinstance(condition, Condition):
        if isinstance(condition, Expression):
            raise BadQueryError(f"{condition!r} is no condition", hint="compare it with something")
        return condition or None, bound or None
    text, values = condition.sql(bound)
    return text, (bound | values) or None


def _text(value: object, parameters: Parameters) -> str:
    return value.build(parameters) if isinstance(value, Expression) else parameters.add(value)


def _compared(left: Expression, operator: str, right: object) -> Condition:
    return Condition(lambda p: f"{left.build(p)} {operator} {_text(right, p)}")


def _computed(left: object, operator: str, right: object) -> Expression:
    return Expression(lambda p: f"({_text(left, p)} {operator} {_text(right, p)})")


def _joined(left: Condition, operator: str, right: object) -> Condition:
    if not isinstance(right, Condition):
        raise BadQueryError(
            f"{right!r} is no condition", hint="put each comparison in parentheses: (col.a > 1) & (col.b < 2)"
        )
    return Condition(lambda p: f"({left.build(p)}) {operator} ({right.build(p)})")


def _quoted(name: str) -> str:
    """In backticks, whatever it is: a name is then never taken for a word of the language."""
    return "`" + name.replace("`", "``") + "`"


def _not_a_truth() -> TypeError:
    return TypeError("a condition is true or false in each row, not here: write & | ~ for and, or, not")
