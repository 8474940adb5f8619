"""The text of a filter comes from strangers, so this file makes of it a syntax tree of bounded size.

sqlglot reads Spark's SQL. Its grammar is cut down to expressions without statements, and functions stay names
with arguments, so that the compiler's own table decides what exists. Two of the bounds guard sqlglot itself:
brackets are counted before it recurses into them, and a type name used as a function is refused before it is
parsed, because nested ones (`struct(struct(...`) take it time that doubles with each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import Token, TokenType

from penstock.errors import BadQueryError

MAX_CHARS: Final = 4096
MAX_NODES: Final = 500
MAX_DEPTH: Final = 32

HINT: Final = (
    "A filter is one SQL condition over the view's columns: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, "
    "IS NULL, arithmetic, CASE, CAST and the functions listed in docs/reference/filters.md."
)

_OPEN: Final = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSE: Final = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


class FilterParser(SparkParser):  # type: ignore[misc]
    """Spark's expressions with every function left as a name and its arguments."""

    STRICT_CAST = True
    FUNCTIONS: dict[str, Any] = {}
    NO_PAREN_FUNCTIONS: dict[Any, Any] = {}
    FUNCTION_PARSERS = {name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")}
    NO_PAREN_FUNCTION_PARSERS = {name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")}


class FilterDialect(Spark):  # type: ignore[misc]
    """Spark 4's SQL, in which a doubled quote inside a string is one quote."""

    class Tokenizer(Spark.Tokenizer):  # type: ignore[misc]
        STRING_ESCAPES = ["\\", "'", '"']

    Parser = FilterParser


@lru_cache(64)
def parse(text: str) -> Any:
    """The syntax tree of one condition, within the bounds; anything else is a `BadQueryError`.

    The tree is shared and must not be changed: many readers send one text, each with its own parameters.
    """
    if len(text) > MAX_CHARS:
        raise BadQueryError(
            f"The filter has {len(text)} characters; {MAX_CHARS} are allowed.", hint="Use a shorter filter."
        )
    if not text.strip():
        raise BadQueryError("The filter is empty.", hint="Leave `where` out to get every row.")
    tree = _read(text)
    _check_size(tree)
    return tree


def _read(text: str) -> Any:
    dialect = FilterDialect()
    try:
        tokens = dialect.tokenize(text)
        _check_tokens(tokens)
        trees = FilterParser(dialect=dialect).parse_into(exp.Condition, tokens, text)
    except BadQueryError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ParseError as error:
        raise BadQueryError("The filter cannot be read.", detail=_place(error), hint=HINT) from None
    except SqlglotError as error:
        raise BadQueryError("The filter cannot be read.", detail=str(error)[:200], hint=HINT) from None
    except Exception as error:
        # A parser of 10,000 lines given hostile text may fail in ways it does not declare.
        raise BadQueryError("The filter cannot be read.", detail=type(error).__name__, hint=HINT) from error
    if len(trees) != 1 or trees[0] is None:
        raise BadQueryError("The filter must be exactly one condition.", hint=HINT)
    return trees[0]


def _place(error: ParseError) -> str:
    if not error.errors:
        return str(error)[:200]
    first = error.errors[0]
    description = str(first.get("description")).partition(" for <class")[0]
    return f"{description} near {first.get('highlight')!r}, line {first.get('line')}, column {first.get('col')}"


def _too_deep() -> BadQueryError:
    return BadQueryError(
        f"The filter is nested deeper than {MAX_DEPTH} levels.",
        hint="Use fewer brackets, or a chain of AND or OR.",
    )


def _check_tokens(tokens: Sequence[Token]) -> None:
    depth = 0
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        if depth > MAX_DEPTH:
            raise _too_deep()
        if after and after.token_type == TokenType.L_PAREN and _is_stray_type(before, token):
            raise BadQueryError(
                f"{token.text!r} is a type, not a function.", hint=f"Write CAST(x AS {token.text}) instead."
            )


def _is_stray_type(before: Token | None, token: Token) -> bool:
    in_cast = before is not None and before.token_type in (TokenType.ALIAS, TokenType.DCOLON)
    return token.token_type in SparkParser.TYPE_TOKENS and not in_cast


def _check_size(tree: Any) -> None:
    for count, depth in enumerate(_depths(tree), 1):
        if count > MAX_NODES:
            raise BadQueryError(
                f"The filter has more than {MAX_NODES} parts.",
                hint="Use a shorter filter, or fewer values in IN.",
            )
        if depth > MAX_DEPTH:
            raise _too_deep()


def _depths(tree: Any) -> Iterator[int]:
    """The depth of each node, without recursion. A chain of AND or of OR is one level; brackets are none."""
    stack = [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, (exp.Paren, exp.Identifier)):
            yield depth
        for child in node.iter_expressions():
            flat = isinstance(node, exp.Paren) or (isinstance(node, (exp.And, exp.Or)) and type(child) is type(node))
            stack.append((child, depth + (not flat)))


def plain(node: Any) -> Any:
    """The node without the brackets around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def chain(node: Any) -> list[Any]:
    """The operands of `a AND b AND c` (or of OR), in order, however many brackets group them."""
    operands: list[Any] = []
    stack = [node]
    while stack:
        current = plain(stack.pop())
        if type(current) is type(node):
            stack += [current.expression, current.this]
        else:
            operands.append(current)
    return operands


@lru_cache(1_000)
def quoted_name(name: str) -> str:
    """A column's name as a filter must write it."""
    tokens = FilterDialect().tokenize(name) if name.isidentifier() and name.isascii() else []
    simple = len(tokens) == 1 and tokens[0].token_type == TokenType.VAR
    return name if simple else "`" + name.replace("`", "``") + "`"
