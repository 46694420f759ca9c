"""Metrics for Prometheus.

Labels are the task, its kinds of update and fixed words, but nothing that a device may choose, so that no
device can fill the memory of the collector.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRefused,
    Observer,
    RoundClosed,
    RoundExtended,
    RunEvent,
    Started,
    SumsAwaited,
)
from device_runtime.machine_readings import resident_bytes

from .watch import ServedTask, by_kind

OTHER = "other"
"""The label for a kind that the task does not have."""
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, float("inf"))
_P = "device_runtime_"


class ProcessMetrics:
    """The metrics of this process; counters begin at 0 when it starts.

    `certificate`: the certificate of HTTPS, whose end is shown; None where there is none.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        info = Gauge(f"{_P}info", "Version of device-runtime; always 1.", ["version"], registry=registry)
        info.labels(metadata.version("device-runtime")).set(1)
        resident = Gauge(f"{_P}resident_memory_bytes", "Resident memory of the process.", registry=registry)
        resident.set_function(lambda: float(resident_bytes()))
        if certificate:
            ends = f"{_P}certificate_expires_timestamp_seconds"
            expires = Gauge(ends, "When the certificate of HTTPS expires.", registry=registry)
            expires.set_function(lambda: _expires(certificate))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_P + name, text, ["task", *labels], registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(_P + name, text, ["task", *labels], registry=registry, buckets=_SECONDS)

        self.rounds = counter("rounds_closed", "Rounds that were closed and published.")
        self.extensions = counter("rounds_extended", "Deadlines passed with too few contributions.")
        self.contributions = counter(
            "contributions", "Contributions by kind and by receipt.", "kind", "status"
        )
        self.bytes = counter("round_bytes", "Bytes of MQTT packets of closed rounds, by way.", "way")
        self.kind_bytes = counter("kind_bytes", "Bytes of devices that contributed, by kind.", "kind", "way")
        self.energy = counter("energy_joules", "Energy of contributions, as devices report it.", "kind")
        self.train = histogram("train_seconds", "Time that devices trained for a contribution.", "kind")
        helpers = "Mask helpers for whose sums a round waits."
        self.awaited = Gauge(f"{_P}mask_helpers_awaited", helpers, ["task"], registry=registry)
        self.duration = histogram("round_seconds", "Time from the opening of a round to its end.")
        self._gauge_by_name: dict[str, Gauge] = {}

    def observe(self, hosted: ServedTask) -> Observer:
        """Make an observer of a task, and gauges of its state, which are read when Prometheus asks."""
        self._gauges(hosted)
        task, kinds = hosted.task.name, {kind.name for kind in hosted.task.kinds}

        def label(kind: str) -> str:
            return kind if kind in kinds else OTHER

        def observer(event: RunEvent) -> None:
            match event:
                case Started():
                    self.rounds.labels(task)  # shows 0 from the start
                    self.extensions.labels(task)
                    self.awaited.labels(task)
                case SumsAwaited():
                    self.awaited.labels(task).set(len(event.helpers))
                case Contributed(record=record):
                    self.contributions.labels(task, label(record.kind), "accepted").inc()
                    self.train.labels(task, label(record.kind)).observe(record.train_time_s)
                case ContributionRefused():
                    self.contributions.labels(task, label(event.kind), event.status).inc()
                case RoundExtended():
                    self.extensions.labels(task).inc()
                case RoundClosed():
                    self._closed(task, event, label)

        return observer

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _closed(self, task: str, closed: RoundClosed, label: Callable[[str], str]) -> None:
        record = closed.record
        self.rounds.labels(task).inc()
        self.awaited.labels(task).set(0)
        self.duration.labels(task).observe(record.duration_s)
        self.bytes.labels(task, "up").inc(record.bytes_up)
        self.bytes.labels(task, "down").inc(record.bytes_down)
        for name, figures in by_kind(closed).items():
            self.energy.labels(task, label(name)).inc(max(0.0, figures.energy_j))
            self.kind_bytes.labels(task, label(name), "up").inc(figures.bytes_up)
            self.kind_bytes.labels(task, label(name), "down").inc(figures.bytes_down)

    def _gauges(self, hosted: ServedTask) -> None:
        def gauge(name: str, text: str, value: Callable[[], float | None]) -> None:
            def number() -> float:
                reading = value()
                return float("nan") if reading is None else float(reading)

            series = self._gauge_by_name.get(name) or Gauge(_P + name, text, ["task"], registry=self.registry)
            self._gauge_by_name[name] = series
            series.labels(hosted.task.name).set_function(number)

        live, link = hosted.watch.live, hosted.link

        def at_work(value: float) -> float | None:
            return None if live().phase == "finished" else value

        gauge("round", "The open round, or the last one.", lambda: live().round)
        gauge("rounds", "Rounds of the task.", lambda: live().rounds)
        gauge("finished", "1 when the last round is done.", lambda: live().phase == "finished")
        gauge(
            "round_extensions",
            "Deadlines that the open round passed with too few contributions.",
            lambda: at_work(live().extended),
        )
        gauge("devices_online", "Devices that are online.", lambda: live().online)
        gauge("devices_known", "Devices that were ever seen.", lambda: live().devices)
        gauge(
            "accuracy",
            "Accuracy (of other losses: R2 or label accuracy) of the served model, at most 1.",
            lambda: live().accuracy,
        )
        gauge(
            "held_out_accuracy",
            "Accuracy on samples that the last round's devices held out, of the head served before.",
            lambda: live().held_out_accuracy,
        )
        gauge("held_out_samples", "The number of these samples.", lambda: live().held_out_samples)
        gauge("loss", "Loss of the served model on the evaluation data.", lambda: live().loss)
        gauge("broker_connected", "1 while the broker is connected.", lambda: at_work(link.connected))
        gauge("link_bytes_up", "All bytes sent to the broker since the start.", lambda: link.bytes_up)
        gauge(
            "link_bytes_down",
            "All bytes received from the broker since the start.",
            lambda: link.bytes_down,
        )
        gauge(
            "loop_silence_seconds",
            "Seconds since the loop was last active.",
            lambda: at_work(hosted.loop_clock.silence_s),
        )
        gauge("disk_free_bytes", "Bytes that are free for the run folder.", hosted.free_bytes)
        gauge(
            "journal_dropped", "Lines that the journal of contributions lost.", lambda: hosted.journal.dropped
        )


def _expires(certificate: Path) -> float:
    """When a certificate expires, in seconds since 1970; nan for a file that cannot be read."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return float("nan")
