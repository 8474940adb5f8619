"""Decides where deliveries may go, so that nobody can use this server to reach what only this server can reach.

1. Only addresses of the public internet: no loopback, private, link-local (so no cloud metadata), shared, multicast,
   reserved or unspecified one, whether it stands in the URL, comes from the DNS, or hides inside an IPv6 address.
2. An address is judged at the moment of connecting, as the very address of the socket: what the DNS said when a webhook
   was made does not matter.
3. A server that listens on loopback alone may reach everything, and `--allow-webhook-hosts` opens hosts and
   networks.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from aiohttp import AddrInfoType
from yarl import URL

from penstock.errors import AddressError, BadRequestError

MOST_CHARACTERS = 2_000
REFUSED = "the host has an address that is not of the public internet"
"""The same text for each address of a host, so that they count as one reason."""
_NUMBERS = frozenset("0123456789.")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefused(OSError):
    """Raised in the place of a socket."""


class AddressRules:
    """Of one edge. Making one raises `BadRequestError` for what is neither a host nor a network."""

    def __init__(self, *, anywhere: bool = False, allowed: Sequence[str] = ()) -> None:
        """`anywhere`: the server itself is reached by nobody but this machine."""
        self._anywhere = anywhere
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for text in allowed:
            self._allow(text)

    def _allow(self, text: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            name = text.lower().rstrip(".")
            if not name or not name.isascii() or any(c in name for c in "/:@?# *"):
                raise BadRequestError(
                    f"'{text[:80]}' is neither a host nor a network",
                    hint="write --allow-webhook-hosts hooks.internal or --allow-webhook-hosts 10.1.0.0/16",
                ) from None
            self._names.add(name)

    def trusts(self, host: str) -> bool:
        """Whether this host was allowed by its name, whatever address it has."""
        return host.lower().rstrip(".") in self._names

    def permits(self, address: str) -> bool:
        """Whether a socket may be connected to this address. One in another spelling (`127.1`) is not looked into."""
        if self._anywhere:
            return True
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(parsed in network for network in self._networks) or is_public(parsed)

    def check(self, text: str) -> str:
        """The URL, if it is one that deliveries may go to. Raises `AddressError`; names are not looked up."""
        url = _parsed(text)
        if url.scheme not in ("http", "https") or not url.host:
            raise AddressError(f"'{text[:80]}' is not an address to post to", hint="write https://host/path")
        if url.user is not None or url.password is not None:
            raise AddressError(
                "the address holds a name or password", hint="deliveries are signed; leave the credentials out"
            )
        if set(url.host) <= _NUMBERS and not _is_literal(url.host):
            raise AddressError(f"'{url.host}' is a number and no name", hint="write an address as 203.0.113.7")
        if _is_literal(url.host) and not self.permits(url.host):
            raise _refused(url.host)
        return text

    def connected(self, address: AddrInfoType) -> socket.socket:
        """A socket for an address that was judged; raises `AddressRefused`. For aiohttp's connector."""
        if not self.permits(str(address[4][0])):
            raise AddressRefused(REFUSED)
        return socket.socket(*address[:3])


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, also looking inside IPv6 addresses that hold one of IPv4."""
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    closed = address.is_multicast or address.is_reserved or address.is_unspecified or not address.is_global
    return not closed and not getattr(address, "is_site_local", False)


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _parsed(text: str) -> URL:
    if len(text) > MOST_CHARACTERS:
        raise AddressError("the address is too long", hint=f"use at most {MOST_CHARACTERS} characters")
    try:
        url = URL(text)
        _ = url.port, url.raw_host
        return url
    except (ValueError, UnicodeError):
        raise AddressError(f"'{text[:80]}' is not an address", hint="write https://host/path") from None


def _refused(host: str) -> AddressError:
    return AddressError(
        f"deliveries may not go to '{host}'",
        detail="it is not an address of the public internet",
        hint="start the server with --allow-webhook-hosts and this host or network, if it is yours",
    )
