"""Deliveries go to the public internet and nowhere else, whatever the DNS says, unless the operator allows it."""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from edge import eventually
from fake_flows import topic
from hooked import PlayedClock, flowing, hooked, redirect, taking

from penstock.errors import AddressError, BadRequestError
from penstock.serve.webhooks import poster
from penstock.serve.webhooks.address_rules import AddressRules

CLOSED = [
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:0:0:0:0:0:80ff:fffe",
    "2001:db8::1",
]
OPEN = ["8.8.8.8", "93.184.215.14", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"]


@pytest.mark.parametrize("address", CLOSED)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    rules = AddressRules()
    assert not rules.permits(address)
    host = f"[{address}]" if ":" in address else address
    if "%" not in address:
        with pytest.raises(AddressError):
            rules.check(f"https://{host}/hook")
    with pytest.raises(OSError, match="public internet"):
        rules.connected((socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)))


@pytest.mark.parametrize("address", OPEN)
def test_an_address_of_the_public_internet_is_permitted(address: str) -> None:
    assert AddressRules().permits(address)


def test_hosts_and_networks_can_be_allowed() -> None:
    rules = AddressRules(allowed=["10.1.0.0/16", "Hooks.Internal", "fd00::/8", "127.0.0.1"])
    assert rules.permits("10.1.2.3")
    assert not rules.permits("10.2.0.1")
    assert rules.permits("fd12::1")
    assert rules.permits("127.0.0.1")
    assert rules.trusts("hooks.internal.")
    assert not rules.trusts("internal")
    assert AddressRules(anywhere=True).permits("127.0.0.1")


@pytest.mark.parametrize("text", ["", "http://x", "a b", "*", "10.0.0.0/99", "x@y"])
def test_what_is_neither_host_nor_network_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        AddressRules(allowed=[text])


async def test_a_name_is_judged_by_its_address_when_the_connection_is_made(tmp_path: Path, monkeypatch: Any) -> None:
    """DNS rebinding: the name was public when the webhook was made, and points inside by the time of the delivery."""
    clock = PlayedClock()
    inside = ["127.0.0.1"]
    looked_up = []

    def rebound(host: str, port: int, family: int) -> list[tuple[int, int, str]]:
        looked_up.append(host)
        return [(socket.AF_INET, socket.IPPROTO_TCP, address) for address in inside]

    monkeypatch.setattr(poster, "_look_up", rebound)
    async with flowing(tmp_path) as flows, taking() as taker:
        async with hooked(tmp_path, clock=clock, rules=AddressRules()) as edge:
            build = flows.build()
            made = await edge.hook(f"http://public.example:{taker.port}/hook")
            flows.commit(build, [topic("jazz", 1)])
            await eventually(lambda: edge.endpoint(made["id"]).state == "paused", "it is not paused")
            assert looked_up == ["public.example"]
            assert taker.tried == []
            assert edge.observer.value("penstock_serve_webhook_failures_total", reason="address") == 1
            status, said = await edge.ask("POST", f"/webhooks/{made['id']}/test")
            assert (said["delivered"], said["failure"]) == (False, "address")
            inside[:] = ["127.0.0.1", "10.0.0.1"]
            _, said = await edge.ask("POST", f"/webhooks/{made['id']}/test")
            assert said["failure"] == "address"
        allowed = AddressRules(allowed=["public.example"])
        inside[:] = ["127.0.0.1"]
        async with hooked(tmp_path, clock=clock, rules=allowed) as edge:
            await clock.advance(10, edge.quiet)
            await taker.has(1)
            status, answer = await edge.ask("POST", "/webhooks", {"view": "topics", "url": taker.url()})
            assert (status, answer["error"]["code"]) == (400, "bad_address")


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "127.1", "0", "127.0.0.1."])
def test_an_address_in_another_spelling_is_refused(host: str) -> None:
    for rules in (AddressRules(), AddressRules(anywhere=True)):
        with pytest.raises(AddressError):
            rules.check(f"http://{host}/hook")
    assert not AddressRules().permits(host)


@pytest.mark.parametrize("host", ["0x7f000001", "0x7f.1", "localhost"])
async def test_a_name_that_the_system_takes_for_an_address_is_judged_as_that(tmp_path: Path, host: str) -> None:
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, rules=AddressRules()) as edge:
        flows.build()
        assert socket.getaddrinfo(host, taker.port, type=socket.SOCK_STREAM)
        made = await edge.hook(f"http://{host}:{taker.port}/hook")
        _, said = await edge.ask("POST", f"/webhooks/{made['id']}/test")
        assert (said["delivered"], said["failure"]) == (False, "address")
        assert taker.tried == []


async def test_a_redirect_to_the_inside_is_not_followed(tmp_path: Path) -> None:
    clock = PlayedClock()
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, clock=clock) as edge:
        build = flows.build()
        await edge.hook(taker)
        taker.answers.append(redirect)
        flows.commit(build, [topic("jazz", 1)])
        await eventually(
            lambda: edge.observer.value("penstock_serve_webhook_failures_total", reason="redirect") == 1, "no failure"
        )
        assert len(taker.tried) == 1


async def test_names_that_hang_do_not_hold_up_a_host_that_was_found_before(tmp_path: Path, monkeypatch: Any) -> None:
    """More of them than there are threads; the one that is well is reached where it was found last."""
    over = threading.Event()

    def look_up(host: str, port: int, family: int) -> list[tuple[int, int, str]]:
        if host != "well.example":
            over.wait(60)
        return [(socket.AF_INET, socket.IPPROTO_TCP, "127.0.0.1")]

    async def closing(request: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Connection": "close"})

    monkeypatch.setattr(poster, "_look_up", look_up)
    async with flowing(tmp_path) as flows, taking() as taker, hooked(tmp_path, timeout_s=5.0) as edge:
        try:
            build = flows.build()
            taker.always = closing
            await edge.hook(f"http://well.example:{taker.port}/hook")
            flows.commit(build, [topic("jazz", 1)])
            await eventually(lambda: len(taker.tried) == 1, "the first did not come")
            for number in range(2 * poster.THREADS):
                await edge.hook(f"http://hangs{number}.example/hook")
            flows.commit(build, [topic("jazz", 2)])
            names = edge.webhooks._poster._names
            await eventually(lambda: len(names._lookups) > poster.THREADS, "nothing hangs")
            flows.commit(build, [topic("jazz", 3)])
            await eventually(lambda: len(taker.tried) == 3, "it was held up")
            assert [body["row"]["rsvps"] for _, body in taker.tried] == [1, 2, 3]
            counted = partial(
                edge.observer.value, "penstock_serve_webhook_deliveries_total", kind="view", shape="change"
            )
            await eventually(lambda: counted() == 3, "not counted")  # which happens behind the answer
        finally:
            over.set()
