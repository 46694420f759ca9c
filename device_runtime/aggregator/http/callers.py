"""Who asks: from where, and by which name."""

from __future__ import annotations

import ipaddress

from starlette.requests import HTTPConnection

from device_runtime.broker.wire.url import is_loopback


def by_local_name(asked: HTTPConnection) -> bool:
    """Whether who asks calls us by a name of this machine."""
    return is_loopback(asked.url.hostname or "")


def is_here(asked: HTTPConnection) -> bool:
    """Whether who asks is on this machine; not where a proxy here asks for somebody else."""
    forwarded = {"forwarded", "x-forwarded-for"} & set(asked.headers)
    return not forwarded and is_loopback(asked.client.host if asked.client else "")


def counted_as(asked: HTTPConnection) -> str:
    """Of whom is counted: an IPv4 address, `::1`, an IPv6 network. Of a proxy, where it is not trusted."""
    try:
        address = ipaddress.ip_address(asked.client.host if asked.client else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    whole = address.version == 4 or address.is_loopback
    return str(address if whole else ipaddress.ip_network((address, 64), strict=False))
