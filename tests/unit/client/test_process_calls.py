"""What a handler calls happens once, whatever fails in between. The feed is played, all else is real."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bank import Bank
from played_feed import feed, paid, paying, run

from penstock.client.processing import NOT_APPLIED, Answer, Call, KeyChange
from penstock.errors import (
    BadRequestError,
    CallCutOffError,
    CallRefusedError,
    HandlerDivergedError,
    UnreachableError,
)


def test_a_call_that_was_answered_is_not_sent_again_when_the_handler_fails_later(path: Path, bank: Bank) -> None:
    answers: list[Answer] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        answers.append(ctx.call(bank.url, {"n": 1}))
        if len(answers) < 3:
            raise ValueError("not yet")

    run(path, feed(("a", "1")), pay)
    assert len(bank.asked) == 1
    assert len({(answer.status, answer.body) for answer in answers}) == 1
    assert answers[0].json() == {"charge": 1}


def test_a_call_that_was_cut_off_is_sent_again_under_the_same_key(path: Path, bank: Bank) -> None:
    bank.next.extend(["die_first", "die", 500, 503])
    run(path, feed(("a", "1")), paying(bank))
    assert len(bank.asked) == 5
    assert len(set(bank.asked)) == 1


@pytest.mark.parametrize("fault", ["die", "die_first"])
def test_confirm_decides_whether_a_call_that_was_cut_off_is_sent_again(path: Path, bank: Bank, fault: str) -> None:
    def confirm(call: Call) -> Any:
        asked.append(call)
        return bank.find(call.key) or NOT_APPLIED

    asked: list[Call] = []
    bank.next.append(fault)
    run(path, feed(("a", "1")), paying(bank, calls=2), confirm=confirm)
    assert paid(bank) == [("a", "1")] * 2
    (call,) = asked
    assert (call.number, call.method, call.payload) == (1, "POST", {"to": "a", "amount": "1"})
    assert len(bank.asked) == (2 if fault == "die" else 3)


def test_confirm_may_be_a_coroutine_and_may_not_know_yet(path: Path, bank: Bank) -> None:
    answers = [None, None, {"charge": "found"}]
    told: list[Answer] = []

    async def confirm(call: Call) -> Any:
        return answers.pop(0)

    bank.next.append("die")
    run(path, feed(("a", "1")), lambda change, ctx: told.append(ctx.call(bank.url, {})), confirm=confirm)
    assert len(bank.charges) == 1
    assert told[0].json() == {"charge": "found"}


def test_confirm_is_not_asked_about_a_call_that_was_refused(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    bank.next.extend([402, 429])
    run(
        path,
        feed(("a", "1")),
        lambda change, ctx: ctx.call(bank.url, {}),
        confirm=lambda call: pytest.fail("it had no effect"),
        on_error=lambda task, error, tries: errors.append(error),
    )
    assert [type(error) for error in errors] == [CallRefusedError] * 2
    assert len(bank.charges) == 1


@pytest.mark.parametrize("status", [303, 409])
def test_a_redirect_and_a_conflict_may_be_told_of_what_took_effect(path: Path, bank: Bank, status: int) -> None:
    asked: list[Call] = []

    def confirm(call: Call) -> Any:
        asked.append(call)
        return {"charge": "found"}

    bank.next.append(status)
    run(path, feed(("a", "1")), lambda change, ctx: ctx.call(bank.url, {}), confirm=confirm)
    assert (len(asked), len(bank.asked)) == (1, 1)


def test_a_call_under_way_when_the_handler_fails_is_waited_for_and_not_sent_twice(path: Path, bank: Bank) -> None:
    """`gather` leaves the handler with the first failure; the other call goes on."""
    sent: list[str] = []
    errors: list[BaseException] = []

    def slow(call: Call) -> str:
        sent.append(call.key)
        time.sleep(0.3)
        return "done"

    async def pay(change: KeyChange, ctx: Any) -> None:
        await asyncio.gather(ctx.call(bank.url, {}), ctx.call(slow, 1))

    bank.next.append(402)
    done = run(
        path,
        feed(("a", "1")),
        pay,
        confirm=lambda call: NOT_APPLIED,
        on_error=lambda task, error, tries: errors.append(error),
    )
    assert [type(error) for error in errors] == [CallRefusedError]
    assert (len(sent), len(bank.charges), done.waiting) == (1, 1, 0)


def test_what_a_handler_leaves_behind_can_make_no_more_calls(path: Path, bank: Bank) -> None:
    left: list[asyncio.Task[Any]] = []

    async def later(ctx: Any) -> None:
        await asyncio.sleep(0.01)
        await ctx.call(bank.url, {})

    async def pay(change: KeyChange, ctx: Any) -> None:
        left.append(asyncio.create_task(later(ctx)))

    async def last(change: KeyChange, ctx: Any) -> None:
        if change.key["song"] == "a":
            await pay(change, ctx)
        else:
            with pytest.raises(BadRequestError, match="has ended"):
                await left[0]

    assert run(path, feed(("a", "1"), ("b", "1")), last, give_up_after=1).failed == 0
    assert bank.asked == []


def test_a_service_that_is_away_is_tried_until_it_is_there(path: Path) -> None:
    errors: list[BaseException] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        ctx.call("http://127.0.0.1:9/charges", {})

    done = run(path, feed(("a", "1")), pay, give_up_after=3, on_error=lambda task, error, tries: errors.append(error))
    assert [type(error) for error in errors] == [UnreachableError] * 3
    assert done.failed == 1


@pytest.mark.parametrize("fault", ["half", "drip"])
def test_half_an_answer_is_none(path: Path, bank: Bank, fault: str) -> None:
    bank.next.append(fault)
    asked: list[Call] = []

    def confirm(call: Call) -> Any:
        asked.append(call)
        return bank.find(call.key) or NOT_APPLIED

    run(path, feed(("a", "1")), paying(bank), confirm=confirm, timeout_s=0.3)
    assert len(asked) == len(bank.charges) == 1


def test_a_status_in_accept_is_an_answer(path: Path, bank: Bank) -> None:
    bank.next.append(409)
    seen: list[int] = []
    run(path, feed(("a", "1")), lambda change, ctx: seen.append(ctx.call(bank.url, {}, accept=(200, 201, 409)).status))
    assert seen == [409]


def test_a_function_is_called_as_a_url_is(path: Path) -> None:
    keys: list[str] = []

    def send_mail(call: Call) -> dict[str, Any]:
        keys.append(call.key)
        if len(keys) == 1:
            raise ConnectionResetError("cut")
        return {"to": call.payload, "at": {1}}  # a set: JSON has none, so a list comes back

    seen: list[Any] = []
    run(path, feed(("a", "1")), lambda change, ctx: seen.append(ctx.call(send_mail, change.key["song"])))
    assert seen == [{"to": "a", "at": [1]}]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_value_is_made_once(path: Path) -> None:
    made: list[float] = []
    seen: list[float] = []

    def handle(change: KeyChange, ctx: Any) -> None:
        seen.append(ctx.once(lambda: made.append(Random().random()) or made[-1]))
        if len(seen) < 3:
            raise ValueError("again")

    run(path, feed(("a", "1")), handle)
    assert len(made) == 1
    assert seen == made * 3


def test_a_handler_that_takes_another_way_is_stopped_and_says_where(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    amounts = iter("123456")

    def pay(change: KeyChange, ctx: Any) -> None:
        ctx.call(bank.url, {"amount": next(amounts)})
        raise ValueError("after the call")

    done = run(path, feed(("a", "1")), pay, give_up_after=3, on_error=lambda t, error, n: errors.append(error))
    assert [type(error) for error in errors] == [ValueError, HandlerDivergedError, HandlerDivergedError]
    assert "call 1 was POST" in str(errors[1].detail)  # type: ignore[attr-defined]
    assert len(bank.charges) == 1
    assert done.failed == 1


def test_a_handler_that_leaves_out_a_call_is_not_done(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []

    def pay(change: KeyChange, ctx: Any) -> None:
        if not errors:
            ctx.call(bank.url, {})
            raise ValueError("after the call")

    run(path, feed(("a", "1")), pay, give_up_after=2, on_error=lambda task, error, tries: errors.append(error))
    assert isinstance(errors[1], HandlerDivergedError)


def test_a_handler_that_swallows_a_cut_off_call_is_not_done(path: Path, bank: Bank) -> None:
    errors: list[BaseException] = []
    bank.next.extend(["die_first", "charge"])

    def pay(change: KeyChange, ctx: Any) -> None:
        try:
            ctx.call(bank.url, {})
        except CallCutOffError:
            return

    run(path, feed(("a", "1")), pay, on_error=lambda task, error, tries: errors.append(error))
    assert [type(error) for error in errors] == [CallCutOffError]
    assert len(bank.charges) == 1
