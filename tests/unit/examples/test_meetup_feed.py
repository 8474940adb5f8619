"""The Meetup example's feed must be repeatable, have the real feed's faults, and lose nothing on a resume."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

# Scripts of an example import each other by bare names; other examples may use the same ones.
sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "meetup"))
from feed import TOPICS, Feed, Sent, rsvps
from server import HISTORY_MS, MARGIN_MS, FeedServer, start

MEETUP = Path(sys.path.pop(0))
for name in ("feed", "server", "catalogue"):
    del sys.modules[name]

START_MS = 1_767_225_600_000
MINUTE_MS = 60_000
DEADLINE_S = 60.0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Venue(Strict):
    venue_id: int
    venue_name: str
    lat: float
    lon: float


class Member(Strict):
    member_id: int
    member_name: str
    photo: str | None = None


class Occasion(Strict):
    event_id: str
    event_name: str
    event_url: str
    time: int


class Topic(Strict):
    urlkey: str
    topic_name: str


class Group(Strict):
    group_id: int
    group_name: str
    group_urlname: str
    group_city: str
    group_country: str
    group_lat: float
    group_lon: float
    group_topics: list[Topic]
    group_state: str | None = None


class Rsvp(Strict):
    rsvp_id: int
    mtime: int
    response: str
    guests: int
    visibility: str
    member: Member
    event: Occasion
    group: Group
    venue: Venue | None = None


DECODER = msgspec.json.Decoder(Rsvp)


@pytest.fixture(scope="module")
def sent() -> list[Sent]:
    """Ten minutes of the feed at 50 RSVPs per second."""
    return list(islice(rsvps(7, START_MS, 50), 30_000))


@pytest.fixture(scope="module")
def decoded(sent: list[Sent]) -> list[Rsvp]:
    return [DECODER.decode(s.line) for s in sent]


@pytest.fixture(scope="module")
def originals(sent: list[Sent], decoded: list[Rsvp]) -> list[tuple[Sent, Rsvp]]:
    """The first appearance of each rsvp_id."""
    first: dict[int, tuple[Sent, Rsvp]] = {}
    for pair in zip(sent, decoded, strict=True):
        first.setdefault(pair[1].rsvp_id, pair)
    return list(first.values())


# The generator


def test_the_same_seed_gives_the_same_bytes_on_every_machine(sent: list[Sent]) -> None:
    assert list(islice(rsvps(7, START_MS, 50), 2_000)) == sent[:2_000]
    digest = sha256(b"\n".join(s.line for s in sent[:2_000])).hexdigest()
    assert digest == "ac6be785b306f634b245f01cf42a260ecf444c792aa3e158ab3495bac0ee7eeb"


def test_another_seed_gives_another_feed(sent: list[Sent]) -> None:
    assert not {s.line for s in islice(rsvps(8, START_MS, 50), 500)} & {s.line for s in sent}


def test_any_rsvp_can_be_made_again_without_those_before_it(sent: list[Sent]) -> None:
    late_comer = Feed(7, START_MS, 50)
    assert [late_comer.line(n) for n in (29_999, 4_321, 17)] == [sent[n].line for n in (29_999, 4_321, 17)]


def test_rsvps_follow_the_real_schema(decoded: list[Rsvp]) -> None:
    assert {r.response for r in decoded} == {"yes", "no"}
    assert {r.visibility for r in decoded} == {"public", "public_limited"}
    assert all(3 <= len(r.group.group_topics) <= 12 for r in decoded)
    assert all(-90 <= r.group.group_lat <= 90 and -180 <= r.group.group_lon <= 180 for r in decoded)
    assert all(r.event.time > r.mtime for r in decoded)
    assert all(r.guests == 0 for r in decoded if r.response == "no")
    assert 0.2 < sum(r.venue is None for r in decoded) / len(decoded) < 0.5


def test_the_world_is_as_large_as_promised(decoded: list[Rsvp]) -> None:
    assert len({r.group.group_city for r in decoded}) >= 35
    assert len({r.group.group_country for r in decoded}) >= 20
    assert len({r.group.group_id for r in decoded}) >= 350
    assert len({t.urlkey for r in decoded for t in r.group.group_topics}) == len(TOPICS) >= 120


def test_a_group_keeps_its_city_and_topics(decoded: list[Rsvp]) -> None:
    groups: dict[int, Group] = {}
    assert all(groups.setdefault(r.group.group_id, r.group) == r.group for r in decoded)


def test_two_percent_are_exact_duplicates(sent: list[Sent]) -> None:
    duplicates = len(sent) - len({s.line for s in sent})
    assert 0.015 < duplicates / len(sent) < 0.025


def test_three_percent_are_a_known_rsvp_with_the_other_response(sent: list[Sent]) -> None:
    distinct = [DECODER.decode(line) for line in dict.fromkeys(s.line for s in sent)]
    known: dict[int, set[str]] = {}
    for rsvp in distinct:
        known.setdefault(rsvp.rsvp_id, set()).add(rsvp.response)
    changes = len(distinct) - len(known)
    assert 0.025 < changes / len(sent) < 0.035
    assert sum(len(responses) == 2 for responses in known.values()) > 0.9 * changes


def test_a_changed_response_is_of_the_same_member_for_the_same_event(decoded: list[Rsvp]) -> None:
    about: dict[int, tuple[Member, Occasion]] = {}
    assert all(about.setdefault(r.rsvp_id, (r.member, r.event)) == (r.member, r.event) for r in decoded)


def test_five_percent_are_behind_by_seconds_and_a_few_by_hours(originals: list[tuple[Sent, Rsvp]]) -> None:
    behind = [s.sent_ms - r.mtime for s, r in originals]
    seconds = sum(1_000 <= ms <= 30_000 for ms in behind)
    hours = sum(60 * MINUTE_MS <= ms <= 360 * MINUTE_MS for ms in behind)
    assert 0.045 < seconds / len(behind) < 0.055
    assert 0.001 < hours / len(behind) < 0.003
    assert behind.count(0) == len(behind) - seconds - hours


def test_the_id_of_the_stream_tells_all_but_duplicates_apart(sent: list[Sent], decoded: list[Rsvp]) -> None:
    assert len({(r.rsvp_id, r.mtime, r.response) for r in decoded}) == len({s.line for s in sent})


def test_no_mtime_is_later_than_its_sending(sent: list[Sent], decoded: list[Rsvp]) -> None:
    assert all(r.mtime <= s.sent_ms for s, r in zip(sent, decoded, strict=True))
    assert all(a.sent_ms <= b.sent_ms for a, b in pairwise(sent))


@pytest.mark.parametrize("rate", [0.3, 1, 7.7, 50, 999, 20_000])
def test_first_at_is_the_first_rsvp_sent_at_that_moment_or_later(rate: float) -> None:
    feed = Feed(7, START_MS, rate)
    for moment in (START_MS - 5, START_MS, START_MS + 1, START_MS + 1_234, START_MS + 99_999_999):
        number = feed.first_at(moment)
        assert feed.sent_ms(number) >= moment
        assert number == 0 or feed.sent_ms(number - 1) < moment


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        Feed(7, START_MS, 0)


# Popularity


def count_topics(decoded: list[Rsvp]) -> Counter[str]:
    return Counter(t.topic_name for r in decoded for t in r.group.group_topics if r.response == "yes")


def by_minute(sent: list[Sent], decoded: list[Rsvp]) -> list[Counter[str]]:
    minutes: dict[int, list[Rsvp]] = {}
    for s, r in zip(sent, decoded, strict=True):
        minutes.setdefault(s.sent_ms // MINUTE_MS, []).append(r)
    return [count_topics(rsvps_of_minute) for rsvps_of_minute in minutes.values()]


def test_popularity_falls_steeply_from_the_first_topics_to_the_last(decoded: list[Rsvp]) -> None:
    counts = [n for _, n in count_topics(decoded).most_common()]
    assert counts[0] > 2.5 * counts[len(counts) // 2] > 5 * counts[-1]


def test_five_minutes_show_topics_that_rise_to_the_top_and_fade(sent: list[Sent], decoded: list[Rsvp]) -> None:
    minutes = by_minute(sent, decoded)[:5]
    leaders = {topic for minute in minutes for topic, _ in minute.most_common(3)}
    swings = {t: max(m[t] for m in minutes) / max(1, min(m[t] for m in minutes)) for t in leaders}
    assert len(leaders) >= 5
    assert sum(swing > 3 for swing in swings.values()) >= 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_trend_is_where_the_feed_says_it_is(seed: int) -> None:
    feed = Feed(seed, START_MS, 50)
    topic = max(feed.trending(START_MS + 90_000).items(), key=lambda item: item[1])[0]
    peak = [DECODER.decode(feed.line(n)) for n in range(3_000, 6_000)]
    later = [DECODER.decode(feed.line(n)) for n in range(18_000, 21_000)]
    assert count_topics(peak)[topic] > 2 * count_topics(later)[topic]


# The server

Read = Callable[[], Awaitable[bytes]]


class ManualClock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def serving(feed: Feed, clock: Callable[[], int], lag_s: float = DEADLINE_S) -> AsyncIterator[str]:
    runner, port = await start(FeedServer(feed, clock, lag_s), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}/2/rsvps"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def socket(url: str) -> AsyncIterator[Read]:
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as connection:

        async def read() -> bytes:
            return (await connection.receive_str()).encode()

        yield read


@asynccontextmanager
async def lines(url: str) -> AsyncIterator[Read]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert response.headers["Transfer-Encoding"] == "chunked"

        async def read() -> bytes:
            return (await response.content.readline()).removesuffix(b"\n")

        yield read


async def take(read: Read, count: int) -> list[bytes]:
    async with asyncio.timeout(DEADLINE_S):
        return [await read() for _ in range(count)]


def largest_mtime(taken: list[bytes]) -> int:
    return max(DECODER.decode(line).mtime for line in taken)


both_transports = pytest.mark.parametrize("connect", [socket, lines])


@both_transports
@pytest.mark.parametrize("cut", [1, 900, 1_777])
async def test_resume_after_a_cut_loses_nothing(connect: Any, cut: int) -> None:
    feed = Feed(7, START_MS, 50)
    everything = [feed.line(n) for n in range(2_500)]
    clock = ManualClock(feed.sent_ms(2_499))
    async with serving(feed, clock) as url:
        async with connect(f"{url}?since_mtime=0") as read:
            before = await take(read, cut)
        first = feed.first_at(largest_mtime(before) - MARGIN_MS)
        async with connect(f"{url}?since_mtime={largest_mtime(before)}") as read:
            after = await take(read, 2_500 - first)
    assert before == everything[:cut]
    assert set(before + after) == set(everything)


async def test_resume_after_a_restart_of_the_server_loses_nothing() -> None:
    feed = Feed(7, START_MS, 50)
    async with serving(feed, ManualClock(feed.sent_ms(999))) as url, socket(f"{url}?since_mtime=0") as read:
        before = await take(read, 600)
    again = Feed(7, START_MS, 50)
    first = again.first_at(largest_mtime(before) - MARGIN_MS)
    async with (
        serving(again, ManualClock(again.sent_ms(1_999))) as url,
        socket(f"{url}?since_mtime={largest_mtime(before)}") as read,
    ):
        after = await take(read, 2_000 - first)
    assert set(before + after) == {feed.line(n) for n in range(2_000)}


async def test_a_replay_reaches_back_ten_minutes() -> None:
    feed = Feed(7, START_MS, 1_000)
    clock = ManualClock(START_MS + 2 * HISTORY_MS)
    async with serving(feed, clock) as url, lines(f"{url}?since_mtime=0") as read:
        assert await take(read, 1) == [feed.line(feed.first_at(START_MS + HISTORY_MS))]


async def test_all_clients_see_the_same_feed_from_the_moment_they_come() -> None:
    feed = Feed(7, START_MS, 1_000)
    clock = ManualClock(START_MS + 10_009)
    async with serving(feed, clock) as url, socket(url) as one, lines(url) as other:
        clock.now_ms += 1_000
        first = await take(one, 1_000)
        assert first == await take(other, 1_000)
        assert first == [feed.line(n) for n in range(10_000, 11_000)]


async def test_nothing_is_sent_before_its_time() -> None:
    feed = Feed(7, START_MS, 10)
    clock = ManualClock(START_MS)
    async with serving(feed, clock) as url, socket(f"{url}?since_mtime=0") as read:
        assert await take(read, 1) == [feed.line(0)]
        early = asyncio.ensure_future(read())
        done, _ = await asyncio.wait([early], timeout=0.2)
        assert not done
        clock.now_ms += 100
        assert await asyncio.wait_for(early, DEADLINE_S) == feed.line(1)


async def test_a_client_that_does_not_read_is_cut_off_and_slows_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    feed = Feed(7, START_MS, 20_000)
    clock = ManualClock(feed.sent_ms(19_999))
    async with serving(feed, clock, lag_s=0.3) as url:
        port = int(url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(b"GET /2/rsvps?since_mtime=0 HTTP/1.1\r\nHost: feed\r\n\r\n")
            async with socket(f"{url}?since_mtime=0") as read:
                assert await take(read, 20_000) == [feed.line(n) for n in range(20_000)]
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(20_000 * 1_000)
    assert "does not keep up" in capfd.readouterr().err


async def test_since_mtime_that_is_no_number_is_refused() -> None:
    async with (
        serving(Feed(7, START_MS, 50), ManualClock(START_MS)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}?since_mtime=yesterday") as response,
    ):
        assert response.status == 400
        assert "milliseconds" in (await response.json())["error"]


async def test_the_server_takes_a_free_port_and_ends_cleanly_on_sigterm() -> None:
    command = [sys.executable, str(MEETUP / "server.py"), "--port", "0", "--rate", "500"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    word, url = (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().split()
    assert word == "feed"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as connection:
        assert DECODER.decode(await connection.receive_str())
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            while (message := await connection.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        assert message.data == aiohttp.WSCloseCode.GOING_AWAY
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
