from __future__ import annotations

from typing import Any

from penstock.collect.letters.stored_letters import TOGETHER, LetterPlace, Replayed
from penstock.log.log import KeyIs


def test_neighbours_share_a_key_and_none_marks_another() -> None:
    memory: dict[str, Any] = {}
    replayed = Replayed(memory)
    memory |= (
        replayed.note([LetterPlace("e1", 3), LetterPlace("e1", 5), LetterPlace("e1", TOGETHER + 3)]).keys((), 0).sets
    )
    second = replayed.note([LetterPlace("e1", 4)])
    assert second.requires == (KeyIs("replayed/e1/0", memory["replayed/e1/0"]),)
    memory |= second.keys((), 0).sets
    assert [n for n in range(2 * TOGETHER) if LetterPlace("e1", n) in replayed] == [3, 4, 5, TOGETHER + 3]
    assert LetterPlace("e2", 3) not in replayed
    assert len(memory) == 2


def test_many_letters_take_two_bits_each() -> None:
    for step in (1, 2, 7):
        kept = Replayed({}).note(LetterPlace("e1", n) for n in range(0, 100_000, step)).keys((), 0).sets
        assert sum(len(key) + len(str(value)) for key, value in kept.items()) < 30_000
