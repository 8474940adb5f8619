"""Instructions are for the owner's eyes, obeyed once, in order, and durable before they are gone."""

import os
import stat

import pytest
from playing import START_US, PlayedClock

from penstock.errors import DiskFullError, OutcomeUnknownError
from penstock.log.control import ControlMap
from penstock.observe.signals import InstructionRefused
from penstock.rights.inbox import Inbox, Instruction
from penstock.rights.keys import KeyBook, make_key
from penstock.rights.rights import Rights


@pytest.fixture
def inbox(tmp_path):
    return Inbox(tmp_path / "inbox")


@pytest.fixture
def record():
    return make_key("shop", ("write:orders",), {}, START_US, None)[1]


def test_a_file_belongs_to_its_owner_alone(inbox, record, tmp_path):
    path = inbox.post(Instruction("create", record.id, record))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "inbox").stat().st_mode) == 0o700
    assert [name for name in os.listdir(tmp_path / "inbox") if not name.endswith(".json")] == []


async def test_instructions_are_obeyed_in_order_and_taken_twice_change_nothing(inbox, record):
    memory = ControlMap()

    async def remember(values):
        memory.apply(values)

    inbox.post(Instruction("create", record.id, record))
    inbox.post(Instruction("revoke", record.id, at_us=START_US + 5))
    rights = Rights(memory, inbox=inbox, remember=remember, clock=PlayedClock())
    await rights.tick()
    assert list(inbox.waiting()) == []
    assert KeyBook(memory).records()[0].revoked_us == START_US + 5
    inbox.post(Instruction("create", record.id, record))  # as after a crash between commit and removal
    inbox.post(Instruction("revoke", record.id, at_us=START_US + 9))
    await Rights(memory, inbox=inbox, remember=remember, clock=PlayedClock()).tick()
    assert KeyBook(memory).records()[0].revoked_us == START_US + 5


async def test_what_cannot_be_written_stays_in_the_inbox(inbox, record):
    async def full(values):
        raise DiskFullError("no room")

    inbox.post(Instruction("create", record.id, record))
    rights = Rights(inbox=inbox, remember=full, clock=PlayedClock())
    with pytest.raises(DiskFullError):
        await rights.tick()
    assert len(list(inbox.waiting())) == 1
    assert rights.is_open


async def test_a_first_key_that_was_written_late_closes_the_server_all_the_same(inbox, record):
    memory, late, closed = ControlMap(), {}, []

    async def unknown(values):
        late.update(values)
        raise OutcomeUnknownError("the log did not answer in time")

    async def secure():
        closed.append(True)

    inbox.post(Instruction("create", record.id, record))
    rights = Rights(memory, inbox=inbox, remember=unknown, clock=PlayedClock())
    rights.on_first_key = secure
    with pytest.raises(OutcomeUnknownError):
        await rights.tick()
    assert rights.is_open
    memory.apply(late)
    assert not rights.is_open
    await rights.tick()
    await rights.tick()
    assert (closed, list(inbox.waiting())) == ([True], [])


async def test_what_is_no_instruction_is_set_aside_once(inbox, record, tmp_path):
    told = []
    good = inbox.post(Instruction("create", record.id, record))
    for name, content, mode in (
        ("0-a.json", b"{", 0o600),
        ("0-b.json", b'{"do":"create","id":"x"}', 0o600),
        ("0-c.json", good.read_bytes(), 0o666),
    ):
        path = tmp_path / "inbox" / name
        path.write_bytes(content)
        path.chmod(mode)
    rights = Rights(inbox=inbox, clock=PlayedClock(), signals=told.append)
    await rights.tick()
    assert not rights.is_open
    assert [signal.file for signal in told if isinstance(signal, InstructionRefused)] == [
        "0-a.json",
        "0-b.json",
        "0-c.json",
    ]
    assert list(inbox.waiting()) == []
    assert len(list((tmp_path / "inbox").glob("*.refused"))) == 3
