from __future__ import annotations

import pytest
from mutated_bodies import run


@pytest.mark.parametrize("seed", [1, 2])
def test_no_mutated_body_is_an_error_of_the_server(seed: int) -> None:
    found = run(seed, 500)
    assert min(found["judged"], found["refused"]) > 50
