"""Addresses of brokers, and waits between connections."""

from typing import Any

from device_runtime.broker.errors import UrlError
from device_runtime.broker.wire.link_events import backoff
from device_runtime.broker.wire.url import BrokerUrl

READ = (
    "mqtt://127.0.0.1",
    "mqtt://localhost:1884/",
    "mqtts://broker.example",
    "mqtts://pi:se%2Fcr%23et@broker.example:8884?mqtt=5",
    "ws://127.0.0.1",
    "ws://[::1]:8080/",
    "wss://broker.example:443/mqtt",
    "wss://pi:secret@broker.example/a/b?mqtt=3",
    " wss://pi@10.0.0.7:8443/mqtt ",
)
REFUSED = (
    "",
    "broker.example",
    "http://broker.example",
    "mqtt://",
    "mqtts://broker.example/path",
    "mqtts://pi:secret@broker.example:port",
    "mqtts://pi:secret@broker.example?mqtt=4",
    "mqtts://pi:secret@broker.example?tls=no",
    "mqtt://pi:secret@broker.example",
    "ws://pi:secret@192.168.1.7:8080/mqtt",
)


def refused(url: str) -> str:
    try:
        BrokerUrl.parse(url)
    except UrlError as error:
        return str(error)
    raise AssertionError(f"{url} is read")


def vectors() -> dict[str, Any]:
    read = {url: BrokerUrl.parse(url) for url in READ}
    return {
        "read": [
            {
                "url": url,
                "text": str(address),
                "host": f"[{address.host}]" if ":" in address.host else address.host,
                "port": address.port,
                "path": address.path,
                "secure": address.secure,
                "user": address.user,
                "password": address.password,
                "mqtt5": address.mqtt5,
            }
            for url, address in read.items()
        ],
        "refused": [{"url": url, "python": refused(url)} for url in REFUSED],
        "backoffs": [
            {"failures": failures, "draw": draw, "seconds": backoff(failures, (0.5, 30.0), draw)}
            for failures in (0, 1, 2, 5, 6, 40)
            for draw in (0.0, 0.3, 0.999)
        ],
    }
