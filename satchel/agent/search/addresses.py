"""Which URLs may be fetched, and from which addresses: public ones. Makes no connection.

What a page or a provider names is no reason to ask this machine, its network or its cloud for anything.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpx

from satchel.errors import NetworkError
from satchel.sanitize import sanitize_line

WEB_PORTS = frozenset({80, 443, 8000, 8080, 8443})
MAX_URL_CHARS = 2000
_MAX_SHOWN_CHARS = 80

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")
# As browsers tell numbers from names: 127.1, 2130706433, 0x7f.1
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)\.?")
# The only addresses of IPv6 that are given out to the public (RFC 4291, section 2.4); all else is special.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_SPECIAL = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))  # RFC 6890, RFC 9637
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052
# Not counted as special by all of Python's versions; 100.64.0.0/10 is what providers share (RFC 6598).
# 168.63.129.16 is the host that a virtual machine of Azure runs on, from within it.
_SPECIAL_IPV4 = tuple(
    map(
        IPv4Network,
        ("100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"),
    )
)

Resolver = Callable[..., list[tuple[Any, ...]]]  # as socket.getaddrinfo


class PageError(NetworkError):
    """A page that cannot be had, or may not; the message is one line that begins with its host."""


def checked_url(url: str | httpx.URL) -> httpx.URL:
    """`url`, if it is one that a page may have.

    Raises:
        PageError: it is not http or https, has credentials in it, or names no proper host.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as err:  # ValueError: characters that no name may have
        raise PageError(f"{shown(url)}: this is no proper address of a page") from err
    host = host_of(parsed)
    if parsed.scheme not in ("http", "https") or not host or len(str(parsed)) > MAX_URL_CHARS:
        raise PageError(f"{shown(url)}: this is no address of a web page")
    if parsed.userinfo:
        raise PageError(f"{shown(host)}: addresses with a name or password in them are not fetched")
    if not (_is_address(host) or (_NAME.fullmatch(host) and not _ENDS_IN_NUMBER.fullmatch(host))):
        raise PageError(f"{shown(host)}: this is no proper name of a host")
    return parsed


def host_of(url: httpx.URL) -> str:
    """The host as it is looked up, in ASCII and lower case; an IPv6 address without brackets."""
    return url.raw_host.decode("ascii").lower()


def port_of(url: httpx.URL) -> int:
    return url.port if url.port is not None else {"http": 80, "https": 443}[url.scheme]


def allowed_addresses(
    url: httpx.URL, *, allow_loopback: bool = False, resolve: Resolver | None = None
) -> list[str]:
    """The addresses that the host of `url` has now, all of which may be asked. May block as long as DNS does.

    A name with a public address and a private one is refused: only one who wants to reach the private one
    gives a name both.

    Args:
        url: one that `checked_url` has let pass.
        allow_loopback: let 127.0.0.0/8 and ::1 pass, at any port from 1024.
        resolve: in place of `socket.getaddrinfo`.

    Raises:
        PageError: the host is not known, or one of its addresses or the port is not to be asked.
    """
    host, port = host_of(url), port_of(url)
    try:
        infos = (resolve or socket.getaddrinfo)(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as err:  # UnicodeError: labels that are empty or too long
        raise PageError(f"{shown(host)}: no such host is known") from err
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    local = allow_loopback and bool(addresses) and all(map(_is_loopback, addresses))
    if not addresses or not (local or all(map(is_public, addresses))):
        raise PageError(f"{shown(host)}: this is not a public address")
    if not (port in WEB_PORTS or (local and 1024 <= port < 65536)):
        raise PageError(f"{shown(host)}: pages at port {port} are not fetched")
    return addresses


def is_public(address: str) -> bool:
    """Whether `address` is one that anybody on the internet may have; an IPv4 address within IPv6 counts."""
    try:
        parsed = ip_address(address)
    except ValueError:  # with a zone, fe80::1%eth0, too
        return False
    return _is_public_ipv4(parsed) if isinstance(parsed, IPv4Address) else _is_public_ipv6(parsed)


def _is_public_ipv4(address: IPv4Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and not any(address in network for network in _SPECIAL_IPV4)


def _is_public_ipv6(address: IPv6Address) -> bool:
    if getattr(address, "scope_id", None):
        return False
    if address in _NAT64:
        return _is_public_ipv4(IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour:
        return _is_public_ipv4(address.sixtofour)
    return address in _GLOBAL_UNICAST and not any(address in network for network in _SPECIAL)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return parsed == IPv6Address("::1") or (isinstance(parsed, IPv4Address) and parsed.is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def shown(text: object) -> str:
    """`text` as it may stand in a line, and no longer than that."""
    line = sanitize_line(str(text))
    return line if len(line) <= _MAX_SHOWN_CHARS else line[: _MAX_SHOWN_CHARS - 1] + "…"
