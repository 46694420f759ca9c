"""Serves the figures of a helper as metrics for Prometheus. Needs prometheus_client (the extra `service`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from device_runtime.broker.servers.places import BACKLOG, Places, SharedListener, Shares

from .helper import HelperFigures
from .summing import MetricsError

_P = "device_runtime_mask_helper_"


class HelperMetrics(Collector):
    """The figures of one helper; counters begin at 0 when it starts. No label is of others' choice."""

    def __init__(self, figures: HelperFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        now = self._figures
        for name, text, value in (
            ("sums", "Sums of masks that were told.", now.sums),
            ("refusals", "Requests that were refused.", now.refusals),
            ("devices", "Devices in the sums that were told.", now.devices),
            ("sum_seconds", "Seconds that sums took to make.", now.seconds),
        ):
            yield CounterMetricFamily(_P + name, text, value)
        yield GaugeMetricFamily(_P + "connected", "Whether the broker is connected.", float(now.connected))
        yield GaugeMetricFamily(_P + "waiting", "Requests that wait.", now.waiting)


SHARES = Shares(most=32, of_address=24, silent=8, burst=64.0, first_s=5.0)
"""Limits on connections: each that is open takes a thread."""
LOOK_S = 0.5
"""Seconds between two looks at the deadlines."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread, and ends connections that are silent, slow, or too many.

    Raises OSError where it cannot listen.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, BACKLOG

    def __init__(
        self, address: tuple[str, int], registry: CollectorRegistry, shares: Shares = SHARES
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _QuietHandler)
        self._places = Places(shares, "metrics")
        self.socket = SharedListener.of(self.socket, self._places)
        self.set_app(make_wsgi_app(registry))

    def service_actions(self) -> None:
        """Called now and then: ends the connections whose time is over."""
        self._places.look()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a client that ends early, or sends what is no request, is no error of ours."""


class _QuietHandler(WSGIRequestHandler):
    """Writes no line for each request, and has one in each connection."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Nothing."""

    def address_string(self) -> str:
        """The address, without asking a name server for its name."""
        return str(self.client_address[0])


@contextmanager
def served_metrics(figures: HelperFigures, host: str, port: int) -> Iterator[int]:
    """Serves metrics over HTTP inside, in a thread; gives the port. Raises MetricsError.

    port: 0 takes a free one.
    """
    registry = CollectorRegistry()
    registry.register(HelperMetrics(figures))
    try:
        server = MetricsServer((host, port), registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MetricsError(f"--metrics {host}:{port}: cannot listen there: {reason}") from None
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
