"""Which broker runs, and why."""

import errno
import subprocess
import sys

import pytest

from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.servers import brokers, mosquitto, server


def test_auto_takes_mosquitto_where_it_is_installed() -> None:
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    broker = brokers.start()
    broker.stop()
    assert broker.name.startswith("Mosquitto")
    assert broker.why == "it is installed, and faster and safer than amqtt"


def test_auto_takes_amqtt_otherwise_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto, "find", lambda: None)
    broker = brokers.start()
    broker.stop()
    assert broker.name.startswith("amqtt")
    assert broker.why.startswith("mosquitto is not installed")


def test_with_neither_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto, "find", lambda: None)
    monkeypatch.delitem(sys.modules, "device_runtime.broker.servers.amqtt_broker", raising=False)
    monkeypatch.setitem(sys.modules, "amqtt.broker", None)
    with pytest.raises(BrokerStartError, match=r"pip install 'device-runtime\[aggregator\]'"):
        brokers.start()


def test_mosquitto_asked_for_but_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto, "find", lambda: None)
    with pytest.raises(BrokerStartError, match="install it, or use --kind amqtt"):
        brokers.start("mosquitto")


def test_what_a_device_imports_brings_in_neither_amqtt_nor_numpy() -> None:
    modules = "blobs, link, messages, topics, transfer, url"
    program = f"import sys; from device_runtime.broker.wire import {modules}; print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = run.stdout
    assert "'paho'" in imported
    assert "amqtt" not in imported
    assert "numpy" not in imported


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BrokerStartError, match="use auto, mosquitto, amqtt"):
        brokers.start("rabbit")  # type: ignore[arg-type]


def test_a_machine_whose_network_is_down_is_said_at_once(monkeypatch):
    def unreachable(*_, **__):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(server.socket, "create_connection", unreachable)
    with pytest.raises(
        BrokerStartError, match=r"127\.0\.0\.1 port 1883 cannot be reached \(network is unreach"
    ):
        server.accepts("127.0.0.1", 1883, 0.1, lambda: True)
