"""The first connection of a device that is there before its broker is."""

import queue
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from device_runtime.broker.errors import BrokerRefused, BrokerUnreachable
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Connected, ReconnectDelay
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.connection.connecting import first_connection

FAST_S = (0.01, 0.1)


class Scripted:
    """Connects as its script says: an error, or nothing."""

    def __init__(self, *script):
        self.script = list(script)

    def connect(self, *, stop):
        if (error := self.script.pop(0)) is not None:
            raise error


def test_it_waits_for_the_broker_and_says_each_reason_once(caplog):
    away, name = BrokerUnreachable("no broker answers"), BrokerUnreachable("no machine is called 'b'")
    link = Scripted(away, away, name, name, None)
    assert first_connection(link, threading.Event(), ReconnectDelay(FAST_S))
    assert [record.message for record in caplog.records] == [
        "no broker answers; trying again",
        "no machine is called 'b'; trying again",
    ]


def test_each_time_before_it_waits_it_says_so():
    waits = []
    away = BrokerUnreachable("no broker answers")
    assert first_connection(Scripted(None), threading.Event(), waits=lambda: waits.append(1))
    assert waits == []
    link = Scripted(away, away, None)
    assert first_connection(link, threading.Event(), ReconnectDelay(FAST_S), waits=lambda: waits.append(1))
    assert waits == [1, 1]


def test_who_is_refused_does_not_wait():
    with pytest.raises(BrokerRefused, match="wrong password"):
        first_connection(Scripted(BrokerRefused("wrong password")), threading.Event(), ReconnectDelay(FAST_S))


def test_who_is_told_to_stop_does_not_wait():
    stop = threading.Event()

    class Stopping:
        def connect(self, *, stop):
            stop.set()
            raise BrokerUnreachable("no broker answers")

    assert not first_connection(Stopping(), stop, ReconnectDelay((1000.0, 1000.0)))


def test_a_broker_that_comes_later_is_reached(caplog):
    port, inbox = find_port(BrokerOptions()), queue.SimpleQueue()
    link = Link(BrokerUrl.parse(f"mqtt://127.0.0.1:{port}"), "pi", inbox, LinkOptions(reconnect_s=FAST_S))
    running = []

    class Watched:
        """The broker comes after the first attempt."""

        def connect(self, *, stop):
            try:
                link.connect(stop=stop)
            except BrokerUnreachable:
                if not running:
                    running.append(brokers.start("auto", BrokerOptions(port=port)))
                raise

    try:
        assert first_connection(Watched(), threading.Event(), ReconnectDelay(FAST_S))
        assert inbox.get(timeout=120) == Connected(first=True)
    finally:
        link.close()
        for broker in running:
            broker.stop()
    assert "no broker answers" in caplog.text


def test_a_device_that_is_told_to_stop_while_it_waits_for_its_broker_leaves_in_order(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4))
    command = str(Path(sys.executable).with_name("device-runtime"))
    options = ("mqtt://127.0.0.1:1", "--data", tmp_path / "a.npz", "--name", "a", "--state", tmp_path / "a")
    joining = subprocess.Popen([command, "join", *options], stderr=subprocess.PIPE, text=True)
    assert "no broker answers at mqtt://127.0.0.1:1" in joining.stderr.readline()
    joining.terminate()
    assert joining.wait(600) == 0
