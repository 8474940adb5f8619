"""Finds all ranges that a value lies in, among thousands, without looking at each.

Ranges with one end are sorted by it: what a value hits is one side of the list. Those with two ends are in balanced
trees by their lower end, where each node knows how far up its part reaches. A new range makes a tree of its own, and
trees of one size become one, so a range is moved a logarithmic number of times. A lookup costs the hits and the
logarithm of the number of ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedKeyList

T = TypeVar("T")


class Cell(Generic[T]):
    """One range, and whose it is; None once it was removed."""

    __slots__ = ("high", "item", "low")

    def __init__(self, low: Any, high: Any, item: T) -> None:
        self.low, self.high = low, high
        self.item: T | None = item


class Intervals(Generic[T]):
    """Ranges of values of one kind, both ends included, None for no end. NaN lies above every number.

    >>> ranges = Intervals[str]()
    >>> cell, _ = ranges.add(1, 5, "low"), ranges.add(3, None, "high")
    >>> sorted(ranges.at(4)), sorted(ranges.at(float("nan")))
    (['high', 'low'], ['high'])
    >>> ranges.remove(cell)
    >>> ranges.at(1)
    []
    """

    def __init__(self) -> None:
        self._open: list[Cell[T]] = []
        self._above: SortedKeyList = SortedKeyList(key=lambda cell: cell.low)
        self._below: SortedKeyList = SortedKeyList(key=lambda cell: cell.high)
        self._trees: list[_Tree[T]] = []
        self._removed = 0

    def __len__(self) -> int:
        between = sum(map(len, self._trees)) - self._removed
        return len(self._open) + len(self._above) + len(self._below) + between

    def add(self, low: Any, high: Any, item: T) -> Cell[T]:
        """Returns what takes it out again."""
        cell = Cell(low, high, item)
        if low is not None and high is not None:
            self._grow([cell])
        elif low is not None:
            self._above.add(cell)
        elif high is not None:
            self._below.add(cell)
        else:
            self._open.append(cell)
        return cell

    def remove(self, cell: Cell[T]) -> None:
        if cell.low is not None and cell.high is not None:
            cell.item = None
            self._removed += 1
            if self._removed * 2 > sum(map(len, self._trees)):
                self._sweep()
        elif cell.low is not None:
            self._above.remove(cell)
        elif cell.high is not None:
            self._below.remove(cell)
        else:
            self._open.remove(cell)

    def at(self, value: Any) -> list[T]:
        """Whose ranges hold this value, which is not None."""
        items: list[Any] = [cell.item for cell in self._open]
        if value != value:
            return items + [cell.item for cell in self._above]
        if self._above:
            items += [cell.item for cell in self._above.irange_key(None, value)]
        if self._below:
            items += [cell.item for cell in self._below.irange_key(value, None)]
        for tree in self._trees:
            tree.add_at(value, items)
        return items

    def _grow(self, cells: list[Cell[T]]) -> None:
        while self._trees and len(self._trees[-1]) <= len(cells):
            cells = cells + self._trees.pop().cells
        self._trees.append(_Tree(cells))

    def _sweep(self) -> None:
        left = [cell for tree in self._trees for cell in tree.cells if cell.item is not None]
        self._trees = [_Tree(left)] if left else []
        self._removed = 0


class _Tree(Generic[T]):
    """Ranges with two ends that stay where they are."""

    def __init__(self, cells: Sequence[Cell[T]]) -> None:
        self.cells = sorted(cells, key=lambda cell: cell.low)
        self._top: list[Any] = [None] * len(self.cells)
        """By the place of a node: the highest upper end in its part of the tree."""
        self._measure(0, len(self.cells))

    def __len__(self) -> int:
        return len(self.cells)

    def _measure(self, start: int, end: int) -> Any:
        middle = (start + end) // 2
        top = self.cells[middle].high
        if start < middle:
            top = max(top, self._measure(start, middle))
        if middle + 1 < end:
            top = max(top, self._measure(middle + 1, end))
        self._top[middle] = top
        return top

    def add_at(self, value: Any, items: list[Any]) -> None:
        parts = [(0, len(self.cells))]
        while parts:
            start, end = parts.pop()
            middle = (start + end) // 2
            if start >= end or self._top[middle] < value:
                continue
            cell = self.cells[middle]
            parts.append((start, middle))
            if cell.low <= value:
                parts.append((middle + 1, end))
                if value <= cell.high and cell.item is not None:
                    items.append(cell.item)
