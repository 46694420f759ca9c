"""Devices that are connected and say nothing."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import State
from device_runtime.models.bundles import tensors

from .load import Answers, Row, broker, connected, contribution, opened, serving, up


def idle(options: argparse.Namespace) -> list[Row]:
    """Connected devices that say nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    body = tensors.encode({"g": np.array([0.5, -0.25], np.float32)})
    count = options.idle
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        with serving(running.url, Path(folder), "zeroth-order", count + 1) as process:
            offer = opened(fleet, answers)
            mosquitto = psutil.Process(running.pid)
            before = (mosquitto.memory_info().rss, process.memory_info().rss)
            started, first = time.perf_counter(), len(fleet.connections)
            state = messages.encode(State(boot=1, online=True))
            for number in range(count):
                device = f"idle-{number}"
                connection = fleet.add(device, topics.down(device, "#"))
                up(connection, device, "state", state)
                fleet.turn(0.0)
            fleet.until(lambda: fleet.acknowledged >= count, 120, f"{count} devices to connect")
            seconds = time.perf_counter() - started
            time.sleep(2)
            cost = (mosquitto.memory_info().rss - before[0], process.memory_info().rss - before[1])
            cpu = process.cpu_times()
            time.sleep(5)
            later = process.cpu_times()
            begun = time.perf_counter()
            up(fleet.connections[first], "idle-0", "contribution", contribution(offer, "zeroth-order", body))
            fleet.until(lambda: "idle-0" in answers.receipts, 60, "a receipt among the idle")
            waited = time.perf_counter() - begun
            fleet.close()
    busy = (later.user + later.system - cpu.user - cpu.system) / 5
    return [
        Row(f"{count} idle devices connect", f"{seconds:.1f} s"),
        Row(
            "memory for each, broker and aggregator",
            f"{cost[0] / count / 1e3:.1f} and {cost[1] / count / 1e3:.1f} kB",
        ),
        Row("the aggregator's processor among them", f"{100 * busy:.1f}%"),
        Row("a contribution among them is receipted after", f"{1e3 * waited:.0f} ms"),
    ]
