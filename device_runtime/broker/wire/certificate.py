"""Examines a broker's certificate: whether a client trusts it, who issued it, when it expires."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass

from device_runtime.broker.errors import BrokerUnreachable
from device_runtime.broker.sockets.addresses import StepLimit, look_up, open_socket
from device_runtime.broker.sockets.counted_stream import ByteCount, PlainStream
from device_runtime.broker.wire.url import BrokerUrl

NO_CHECK_OF_TIME = 0x200000
"""OpenSSL's flag (X509_V_FLAG_...) to check all but the time, which Python does not name."""
NOT_YET, EXPIRED = 9, 10
"""Reasons of OpenSSL to refuse a certificate for its dates."""
LOOK_S = 5.0
"""Seconds for each step of the look."""


def is_of_dates(error: Exception) -> bool:
    """Whether a certificate was refused as not valid yet, or no more."""
    return getattr(error, "verify_code", 0) in (NOT_YET, EXPIRED)


def validity(error: Exception, context: ssl.SSLContext, url: BrokerUrl) -> str:
    """The dates of a certificate that they make invalid, as ", valid until 2026-11-20"; else empty.

    It connects once more, with all checks but that of the time, and only to read. context: as of the
    connection that failed; it is changed.
    """
    if not is_of_dates(error):
        return ""
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_OF_TIME)
    try:
        with (
            _connected(url, LOOK_S) as plain,
            context.wrap_socket(plain, server_hostname=url.host) as secure,
        ):
            dates = secure.getpeercert() or {}
        begins, ends = (ssl.cert_time_to_seconds(str(dates[name])) for name in ("notBefore", "notAfter"))
    except (OSError, ValueError, KeyError):
        return ""
    now = time.time()
    if begins <= now <= ends:
        return f", that of its authority: its own is valid until {_day(ends)}"
    return f", valid from {_day(begins)}" if now < begins else f", valid until {_day(ends)}"


def _connected(url: BrokerUrl, step_s: float) -> socket.socket:
    """A TCP connection to the broker, through its proxy if it has one. Raises OSError."""
    plain, _ = open_socket(look_up(*url.first_hop, StepLimit.of(step_s)), StepLimit.of(step_s))
    try:
        if url.proxy:
            stream = PlainStream(plain, ByteCount())
            stream.ask_proxy(url.proxy.request(url.host, url.port), StepLimit.of(step_s))
    except OSError:
        plain.close()
        raise
    plain.settimeout(step_s)
    return plain


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


OTHER_NAME, OTHER_ADDRESS = 62, 64
"""Reasons of OpenSSL (X509_V_ERR_...) to refuse a certificate that its authority has signed."""


class CertificateRefused(BrokerUnreachable):
    """The certificate is not trusted. `code`: the number of OpenSSL's reason, 0 if it gives none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class PeerCertificate:
    """A broker's certificate, and the version of TLS.

    Times are in seconds since 1970. `subject` and `issuer` are common names, `protocol` is like "TLSv1.3".
    """

    subject: str
    issuer: str
    begins: float
    ends: float
    protocol: str


def examine_certificate(url: BrokerUrl, timeout_s: float = 20.0) -> PeerCertificate:
    """Do the TLS handshake as `Link` would. Raises CertificateRefused, OSError, UrlError."""
    context = url.tls.context()
    with _connected(url, timeout_s) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=url.host) as secure:
                certificate, protocol = secure.getpeercert() or {}, secure.version() or "TLS"
        except ssl.SSLCertVerificationError as error:
            dates = validity(error, context, url)
            raise CertificateRefused(error.verify_message + dates, error.verify_code) from None
        except ssl.SSLError as error:
            raise CertificateRefused(error.reason or str(error)) from None
    return PeerCertificate(
        subject=_common_name(certificate.get("subject")),
        issuer=_common_name(certificate.get("issuer")),
        begins=ssl.cert_time_to_seconds(str(certificate["notBefore"])),
        ends=ssl.cert_time_to_seconds(str(certificate["notAfter"])),
        protocol=protocol,
    )


def _common_name(parts: object) -> str:
    """The common name in a name as `getpeercert` gives it: a tuple of tuples of pairs."""
    pairs = [pair for part in parts for pair in part] if isinstance(parts, tuple) else []
    return str(dict(pairs).get("commonName", "nobody"))
