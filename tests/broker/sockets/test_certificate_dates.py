"""When a broker's certificate is valid is said where it is refused for that."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from device_runtime.broker.errors import BrokerUnreachable
from device_runtime.broker.servers import production
from device_runtime.broker.wire.certificate import CertificateRefused, examine_certificate
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import TLS, BrokerUrl

NOW = datetime.now(timezone.utc)
Served = Callable[[datetime, int], BrokerUrl]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A TLS server with a certificate that begins then, for so many days, until the test ends."""
    servers: list[socket.socket] = []

    def serve(begins: datetime, days: int) -> BrokerUrl:
        ours = production.make_authority("tests", NOW - timedelta(days=900), 3650, ["127.0.0.1"])
        pair = production.issue(ours, ["127.0.0.1"], begins, days)
        for name, text in (("ca", ours.certificate), ("cert", pair.certificate), ("key", pair.key)):
            (tmp_path / name).write_text(text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def answer() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                    context.wrap_socket(plain, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    if server.fileno() < 0:
                        return

        threading.Thread(target=answer, daemon=True).start()
        return BrokerUrl.parse(f"mqtts://127.0.0.1:{server.getsockname()[1]}", TLS(ca=tmp_path / "ca"))

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (NOW - timedelta(days=60), f", valid until {NOW - timedelta(days=30):%Y-%m-%d}"),
        (NOW + timedelta(days=60), f", valid from {NOW + timedelta(days=60) - production.EARLY:%Y-%m-%d}"),
    ],
)
def test_the_date_is_in_the_reason_of_a_link_and_in_that_of_doctor(
    served: Served, begins: Any, says: str
) -> None:
    url = served(begins, 30)
    with pytest.raises(CertificateRefused) as refused:
        examine_certificate(url)
    assert says in str(refused.value)
    link = Link(url, "pi", SimpleQueue(), LinkOptions())
    try:
        with pytest.raises(BrokerUnreachable) as unreachable:
            link.connect(2.0)
        assert f"{says}): check this device's clock" in str(unreachable.value)
    finally:
        link.close()


def test_one_that_others_signed_is_refused_without_a_look(served: Served, tmp_path: Path) -> None:
    url = served(NOW - timedelta(days=60), 30)
    other = production.make_authority("others", NOW, 10, ["127.0.0.1"])
    (tmp_path / "ca").write_text(other.certificate)
    with pytest.raises(CertificateRefused) as refused:
        examine_certificate(url)
    assert "valid" not in str(refused.value)
