"""Only what is listed may run on the edge, so each node of a filter has an entry here.

A visit checks the node's operands and returns its term. Nothing here sees a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from penstock.errors import BadQueryError
from penstock.views.where.bound_values import typed_list, typed_parameter
from penstock.views.where.comparison_needs import implied
from penstock.views.where.comparison_needs import is_null as null_implied
from penstock.views.where.functions import array_contains, choice, concatenated, find_function, unified
from penstock.views.where.needs import NEVER, all_of, any_of
from penstock.views.where.operators import arithmetic, like, minus
from penstock.views.where.sql_types import (
    BINARY,
    BOOLEAN,
    STRING,
    VOID,
    SqlType,
    cast,
    number_literal,
    parse_type,
)
from penstock.views.where.syntax import HINT, chain, plain, quoted_name
from penstock.views.where.terms import (
    FilterScope,
    Term,
    both,
    comparable,
    compare,
    either,
    folded,
    guarded,
    is_null,
    literal,
    negated,
    nullable,
    once,
    same,
    strict,
)


class Compiler:
    """Turns syntax nodes into terms. What has no entry in a table below is refused."""

    def __init__(self, columns: Sequence[tuple[str, str]], params: Mapping[str, Any] | None = None) -> None:
        self.scope = FilterScope()
        self.used: set[str] = set()
        self._params = params or {}
        self._names = [name for name, _ in columns]
        self._types = [kind for _, kind in columns]

    def condition(self, node: Any) -> Term:
        term = self.term(node)
        if term.type not in (BOOLEAN, VOID):
            raise BadQueryError(f"{term.text} is {term.type}, not a condition.", hint=HINT)
        return term

    def term(self, node: Any) -> Term:
        node = plain(node)
        if operator := _COMPARISONS.get(type(node)):
            return self._comparison(operator, node)
        if operator := _ARITHMETIC.get(type(node)):
            return arithmetic(self.scope, operator, self.term(node.this), self.term(node.expression))
        visit = _VISITS.get(type(node))
        if visit is None:
            raise BadQueryError(f"A filter cannot contain {_described(node)}.", hint=HINT)
        return visit(self, node)

    def _terms(self, nodes: Sequence[Any]) -> list[Term]:
        return [self.term(node) for node in nodes]

    # Values

    def _literal(self, node: Any) -> Term:
        if node.is_string:
            return literal(self.scope, STRING, node.this)
        try:
            return literal(self.scope, *number_literal(node.this))
        except (ValueError, ArithmeticError) as error:
            raise BadQueryError(f"The number {node.this[:50]} cannot be used.", detail=str(error)[:200]) from None

    def _adjacent(self, node: Any) -> Term:
        """'a' 'b': string literals side by side are one."""
        return literal(self.scope, STRING, "".join(str(part.this) for part in node.expressions))

    def _boolean(self, node: Any) -> Term:
        return literal(self.scope, BOOLEAN, bool(node.this))

    def _null(self, node: Any) -> Term:
        return literal(self.scope, VOID, None)

    def _binary(self, node: Any) -> Term:
        try:
            return literal(self.scope, BINARY, bytes.fromhex(node.this))
        except ValueError:
            raise BadQueryError(f"X'{node.this}' is not a whole number of hexadecimal bytes.") from None

    def _parameter(self, node: Any) -> Term:
        name, value = self._bound(node)
        if isinstance(value, (list, tuple)):
            raise BadQueryError(f"The parameter ':{name}' is a list.", hint=f"Write `column = ANY(:{name})`.")
        return literal(self.scope, *typed_parameter(name, value))

    def _bound(self, node: Any) -> tuple[str, Any]:
        """A parameter's name and value, which is never read as text of the filter."""
        name = node.this
        if not isinstance(name, str) or not name:
            raise BadQueryError("A parameter needs a name.", hint='Write `rsvps > :least` and params={"least": 10}.')
        if name not in self._params:
            names = ", ".join(f"':{given}'" for given in self._params) or "none"
            raise BadQueryError(f"There is no value for the parameter ':{name}'.", hint=f"Parameters given: {names}.")
        return name, self._params[name]

    def _column(self, node: Any) -> Term:
        first, *fields = node.parts
        term = self._top_column(_name(first))
        for part in fields:
            term = self._field_of(term, _name(part))
        return term

    def _top_column(self, name: str) -> Term:
        index = resolve(name, self._names)
        name = self._names[index]
        self.used.add(name)
        return nullable(self.scope, parse_type(self._types[index]), quoted_name(name), f"r[{index}]", total=True)

    def _field(self, node: Any) -> Term:
        return self._field_of(self.term(node.this), _name(node.expression))

    def _field_of(self, base: Term, name: str) -> Term:
        if base.type.kind == "array" and base.type.args and base.type.args[0].kind == "struct":
            return self._field_of_each(base, name)
        if base.type.kind == "map" and base.type.args[:1] == (STRING,):
            return self._entry(base, literal(self.scope, STRING, name))
        field, kind = _struct_field(base, base.type, name)
        text = f"{base.text}.{quoted_name(field)}"
        return nullable(self.scope, kind, text, f"{base.source}[{field!r}]", base, total=True)

    def _field_of_each(self, base: Term, name: str) -> Term:
        field, kind = _struct_field(base, base.type.args[0], name)
        source = f"[None if e is None else e[{field!r}] for e in {base.source}]"
        return strict(SqlType("array", (kind,)), f"{base.text}.{quoted_name(field)}", source, base, total=True)

    def _item(self, node: Any) -> Term:
        base = self.term(node.this)
        if len(node.expressions) != 1:
            raise BadQueryError(f"{base.text} takes one index in its brackets.", hint=HINT)
        index = self.term(node.expressions[0])
        if base.type.kind == "struct" and isinstance(index.const, str):
            return self._field_of(base, index.const)
        if base.type.kind == "map" and len(base.type.args) == 2:
            return self._entry(base, index)
        return self._element(base, index)

    def _element(self, base: Term, index: Term) -> Term:
        if base.type.kind != "array" or not base.type.args:
            raise BadQueryError(f"{base.text} is {base.type}, which has no elements.")
        if type(index.const) is not int or index.const < 0:
            raise BadQueryError(
                f"The index of {base.text} must be a whole number from 0, written out, not {index.text}."
            )
        text = f"{base.text}[{index.text}]"
        return nullable(self.scope, base.type.args[0], text, f"{base.source}[{index.const}]", base)

    def _entry(self, base: Term, key: Term) -> Term:
        sample, key = comparable(self.scope, "=", Term(base.type.args[0], f"a key of {base.text}", "e"), key)
        if not key.is_const or key.is_null or sample.source != "e":
            raise BadQueryError(f"The key of {base.text} ({base.type}) must be written out, not {key.text}.")
        raw = f"{base.source}.get({key.source})"
        return nullable(self.scope, base.type.args[1], f"{base.text}[{key.text}]", raw, base, total=True)

    # Conditions

    def _comparison(self, operator: str, node: Any) -> Term:
        sides = plain(node.this), plain(node.expression)
        if operator == "=" and isinstance(sides[0], exp.Any):
            sides = sides[1], sides[0]
        if operator == "=" and isinstance(sides[1], exp.Any):
            return self._any(sides[0], plain(sides[1].this))
        left, right = self.term(sides[0]), self.term(sides[1])
        if operator in ("<=>", "is distinct"):
            left, right = (right, left) if left.is_const and not right.is_const else (left, right)
            equal = same(self.scope, left, right)
            if operator == "is distinct":
                return negated(f"(NOT {equal.text})", equal)
            return replace(equal, needs=implied(self.scope, "<=>", left, right))
        return replace(compare(self.scope, operator, left, right), needs=implied(self.scope, operator, left, right))

    def _any(self, wanted: Any, array: Any) -> Term:
        """`x = ANY(a)` is array_contains(a, x); of a list that is bound to a parameter that is x IN (its values)."""
        if isinstance(array, exp.Placeholder):
            name, values = self._bound(array)
            if isinstance(values, (list, tuple)):
                items = [literal(self.scope, *kind) for kind in typed_list(name, values)]
                return self._among(self.term(wanted), items)
        return array_contains(self.scope, "array_contains", [self.term(array), self.term(wanted)])

    def _and(self, node: Any) -> Term:
        operands = self._operands(node)
        return operands[0] if len(operands) == 1 else both(self.scope, _chained("AND", operands), operands)

    def _or(self, node: Any) -> Term:
        operands = self._operands(node)
        return operands[0] if len(operands) == 1 else either(self.scope, _chained("OR", operands), operands)

    def _operands(self, node: Any) -> list[Term]:
        """In the order of their texts, so that equal filters have equal texts; in their own where one may raise,
        because then an earlier one may be there to keep it from that."""
        operands = [self.condition(operand) for operand in chain(node)]
        if not all(operand.safe for operand in operands):
            return operands
        by_text = {operand.text: operand for operand in operands}
        return [by_text[text] for text in sorted(by_text)]

    def _not(self, node: Any) -> Term:
        term = self.condition(node.this)
        return negated(f"(NOT {term.text})", term)

    def _minus(self, node: Any) -> Term:
        return minus(self.scope, self.term(node.this))

    def _is(self, node: Any) -> Term:
        wanted = plain(node.expression)
        if isinstance(wanted, exp.Null):
            term = self.term(node.this)
            return replace(is_null(f"({term.text} IS NULL)", term), needs=null_implied(term))
        if not isinstance(wanted, exp.Boolean):
            raise BadQueryError("IS takes NULL, TRUE or FALSE.", hint=HINT)
        term = self.condition(node.this)
        source = term.truth() if wanted.this else term.falsity()
        needs = term.needs if wanted.this else ()
        text = f"({term.text} IS {str(bool(wanted.this)).upper()})"
        return Term(BOOLEAN, text, f"({source})", safe=term.safe, needs=needs)

    def _between(self, node: Any) -> Term:
        if node.args.get("symmetric"):
            raise BadQueryError("A filter cannot contain BETWEEN SYMMETRIC.", hint=HINT)
        alone = self.term(node.this)
        value, ends = once(self.scope, alone), [self.term(node.args[name]) for name in ("low", "high")]
        low, high = (comparable(self.scope, "<", value, end)[1] for end in ends)
        bounds = [
            compare(self.scope, ">=", value.bare(), low),
            compare(self.scope, "<=", value.bare(), high),
        ]
        text = f"({value.text} BETWEEN {low.text} AND {high.text})"
        needs = all_of(implied(self.scope, word, alone, end) for word, end in zip((">=", "<="), ends, strict=True))
        return replace(guarded(text, value, both(self.scope, text, bounds)), needs=needs)

    def _in(self, node: Any) -> Term:
        if not node.expressions:
            raise BadQueryError(
                "IN takes a list of values in brackets, not a query or a column.",
                hint="Write `x IN (1, 2)`, or `x = ANY(:list)` with a list as the parameter.",
            )
        return self._among(self.term(node.this), self._terms(node.expressions))

    def _among(self, alone: Term, items: Sequence[Term]) -> Term:
        if not items:
            return self._among_none(alone)
        value = once(self.scope, alone)
        pairs = [comparable(self.scope, "=", value, item) for item in items]
        needs = any_of([implied(self.scope, "=", alone, item) for item in items])
        if all(_hashable(item) and left.source == pairs[0][0].source for left, item in pairs):
            texts = sorted({item.text for _, item in pairs})
            text = f"({value.text} IN ({', '.join(texts)}))"
            return replace(self._in_set(text, pairs[0][0], [item.const for _, item in pairs]), needs=needs)
        text = f"({value.text} IN ({', '.join(item.text for _, item in pairs)}))"
        equals = [compare(self.scope, "=", value.bare(), item) for item in items]
        return replace(guarded(text, value, either(self.scope, text, equals)), needs=needs)

    def _among_none(self, value: Term) -> Term:
        """Nothing is in an empty list, but of NULL that is unknown."""
        null = is_null(f"({value.text} IS NULL)", value)
        operands = [null, literal(self.scope, VOID, None)]
        return replace(both(self.scope, _chained("AND", operands), operands), needs=NEVER)

    def _in_set(self, text: str, value: Term, items: Sequence[Any]) -> Term:
        members = self.scope.reference(frozenset(items))
        term = strict(BOOLEAN, text, f"({value.source} in {members})", value, total=True)
        if not value.raw or value.type.kind in ("struct", "array", "map"):
            return term
        yes = " and ".join((*value.guards[:-1], f"{value.raw} in {members}"))
        return replace(term, yes=f"({yes})")

    def _escape(self, node: Any) -> Term:
        escape = self.term(node.expression).const
        if not isinstance(escape, str) or len(escape) != 1:
            raise BadQueryError("ESCAPE takes one character in quotes.", hint=HINT)
        inner = plain(node.this)
        if not isinstance(inner, (exp.Like, exp.ILike)):
            raise BadQueryError("ESCAPE belongs to LIKE.", hint=HINT)
        return self._like(inner, escape)

    def _like(self, node: Any, escape: str = "\\") -> Term:
        value, pattern = self.term(node.this), self.term(node.expression).const
        if not isinstance(pattern, str):
            raise BadQueryError("The pattern of LIKE must be a string in quotes.", hint=HINT)
        word = "ILIKE" if isinstance(node, exp.ILike) else "LIKE"
        suffix = "" if escape == "\\" else f" ESCAPE {literal(self.scope, STRING, escape).text}"
        text = f"({value.text} {word} {literal(self.scope, STRING, pattern).text}{suffix})"
        if word == "ILIKE":
            value, pattern = find_function("lower").call(self.scope, [value]), pattern.lower()
        term = like(self.scope, text, value, pattern, escape)
        return negated(f"(NOT {text})", term) if node.args.get("negate") else term

    # Calls and choices

    def _call(self, node: Any) -> Term:
        if not isinstance(node.this, str):
            raise BadQueryError(f"A filter cannot call {_described(node)}.", hint=HINT)
        arguments = node.expressions
        if node.this.lower() in _CASES:  # Spark leaves an inner one out: lower(upper('ß')) is 'ß'
            while len(arguments) == 1 and _is_case(inner := plain(arguments[0])):
                arguments = inner.expressions
        return find_function(node.this).call(self.scope, self._terms(arguments))

    def _joined(self, node: Any) -> Term:
        sides = self._terms([node.this, node.expression])
        return concatenated(self.scope, f"concat({sides[0].text}, {sides[1].text})", sides)

    def _case(self, node: Any) -> Term:
        values = [self.term(branch.args["true"]) for branch in node.args["ifs"]]
        default = node.args.get("default")
        values.append(self.term(default) if default else literal(self.scope, VOID, None))
        values = unified(self.scope, "CASE", values)
        branches = [branch.this for branch in node.args["ifs"]]
        if node.this is not None:
            return self._switch(self.term(node.this), branches, values)
        conditions = [self.condition(branch) for branch in branches]
        text = _case_text("CASE", [condition.text for condition in conditions], values)
        truths = [condition.truth() for condition in conditions]
        return choice(self.scope, text, list(zip(truths, values[:-1], strict=True)), values[-1])

    def _switch(self, subject: Term, candidates: Sequence[Any], values: Sequence[Term]) -> Term:
        """CASE x WHEN y: x is computed once and named, so that neither source nor text repeats it."""
        name = self.scope.temporary()
        again = Term(subject.type, subject.text, name, (f"{name} is not None",), raw=name)
        wanted = [self.term(candidate) for candidate in candidates]
        pairs = [comparable(self.scope, "=", again, candidate) for candidate in wanted]
        truths = [compare(self.scope, "=", again, candidate).truth() for candidate in wanted]
        text = _case_text(f"CASE {subject.text}", [candidate.text for _, candidate in pairs], values)
        chosen = choice(self.scope, text, list(zip(truths, values[:-1], strict=True)), values[-1])
        raw = f"(({name} := {subject.value()}), {chosen.value()})[1]"
        return nullable(self.scope, chosen.type, text, raw)

    def _cast(self, node: Any) -> Term:
        term, target = self.term(node.this), _cast_target(node.args["to"])
        step = cast(term.type, target)
        if term.type == VOID:
            return literal(self.scope, target, None)
        if step is None:
            raise BadQueryError(f"A filter cannot cast {term.text} ({term.type}) to {target}.", hint=HINT)
        if term.is_const:
            return literal(self.scope, target, folded(term, target))
        text = f"CAST({term.text} AS {target})"
        source = f"{self.scope.reference(step)}({term.source})"
        if term.type.floating and target.kind == "decimal":
            return nullable(self.scope, target, text, source, term)
        return strict(target, text, source, term)


