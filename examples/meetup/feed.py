"""The Meetup feed is gone from the internet, so this file makes one up: seeded, repeatable, without end.

RSVP number n is a pure function of (seed, start, rate, n): nothing is remembered from one RSVP to the next,
so any part of the feed can be made again at any time, by another process too. That is what lets the server
resume.

1. RSVP n is sent at `sent_ms(n)`, which never decreases with n.
2. `mtime` is never later than the moment of sending. Together with (1): whoever holds RSVPs 0..k, the largest
   mtime among them being m, misses only RSVPs sent at or after m.
3. The same number always gives the same bytes.

What the real feed has is here: exact duplicates, an rsvp_id again with a changed response, mtimes behind by
seconds or hours, topics with a Zipf-like popularity, and waves in which a topic trends for three minutes and
fades. What it deliberately does not do: look at the time. The caller says which RSVP or which moment.
"""

import math
import random
import struct
import unicodedata
from bisect import bisect
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, count
from typing import Any, NamedTuple

import msgspec.json
from catalogue import CITIES, EVENT_TITLES, FIRST_NAMES, GROUP_SUFFIXES, THEMES, VENUES, City

SECOND_MS = 1000
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS

DUPLICATE_SHARE = 0.02  # of all RSVPs: an earlier one again, byte for byte
CHANGE_SHARE = 0.03  # of all RSVPs: an earlier rsvp_id with the other response and a new mtime
REACH = 400  # how many RSVPs back a duplicate or a change looks at most
SECONDS_BEHIND_SHARE = 0.05  # of new RSVPs: mtime 1 to 30 s before the moment of sending
HOURS_BEHIND_SHARE = 0.002  # of new RSVPs: mtime 1 to 6 h before it, so behind any sensible watermark
YES_SHARE = 0.75

GROUPS = 400
MEMBERS = 50_000
EVENTS_PER_GROUP = 3  # open for RSVPs in any one week; the last of them is online and has no venue
FIRST_RSVP_ID = 1_600_000_000  # about where the real feed stood when it was switched off

WAVE_EVERY_MS = 45_000  # a new topic begins to trend this often,
WAVE_MS = 180_000  # rises and fades within this time, so that five minutes show several,
WAVE_HEIGHT = 2.5  # and at its peak is this many times as popular as the most popular topic,
WAVE_FROM_RANK = 20  # though it is otherwise not among the most popular ones
POPULARITY_MS = 5_000  # popularity is computed once per this much feed time

_DRAWS = struct.Struct("<10I")  # the layout of Draw
_RANGE = 2**32  # a draw is uniform below this


class Draw(NamedTuple):
    """The random numbers of one RSVP, each uniform in 0..2^32."""

    kind: int
    reach: int
    delay: int
    delay_size: int
    response: int
    guests: int
    member: int
    topic: int
    group: int
    event: int


class Resolved(NamedTuple):
    """What an RSVP says: the number of the RSVP whose content it carries, when, and the response."""

    origin: int
    mtime: int
    yes: bool


class Sent(NamedTuple):
    """One RSVP as it leaves the feed: its number, the moment of sending, and its JSON without a line end."""

    number: int
    sent_ms: int
    line: bytes


class Group(NamedTuple):
    """A Meetup group: its fixed city, its topics (indexes into `TOPICS`), and its part of the JSON."""

    number: int
    city: City
    topics: list[int]
    record: dict[str, Any]


def _topic(name: str) -> dict[str, str]:
    key = name.lower().replace(":", "").replace(" ", "-")
    return {"urlkey": key, "topic_name": name}


TOPICS = tuple(_topic(name) for theme in THEMES for name in theme)


def rsvps(seed: int, start_ms: int, rate: float) -> Iterator[Sent]:
    """Every RSVP, in order, of the feed that starts at `start_ms` with `rate` RSVPs per second."""
    feed = Feed(seed, start_ms, rate)
    return (Sent(number, feed.sent_ms(number), feed.line(number)) for number in count())


