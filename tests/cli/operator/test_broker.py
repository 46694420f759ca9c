"""`device-runtime broker`, as a process."""

import argparse
import queue
import signal
import subprocess
import sys

import pytest

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.wire.link import Connected, Event, Link
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.operator import broker as command

_RUN = """
import argparse, sys
from device_runtime.cli.operator import broker as command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
"""


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(kind: str, number: signal.Signals) -> None:
    if kind == "mosquitto" and mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    arguments = [sys.executable, "-c", _RUN, "--port", "0", "--kind", kind]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        name, url = line.split(" at ")[0], line.split(" at ")[1].split()[0]
        assert name.lower().startswith(kind)
        inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        link = Link(BrokerUrl.parse(url), "pi", inbox)
        link.connect(60.0)
        assert inbox.get(timeout=120) == Connected(first=True)
        link.close()
        process.send_signal(number)
        assert process.wait(600) == 0


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_it_serves_web_sockets_too_to_who_has_what_it_printed(kind: str) -> None:
    if kind == "mosquitto" and mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    arguments = [sys.executable, "-c", _RUN, "--port", "0", "--kind", kind, "--websockets", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        line, _, url = process.stdout.readline().strip().rpartition(" ")
        assert line == "over WebSockets:"
        inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        link = Link(BrokerUrl.parse(url), "page", inbox)
        link.connect(60.0)
        assert inbox.get(timeout=120) == Connected(first=True)
        link.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0


def test_an_impossible_port_is_refused_in_one_line() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(BrokerError, match="^port 70000 is impossible: use 0"):
        command.run(parser.parse_args(["--port", "70000"]))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
