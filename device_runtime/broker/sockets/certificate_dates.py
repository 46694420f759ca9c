"""Reads from when until when a broker's certificate is valid, where that is why it is refused."""

from __future__ import annotations

import ssl
import time

from .addresses import look_up, open_socket
from .waiting import StepLimit

NO_CHECK_OF_TIME = 0x200000
"""OpenSSL's flag (X509_V_FLAG_...) to check all but the time, which Python does not name."""
NOT_YET, EXPIRED = 9, 10
"""Reasons of OpenSSL to refuse a certificate for its dates."""
LOOK_S = 5.0
"""Seconds for each step of the look."""


def is_of_dates(error: Exception) -> bool:
    """Whether a certificate was refused as not valid yet, or no more."""
    return getattr(error, "verify_code", 0) in (NOT_YET, EXPIRED)


def validity(error: Exception, context: ssl.SSLContext, host: str, port: int) -> str:
    """The dates of a certificate that they make invalid, as ", valid until 2026-11-20"; else empty.

    It connects once more, with all checks but that of the time, and only to read. context: as of the
    connection that failed; it is changed.
    """
    if not is_of_dates(error):
        return ""
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_OF_TIME)
    try:
        with open_socket(look_up(host, port, StepLimit.of(LOOK_S)), StepLimit.of(LOOK_S))[0] as plain:
            plain.settimeout(LOOK_S)
            with context.wrap_socket(plain, server_hostname=host) as secure:
                dates = secure.getpeercert() or {}
        begins, ends = (ssl.cert_time_to_seconds(str(dates[name])) for name in ("notBefore", "notAfter"))
    except (OSError, ValueError, KeyError):
        return ""
    now = time.time()
    if begins <= now <= ends:
        return f", that of its authority: its own is valid until {_day(ends)}"
    return f", valid from {_day(begins)}" if now < begins else f", valid until {_day(ends)}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