def _chained(word: str, operands: Sequence[Term]) -> str:
    return f"({f' {word} '.join(operand.text for operand in operands)})"


def _case_text(start: str, conditions: Sequence[str], values: Sequence[Term]) -> str:
    pairs = zip(conditions, values[:-1], strict=True)
    whens = " ".join(f"WHEN {condition} THEN {value.text}" for condition, value in pairs)
    return f"({start} {whens} ELSE {values[-1].text} END)"


def _name(part: Any) -> str:
    if not isinstance(part, exp.Identifier):
        raise BadQueryError(f"A filter cannot contain {_described(part)}.", hint=HINT)
    return str(part.this)


_CASES: Final = frozenset({"lower", "upper", "lcase", "ucase"})


def _is_case(node: Any) -> bool:
    return isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this.lower() in _CASES


def _described(node: Any) -> str:
    """The SQL word for what was refused, where sqlglot's own name for it would not be understood."""
    return _SQL_WORDS.get(type(node)) or f"'{type(node).__name__}'"


def _struct_field(base: Term, kind: SqlType, name: str) -> tuple[str, SqlType]:
    fields = dict(zip(kind.names, kind.args, strict=False))
    if field := field_of(kind, name):
        return field, fields[field]
    names = ", ".join(f"'{field}'" for field in fields) or "none"
    raise BadQueryError(f"{base.text} ({base.type}) has no field '{name}'.", hint=f"Fields: {names}.")


