"""The log's contract as tests: every invariant of `penstock.log.log`, for any backend.

A test module derives from `LogContract` and gives it the fixtures `backend` (a `LogBackend`) and `folder` (empty).
"""

from __future__ import annotations

from penstock.testing.contracts.log_appending import Appending
from penstock.testing.contracts.log_conditions import Conditions
from penstock.testing.contracts.log_failing import Failing
from penstock.testing.contracts.log_once import TakingOnce
from penstock.testing.contracts.log_power import PowerCut
from penstock.testing.contracts.log_removing import Removing


class LogContract(Appending, TakingOnce, Conditions, Removing, Failing, PowerCut):
    """Every promise of a log, one test each."""
