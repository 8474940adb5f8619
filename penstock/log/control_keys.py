"""Every key of the control stream, as a function: what it holds, and of which log it is (`edge` or `flows`).

>>> live("orders"), live.prefix, live.rest("live/orders")
('live/orders', 'live/', 'orders')
"""

from __future__ import annotations


class KeyFamily:
    """Keys that begin alike. Called with what sets a key apart from the others of its family, it gives the key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = f"{name}/"

    def __call__(self, *parts: object) -> str:
        return self.prefix + "/".join(map(str, parts))

    def rest(self, key: str) -> str:
        """What sets this key apart."""
        return key[len(self.prefix) :]


# Of any log

producer = KeyFamily("producer")
"""`producer(stream, id)`: epoch, last sequence number, and the token of the position behind it."""
count = KeyFamily("count")
"""`count(stream)`: how many events were duplicates, dead, shed, skewed; `count(stream, flow)`: late or dead there."""

topic = KeyFamily("topic")
"""`topic(name)`: how the topic for other programs is that a stream, table, flow or view is published to."""

# Of the edge

promise = KeyFamily("promise")
"""`promise(stream, producer)`: the time before which it sends nothing more, or None, and when it was last heard."""
key = KeyFamily("key")
"""`key(id)`: an API key's record. Revoked ones stay."""
ticket = KeyFamily("ticket")
"""`ticket("secrets")`: the secrets that sign tickets, the newest first."""
receipt = KeyFamily("receipt")
"""`receipt(id)`: what became of a request that did not wait."""
idempotency = KeyFamily("idem")
"""`idempotency(id)`: the reply to a request with an `Idempotency-Key`."""
pull = KeyFamily("pull")
"""`pull(stream, source)`: where a pull stands. One key for each part of its position, `<that>#<part>`, stands below."""
lease = KeyFamily("lease")
"""`lease(pull)`: the edge that runs a pull, and under which term of the log."""
lease_end = KeyFamily("lease_end")
"""`lease_end(pull)`: until when it may, unless it is renewed."""
replayed = KeyFamily("replayed")
"""`replayed(epoch, number)`: which of 4,096 neighbouring dead letters were replayed, as bits."""
subscriber = KeyFamily("subscriber")
"""`subscriber(credential, name)`: how far a named subscription has come."""
webhook = KeyFamily("webhook")
"""`webhook(id)`: what its owner asked for; `webhook(id, "progress")`: how far it has come."""
moved = KeyFamily("moved")
"""`moved("source")`: when and into which file this folder was moved: no edge begins while it is there."""
rebuild = KeyFamily("rebuild")
"""`rebuild(name)`: the number of the newest wish to rebuild a flow or view."""

# Of the flows

build = KeyFamily("build")
"""`build(name)`: the newest build of a flow or view."""
live = KeyFamily("live")
"""`live(name)`: the epoch of the build that is served."""
flow = KeyFamily("flow")
"""`flow(name)`: how the query is: its state and error."""
skip = KeyFamily("skip")
"""`skip(name, epoch)`: the events that a build leaves out, because each alone makes it fail."""
rebuilt = KeyFamily("rebuilt")
"""`rebuilt(name)`: the number of the newest wish to rebuild that was fulfilled."""
leftover = KeyFamily("leftover")
"""`leftover(item)`: since when something is left over."""