def field_of(kind: SqlType, name: str) -> str | None:
    """The field of a struct by its exact name, else by its name in another case."""
    alike = [field for field in kind.names if field.lower() == name.lower()]
    return name if name in alike else next(iter(alike), None)


def _hashable(item: Term) -> bool:
    return item.is_const and not item.is_null and item.const == item.const


def _cast_target(node: Any) -> SqlType:
    name = node.this.name.lower() if hasattr(node.this, "name") else ""
    if name == "decimal":
        digits = [int(part.this.this) for part in node.expressions] or [10]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return SqlType("decimal", precision=precision, scale=scale)
    elif name in _CAST_NAMES and not node.expressions:
        return parse_type(_CAST_NAMES[name])
    raise BadQueryError(
        f"A filter cannot cast to '{node.sql('spark')[:50]}'.",
        hint=f"Types: {', '.join(sorted(_CAST_NAMES.values()))}.",
    )


_CAST_NAMES: Final = {
    **{name: name for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "binary")},
    "text": "string",
    "timestamptz": "timestamp",
    "timestamp": "timestamp",
    "timestampntz": "timestamp_ntz",
    "decimal": "decimal(p,s)",
}

_SQL_WORDS: Final = {
    exp.RegexpLike: "RLIKE (use LIKE)",
    exp.TryCast: "TRY_CAST",
    exp.IntDiv: "DIV",
    exp.Any: "ANY, except as `value = ANY(array)`",
    exp.Select: "a query",
    exp.Subquery: "a query",
    exp.Window: "OVER",
    exp.Interval: "INTERVAL",
    exp.Star: "*",
    exp.Tuple: "a list of values outside IN",
    exp.Parameter: "a variable; a parameter is written `:name`",
}

