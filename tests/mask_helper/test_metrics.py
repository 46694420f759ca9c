"""Strangers at the metrics of a mask helper: others are answered, and no thread stays."""

import socket
import struct
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("prometheus_client", reason="metrics need pip install 'device-runtime[service]'")

from prometheus_client import CollectorRegistry

from device_runtime.broker.servers.places import Shares
from device_runtime.mask_helper.metrics import MetricsServer

HASTY = Shares(most=12, of_address=12, silent=4, burst=1000.0, first_s=0.3)
COUNT = 40
SENT = {
    "says nothing": b"",
    "half a request": b"GET /metrics HTTP/1.1\r\nX: ",
    "garbage": bytes(range(256)) * 64,
    "headers without end": b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 2000,
    "a body that stops": b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{",
}


@pytest.fixture
def server(capfd):
    running = MetricsServer(("127.0.0.1", 0), CollectorRegistry(), HASTY)
    thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
def test_whatever_strangers_send_others_are_answered_and_no_thread_stays(server, sent, eventually):
    before = threading.active_count()
    with ExitStack() as stack:
        for number in range(COUNT):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.server_port), timeout=5)
            )
            with suppress(OSError):
                connection.sendall(sent)
                if number % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as answer:
            assert answer.status == 200
        assert threading.active_count() <= before + HASTY.most
        time.sleep(HASTY.first_s)
        eventually(lambda: threading.active_count() <= before)
