"""What is said at the start of how browsers join: the page, a one-time link, on a terminal its QR code."""

from __future__ import annotations

import io
from dataclasses import dataclass
from urllib.parse import urlsplit

from device_runtime.broker.security import one_time_links as links
from device_runtime.broker.wire.url import is_loopback

from .join_address import Doorway


@dataclass(frozen=True)
class Reader:
    """Who reads it: at the moment `now` (seconds since 1970), on a terminal, where a QR code can be drawn."""

    now: float
    terminal: bool


def told(doorway: Doorway, listens: str, reader: Reader | None) -> str:
    """`listens`: the address of HTTP. Without a reader it goes into a log, which is told no link.

    Where links are made here, it is kept where the page is. Raises LinkError, SiteError.
    """
    page = doorway.page(listens)
    lines = [f"browsers join at {page}"]
    if doorway.site is None:
        lines += _drawn(page, reader)
    elif not doorway.writable:
        lines.append(f"  with a token of `device-runtime device add NAME`, as {page}#TOKEN")
    else:
        links.offered_at(doorway.site, page, doorway.broker)
        if reader is None:
            lines[0] += ", by one-time links that the dashboard makes"
        else:
            _, secret = links.make(doorway.site, reader.now, doorway.link_s)
            address = links.address(page, secret)
            lines.append(f"  one of them, in the next {doorway.link_s / 60:g} minutes, by {address}")
            lines += _drawn(address, reader)
    parts = urlsplit(page)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        lines.append(
            "  insecure: links and tokens go over the network in the clear, and browsers let no page without "
            "https:// check hashes, use a microphone or several threads: put HTTPS in front of it"
        )
    return "\n".join(lines)


def _drawn(address: str, reader: Reader | None) -> list[str]:
    """The QR code, where somebody can point a phone at it and it leads anywhere."""
    if reader is None or not reader.terminal or is_loopback(urlsplit(address).hostname or ""):
        return []
    import segno  # in the extra `aggregator`

    out = io.StringIO()
    segno.make(address, error="m", micro=False).terminal(out, compact=True)
    return out.getvalue().rstrip("\n").splitlines()