_COMPARISONS: Final = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.NullSafeNEQ: "is distinct",
}

_ARITHMETIC: Final = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}

_VISITS: Final[dict[Any, Callable[[Compiler, Any], Term]]] = {
    exp.Literal: Compiler._literal,
    exp.Concat: Compiler._adjacent,
    exp.Boolean: Compiler._boolean,
    exp.Null: Compiler._null,
    exp.HexString: Compiler._binary,
    exp.Placeholder: Compiler._parameter,
    exp.Column: Compiler._column,
    exp.Dot: Compiler._field,
    exp.Bracket: Compiler._item,
    exp.And: Compiler._and,
    exp.Or: Compiler._or,
    exp.Not: Compiler._not,
    exp.Neg: Compiler._minus,
    exp.Is: Compiler._is,
    exp.Between: Compiler._between,
    exp.In: Compiler._in,
    exp.Like: Compiler._like,
    exp.ILike: Compiler._like,
    exp.Escape: Compiler._escape,
    exp.Anonymous: Compiler._call,
    exp.DPipe: Compiler._joined,
    exp.Case: Compiler._case,
    exp.Cast: Compiler._cast,
}


def resolve(name: str, names: Sequence[str]) -> int:
    """The index of a column by its exact name, else by its name in another case, as Spark finds it."""
    same = [index for index, column in enumerate(names) if column == name]
    alike = [index for index, column in enumerate(names) if column.lower() == name.lower()]
    for indexes in (same, alike):
        if len(indexes) == 1:
            return indexes[0]
    listed = ", ".join(f"'{column}'" for column in names)
    raise BadQueryError(f"There is no column '{name}'.", hint=f"Columns: {listed}.")
