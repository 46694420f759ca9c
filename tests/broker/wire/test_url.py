"""Broker URLs: checked, and silent about passwords."""

from pathlib import Path

import pytest

from device_runtime.broker.errors import BrokerError, UrlError
from device_runtime.broker.wire.url import TLS, BrokerUrl


def test_every_part_is_read() -> None:
    url = BrokerUrl.parse("mqtts://pi-07:s%40crET%2F@broker.example:8884?mqtt=5", TLS(ca=Path("ca.pem")))
    assert (url.host, url.port, url.user, url.password) == ("broker.example", 8884, "pi-07", "s@crET/")
    assert url.secure
    assert url.mqtt5
    assert url.tls.ca == Path("ca.pem")


def test_pings_a_proxy_and_a_protocol_of_tls_are_options() -> None:
    url = BrokerUrl.parse(
        "mqtts://a.example:443?keepalive=20&proxy=http://me:s%2540crET@[::1]:3128&alpn=x-amzn-mqtt-ca"
    )
    assert (url.keepalive_s, url.tls.alpn) == (20, "x-amzn-mqtt-ca")
    assert url.proxy is not None
    assert (url.proxy.host, url.proxy.port, url.proxy.user, url.proxy.password) == (
        "::1",
        3128,
        "me",
        "s@crET",
    )
    assert url.first_hop == ("::1", 3128)
    assert "crET" not in f"{url} {url!r}"
    assert BrokerUrl.parse("mqtts://a.example").first_hop == ("a.example", 8883)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("keepalive=4", "expected 5 to 1200 seconds"),
        ("keepalive=soon", "expected 5 to 1200 seconds"),
        ("proxy=crET:word@proxy", "expected HOST:PORT or http://USER:PASSWORD@HOST:PORT"),
        ("proxy=socks5://proxy:1080", "expected HOST:PORT or http://USER:PASSWORD@HOST:PORT"),
        ("proxy=", "expected HOST:PORT"),
        ("qos=1", r"only \?mqtt=, \?keepalive=, \?proxy=, \?alpn= are known"),
    ],
)
def test_options_that_are_not_understood_are_refused(query: str, says: str) -> None:
    with pytest.raises(UrlError, match=says) as raised:
        BrokerUrl.parse(f"mqtts://a.example?{query}")
    assert "crET" not in str(raised.value)


def test_a_protocol_is_agreed_on_over_tls_alone() -> None:
    with pytest.raises(UrlError, match="with TLS"):
        BrokerUrl.parse("mqtt://localhost?alpn=mqtt")


def test_defaults_are_mqtt_3_1_1_and_the_registered_ports() -> None:
    assert BrokerUrl.parse("mqtt://localhost") == BrokerUrl("localhost", 1883)
    assert BrokerUrl.parse("mqtts://a.example") == BrokerUrl("a.example", 8883, secure=True)


def test_web_sockets_have_a_path_and_the_ports_of_the_web() -> None:
    assert BrokerUrl.parse("wss://a.example") == BrokerUrl("a.example", 443, secure=True, path="/mqtt")
    assert BrokerUrl.parse("ws://localhost:9001/") == BrokerUrl("localhost", 9001, path="/")
    url = BrokerUrl.parse("wss://pi:x@a.example:8084/broker/mqtt?mqtt=5")
    assert (url.user, url.path, url.mqtt5, str(url)) == (
        "pi",
        "/broker/mqtt",
        True,
        "wss://a.example:8084/broker/mqtt",
    )
    with pytest.raises(UrlError, match="use wss://, or --insecure"):
        BrokerUrl.parse("ws://a.example")


def test_the_password_is_never_shown() -> None:
    url = BrokerUrl.parse("mqtt://pi:hunter2@127.0.0.1")
    assert "hunter2" not in f"{url} {url!r}"
    assert str(url) == "mqtt://127.0.0.1:1883"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "http://localhost",
        "mqtt://",
        "mqtt://localhost/topic",
        "mqtt://u:hunter2/x@localhost",
        "mqtt://u:hunter2@localhost:99999",
        "mqtt://u@localhost:hunter2",
        "mqtt://[::1",
        "mqtt://localhost?mqtt=4",
        "mqtt://localhost?qos=1",
    ],
)
def test_a_malformed_url_is_refused_in_one_line_without_its_password(text: str) -> None:
    with pytest.raises(UrlError) as caught:
        BrokerUrl.parse(text)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, BrokerError)


def test_plain_mqtt_to_another_machine_needs_to_be_asked_for() -> None:
    with pytest.raises(UrlError, match=r"mqtt://192\.168\.1\.5:1883 .*mqtts://, or --insecure"):
        BrokerUrl.parse("mqtt://pi:x@192.168.1.5")
    assert BrokerUrl.parse("mqtt://192.168.1.5", insecure=True).insecure


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "[::1]", "LOCALHOST"])
def test_this_machine_needs_no_tls(host: str) -> None:
    assert BrokerUrl.parse(f"mqtt://{host}").loopback


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "192.0.2.1", "127.0.0.1.example"])
def test_what_only_looks_like_this_machine_is_not(host: str) -> None:
    with pytest.raises(UrlError):
        BrokerUrl.parse(f"mqtt://{host}")


def test_missing_tls_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UrlError, match=r"cannot use the TLS files .*nowhere\.pem"):
        TLS(ca=tmp_path / "nowhere.pem").context()
    (tmp_path / "not.pem").write_text("hello")
    with pytest.raises(UrlError, match=r"not\.pem"):
        TLS(ca=tmp_path / "not.pem").context()
