"""What holds for every test: Python starts as a fork, and Hypothesis judges what code does, not how long it takes."""

from __future__ import annotations

import hypothesis
import pytest

from tests import forked


def pytest_configure(config: pytest.Config) -> None:
    forked.install()
    hypothesis.settings.register_profile("penstock", deadline=None)
    hypothesis.settings.load_profile("penstock")
