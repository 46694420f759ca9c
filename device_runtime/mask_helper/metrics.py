"""Serves the figures of a helper as metrics for Prometheus. Needs prometheus_client (the extra `service`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .errors import MetricsError
from .helper import HelperFigures

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


@contextmanager
def served_metrics(figures: HelperFigures, host: str, port: int) -> Iterator[int]:
    """Serves metrics over HTTP inside, in a thread; gives the port. Raises MetricsError.

    port: 0 takes a free one.
    """
    registry = CollectorRegistry()
    registry.register(HelperMetrics(figures))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MetricsError(f"--metrics {host}:{port}: cannot listen there: {reason}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