class Feed:
    """Random access to a feed: RSVP n is sent at `sent_ms(n)` and reads `line(n)`."""

    def __init__(self, seed: int, start_ms: int, rate: float) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be above 0, not {rate}")
        self.start_ms = start_ms
        self.rate = rate
        self._key = seed.to_bytes(16, "little", signed=True)
        self._ranked = random.Random(f"ranks {seed}").sample(range(len(TOPICS)), len(TOPICS))
        self._groups = _make_groups(random.Random(f"groups {seed}"), self._ranked)
        self._groups_of = [[g for g in self._groups if t in g.topics] for t in range(len(TOPICS))]
        self._popularity = lru_cache(maxsize=128)(self._make_popularity)
        self._tail = lru_cache(maxsize=4096)(self._make_tail)

    def sent_ms(self, number: int) -> int:
        """The moment at which RSVP `number` is sent."""
        return self.start_ms + int(number * SECOND_MS / self.rate)

    def first_at(self, moment_ms: int) -> int:
        """The first RSVP that is sent at `moment_ms` or later."""
        number = max(0, int((moment_ms - self.start_ms) * self.rate / SECOND_MS) - 1)
        while number > 0 and self.sent_ms(number) >= moment_ms:
            number -= 1
        while self.sent_ms(number) < moment_ms:
            number += 1
        return number

    def line(self, number: int) -> bytes:
        """RSVP `number` as JSON, without a line end."""
        origin, mtime, yes = self._resolve(number)
        draw = self._draw(origin)
        born_ms = self.sent_ms(origin)
        head = b'{"rsvp_id":%d,"mtime":%d,"response":"%s","guests":%d,"visibility":"%s","member":%s,' % (
            FIRST_RSVP_ID + origin,
            mtime,
            b"yes" if yes else b"no",
            draw.guests % 4 if yes and _chance(draw.guests, 0.2) else 0,
            b"public_limited" if draw.member % 20 == 0 else b"public",
            _member(draw.member % MEMBERS),
        )
        group = self._pick_group(draw, born_ms)
        return head + self._tail(group.number, born_ms // WEEK_MS, draw.event % EVENTS_PER_GROUP)

    def trending(self, moment_ms: int) -> dict[str, float]:
        """The topics whose wave is under way at a moment, and how strongly: 0 to `WAVE_HEIGHT`."""
        return {TOPICS[topic]["topic_name"]: height for topic, height in self._waves(moment_ms)}

    def _draw(self, number: int) -> Draw:
        digest = blake2b(number.to_bytes(8, "little"), digest_size=_DRAWS.size, key=self._key).digest()
        return Draw._make(_DRAWS.unpack(digest))

    def _resolve(self, number: int) -> Resolved:
        draw = self._draw(number)
        earlier = number - 1 - draw.reach % REACH
        if earlier >= 0 and _chance(draw.kind, DUPLICATE_SHARE):
            return self._resolve(earlier)
        if earlier >= 0 and _chance(draw.kind, DUPLICATE_SHARE + CHANGE_SHARE):
            origin, _, yes = self._resolve(earlier)
            return Resolved(origin, self.sent_ms(number), not yes)
        return Resolved(number, self.sent_ms(number) - _behind_ms(draw), _chance(draw.response, YES_SHARE))

    def _pick_group(self, draw: Draw, moment_ms: int) -> Group:
        popularity = self._popularity(moment_ms // POPULARITY_MS)
        topic = bisect(popularity, draw.topic / _RANGE * popularity[-1])
        groups = self._groups_of[min(topic, len(TOPICS) - 1)]
        return groups[draw.group % len(groups)]

    def _make_popularity(self, period: int) -> list[float]:
        weights = [0.0] * len(TOPICS)
        for rank, topic in enumerate(self._ranked):
            weights[topic] = 1 / (rank + 1)
        for topic, height in self._waves(period * POPULARITY_MS):
            weights[topic] += height
        return list(accumulate(weights))

    def _make_tail(self, group: int, week: int, slot: int) -> bytes:
        """The end of the JSON, which all RSVPs for one event share: venue, unless online, event and group."""
        record = {"event": _event(self._groups[group], week, slot), "group": self._groups[group].record}
        if slot < EVENTS_PER_GROUP - 1:
            record = {"venue": _venue(self._groups[group], slot), **record}
        return msgspec.json.encode(record)[1:]

    def _waves(self, moment_ms: int) -> Iterator[tuple[int, float]]:
        newest = moment_ms // WAVE_EVERY_MS
        oldest = (moment_ms - WAVE_MS) // WAVE_EVERY_MS + 1
        for wave in range(oldest, newest + 1):
            digest = blake2b(b"wave %d" % wave, digest_size=4, key=self._key).digest()
            rank = WAVE_FROM_RANK + int.from_bytes(digest, "little") % (len(TOPICS) - WAVE_FROM_RANK)
            age = (moment_ms - wave * WAVE_EVERY_MS) / WAVE_MS
            yield self._ranked[rank], WAVE_HEIGHT * math.sin(math.pi * age) ** 2


def _chance(draw: int, share: float) -> bool:
    return draw < share * _RANGE


def _behind_ms(draw: Draw) -> int:
    if _chance(draw.delay, HOURS_BEHIND_SHARE):
        return HOUR_MS + draw.delay_size % (5 * HOUR_MS)
    if _chance(draw.delay, HOURS_BEHIND_SHARE + SECONDS_BEHIND_SHARE):
        return SECOND_MS + draw.delay_size % (29 * SECOND_MS)
    return 0


def _member(number: int) -> bytes:
    name = f"{FIRST_NAMES[number % len(FIRST_NAMES)]} {chr(ord('A') + number // 7 % 26)}."
    photo = f',"photo":"https://photos.example/member/{number}.jpeg"' if number % 10 < 7 else ""
    return f'{{"member_id":{2_000_000 + number},"member_name":"{name}"{photo}}}'.encode()


def _make_groups(rng: random.Random, ranked: list[int]) -> list[Group]:
    sizes = [1 / (rank + 3) for rank in range(len(CITIES))]
    cities = rng.choices(CITIES, weights=sizes, k=GROUPS)
    return [_make_group(rng, ranked, number, city) for number, city in enumerate(cities)]


def _make_group(rng: random.Random, ranked: list[int], number: int, city: City) -> Group:
    # Every topic leads some group, so that any topic can trend.
    lead = number % len(TOPICS)
    topics = [lead, *_related_topics(rng, ranked, lead, rng.randint(2, 11))]
    name = f"{city.name} {TOPICS[lead]['topic_name']} {rng.choice(GROUP_SUFFIXES)}"
    record: dict[str, Any] = {
        "group_id": 1_000_000 + 37 * number,
        "group_name": name,
        "group_urlname": _urlname(name),
        "group_city": city.name,
        "group_country": city.country,
        "group_lat": round(city.lat + rng.uniform(-0.05, 0.05), 2),
        "group_lon": round(city.lon + rng.uniform(-0.05, 0.05), 2),
        "group_topics": [TOPICS[topic] for topic in topics],
    }
    if city.state:
        record["group_state"] = city.state
    return Group(number, city, topics, record)


def _related_topics(rng: random.Random, ranked: list[int], lead: int, size: int) -> list[int]:
    """Other topics of a group: about half from the lead topic's theme, the rest from anywhere."""
    theme = _theme_of(lead)
    near = _sample(rng, [t for t in ranked if t in theme and t != lead], size // 2)
    far = _sample(rng, [t for t in ranked if t not in theme], size - len(near))
    return near + far


def _sample(rng: random.Random, ranked: list[int], size: int) -> list[int]:
    """A few of `ranked`, the earlier ones more often: an exponential race with weights 1/8, 1/9, 1/10, ..."""
    arrivals = {topic: rng.expovariate(1 / (rank + 8)) for rank, topic in enumerate(ranked)}
    return sorted(ranked, key=arrivals.__getitem__)[:size]


def _theme_of(topic: int) -> range:
    ends = list(accumulate(len(theme) for theme in THEMES))
    theme = bisect(ends, topic)
    return range(ends[theme] - len(THEMES[theme]), ends[theme])


def _urlname(name: str) -> str:
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return "-".join("".join(c if c.isalnum() else " " for c in ascii_only).split())


def _event(group: Group, week: int, slot: int) -> dict[str, Any]:
    """One of the events that a group holds in the week after `week`, in the evening."""
    event_id = 230_000_000 + (week * GROUPS + group.number) * EVENTS_PER_GROUP + slot
    evening_ms = (24 * ((group.number + 2 * slot) % 7) + 17 + group.number % 4) * HOUR_MS
    title = EVENT_TITLES[(group.number + slot) % len(EVENT_TITLES)]
    topic = TOPICS[group.topics[slot % len(group.topics)]]["topic_name"]
    return {
        "event_id": str(event_id),
        "event_name": title.format(topic=topic, city=group.city.name),
        "event_url": f"https://www.meetup.com/{group.record['group_urlname']}/events/{event_id}/",
        "time": (week + 1) * WEEK_MS + evening_ms,
    }


def _venue(group: Group, slot: int) -> dict[str, Any]:
    number = group.number * EVENTS_PER_GROUP + slot
    return {
        "venue_id": 24_000_000 + number,
        "venue_name": VENUES[number % len(VENUES)],
        "lat": round(group.record["group_lat"] + number % 11 / 1000, 6),
        "lon": round(group.record["group_lon"] - number % 13 / 1000, 6),
    }
