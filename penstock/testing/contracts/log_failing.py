"""Tests of what a log promises when things go wrong or happen elsewhere: crashes, damage, full disks, other writers."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from penstock.errors import CorruptBlockError, DiskFullError, OutcomeUnknownError, StaleTermError
from penstock.log.group_commit import GroupCommit
from penstock.log.log import Append, Appended, KeyIs, Log, LogReader, Producer, Stream, StreamSpec
from penstock.testing.contracts import log_child
from penstock.testing.contracts.log_backends import LogBackend, needs
from penstock.testing.contracts.log_events import (
    SCHEMA,
    LogFixtures,
    changes,
    content,
    events,
    eventually,
    everything,
    numbers,
    put,
)

_CRASHES = 4
_SEED = 20_26


@contextmanager
def child(what: str, place: str, first: int, rows: int) -> Iterator[subprocess.Popen[str]]:
    """A process that appends until it is killed."""
    command = [sys.executable, "-m", log_child.__name__, what, place, str(first), str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_after(process: subprocess.Popen[str], lines: int) -> int:
    """Kill it somewhere behind so many acknowledgements; gives the last one that it printed."""
    assert process.stdout is not None
    acked = 0
    for _ in range(lines):
        acked = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    return max([acked, *(int(line) for line in process.stdout if line.endswith("\n"))])


class Failing(LogFixtures):
    """Crashes, other processes, terms, damage, disks without room."""

    @needs("outliving its process")
    def test_acknowledged_events_survive_kill_dash_nine_exactly_once(self, place: str, reader: LogReader) -> None:
        chance, acked = random.Random(_SEED), 0
        for crash in range(_CRASHES):
            with child("events", place, acked, chance.choice([1, 7, 300])) as process:
                acked = kill_after(process, chance.randrange(1, 60))
            stream = reader.find("numbers")
            assert stream is not None
            stored = everything(reader, stream)
            assert stored == list(range(len(stored))), f"seed {_SEED}, crash {crash}"
            assert len(stored) >= acked
            assert reader.memory()["stored"] == {"events": len(stored)}
            assert reader.memory()["last"]["ack"] == stream.position([len(stored)]).token()

    @needs("outliving its process")
    def test_a_changelog_survives_kill_dash_nine_while_it_is_compacted(self, place: str, reader: LogReader) -> None:
        chance = random.Random(_SEED)
        for crash in range(_CRASHES):
            with child("changes", place, 0, 3) as process:
                acked = kill_after(process, chance.randrange(1, 60))
            stream = reader.find("words")
            assert stream is not None
            bounds = reader.bounds(stream)
            assert bounds.next_commit >= acked, f"seed {_SEED}, crash {crash}"
            expected: dict[str, int] = {}
            for word, count in (change for n in range(bounds.next_commit) for change in log_child.step(n)):
                expected.pop(word, None) if count is None else expected.update({word: count})
            assert content(reader.read(stream, 0, 0)) == expected
            numbered = [(c.number, c.meta) for c in reader.commits(stream, 0)]
            assert numbered == [(n, {"number": n}) for n in range(bounds.first_commit, bounds.next_commit)]

    @needs("other processes")
    def test_a_reader_sees_what_another_process_commits(self, backend: LogBackend, place: str) -> None:
        with closing(backend.reader(place)) as reader, child("events", place, 0, 10) as process:
            assert process.stdout is not None
            acked = int(process.stdout.readline())
            stream = reader.find("numbers")
            assert stream is not None
            assert len(everything(reader, stream)) >= acked
            revision = reader.revision()
            process.stdout.readline()
            eventually(lambda: reader.revision() != revision)

    def test_a_reader_may_come_before_the_log(self, backend: LogBackend, place: str, reader: LogReader) -> None:
        assert reader.streams() == []
        assert reader.find("numbers") is None
        assert dict(reader.memory()) == {}
        before = reader.revision()
        with closing(backend.open(place)) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA))
            put(log, stream, [1])
            assert reader.revision() != before
            assert reader.find("numbers") == stream
            assert numbers(reader, stream) == [1]

    def test_a_reader_needs_no_writer(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA))
            put(log, stream, [1, 2])
        with closing(backend.reader(place)) as reader:
            assert everything(reader, stream) == [1, 2]

    def test_a_revision_differs_after_every_commit(self, log: Log, reader: LogReader, stream: Stream) -> None:
        for log_or_reader in (log, reader):
            seen = [log_or_reader.revision()]
            assert log_or_reader.revision() == seen[0]
            for n in range(5):
                put(log, stream, [n])
                seen.append(log_or_reader.revision())
            assert len(set(seen)) == 6

    def test_many_threads_read_while_one_writes(self, log: Log, reader: LogReader, stream: Stream) -> None:
        failures: list[BaseException] = []
        ended = threading.Event()

        def follow() -> None:
            try:
                seen: list[int] = []
                while not ended.is_set() or len(seen) < log.bounds(stream).ends[0]:
                    seen += numbers(reader, stream, start=len(seen))
                assert seen == list(range(300))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=follow) for _ in range(4)]
        for thread in threads:
            thread.start()
        for first in range(0, 300, 3):
            put(log, stream, range(first, first + 3))
        ended.set()
        for thread in threads:
            thread.join()
        assert not failures

    def test_what_a_caller_waits_for_no_longer_is_written_once(self, log: Log, stream: Stream) -> None:
        once = Append(stream, events([1]), requires=(KeyIs("done", None),), sets={"done": True})
        entered, let = threading.Event(), threading.Event()

        class Hanging:
            def append(self, appends: Sequence[Append]) -> list[Appended | Exception]:
                entered.set()
                assert let.wait(60)
                return log.append(appends)

            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

        with closing(GroupCommit(Hanging(), give_up_s=0.1)) as group:  # type: ignore[arg-type]
            waiting = group.submit([once])
            assert entered.wait(60)
            with pytest.raises(OutcomeUnknownError):
                waiting.result(60)
            again = group.submit([once])
            with pytest.raises(OutcomeUnknownError):
                again.result(60)
            let.set()
            eventually(lambda: group.unwritten_bytes == 0)
        assert everything(log, stream) == [1]
        assert log.memory()["done"] is True

    # Terms

    def test_a_newer_writer_ends_the_older_ones_right_to_write(self, backend: LogBackend, place: str) -> None:
        with closing(backend.open(place)) as old:
            stream = old.create(StreamSpec("numbers", SCHEMA, unique=True))
            put(old, stream, [1])
            with closing(backend.open(place)) as new:
                assert new.term > old.term
                put(new, stream, [2])
                for attempt in (
                    lambda: put(old, stream, [3]),
                    lambda: put(old, stream, [1]),
                    lambda: old.append([]),
                    lambda: old.append([], {"a": 1}),
                    lambda: old.create(StreamSpec("other", SCHEMA)),
                    lambda: old.trim(stream, 1),
                    lambda: old.drop(stream),
                ):
                    with pytest.raises(StaleTermError):
                        attempt()
                put(new, stream, [3])
                assert everything(new, stream) == [1, 2, 3]
                assert dict(new.memory()) == {}

    # Damage

    @needs("damage")
    @pytest.mark.parametrize("what", ["byte", "place", "missing"])
    def test_wrong_bytes_are_found_out(self, backend: LogBackend, place: str, what: str) -> None:
        with closing(backend.open(place)) as log:
            stream = log.create(StreamSpec("numbers", SCHEMA))
            put(log, stream, [1])
            put(log, stream, [2])
        backend.damage(place, what)
        with closing(backend.reader(place)) as reader:
            assert numbers(reader, stream, end=1) == [1]
            with pytest.raises(CorruptBlockError):
                numbers(reader, stream)

    # A disk without room

    @needs("starving")
    def test_what_does_not_fit_on_the_disk_never_appears(
        self, backend: LogBackend, log: Log, reader: LogReader, unique: Stream
    ) -> None:
        put(log, unique, [0])
        with backend.starved(log):
            with pytest.raises(DiskFullError):
                log.append([Append(unique, events(range(10_000)), producer=Producer("p", 0, 0))], {"told": 1})
            assert everything(reader, unique) == [0]
            assert dict(reader.memory()) == dict(log.memory()) == {}
        (result,) = log.append([Append(unique, events(range(10_000)), producer=Producer("p", 0, 0))], {"told": 1})
        assert isinstance(result, Appended)
        assert (result.accepted, result.repeated, result.commit) == (9_999, False, 1)
        assert everything(reader, unique) == list(range(10_000))
        assert reader.memory()["told"] == 1

    @needs("starving")
    def test_streams_that_do_not_fit_leave_none_of_the_commit(
        self, backend: LogBackend, log: Log, stream: Stream, changelog: Stream
    ) -> None:
        large = changes([(f"{n:080d}", n) for n in range(5_000)])
        with backend.starved(log), pytest.raises(DiskFullError):
            log.append([Append(stream, events([1])), Append(changelog, large)])
        assert everything(log, stream) == []
        assert log.bounds(changelog).ends == (0,)
        assert put(log, stream, [1]).position == stream.position([1])
