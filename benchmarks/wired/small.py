"""Small contributions, each committed before its receipt."""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.bare_mqtt import publish
from device_runtime.broker.wire import topics
from device_runtime.models.bundles import tensors

from .load import Answers, Row, broker, connected, contribution, opened, serving, stream
from .subscriber import beside


def small(options: argparse.Namespace) -> list[Row]:
    """Small contributions per second, each committed before its receipt."""
    body = tensors.encode({"g": np.array([0.5, -0.25], np.float32)})
    count = options.count
    with broker() as running, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        how = {"profile": options.profile, "workers": options.workers}
        with serving(running.url, Path(folder), "zeroth-order", count, **how) as process:
            message = contribution(opened(fleet, answers), "zeroth-order", body)
            packets = [(topics.up(f"pi-{i}", "contribution"), message) for i in range(count)]
            before = process.cpu_times()
            seconds = stream(fleet, packets, lambda: len(answers.receipts))
            spent = process.cpu_times()
            fleet.close()
        wrong = {status for status in answers.receipts.values() if status != "accepted"}
        with sqlite3.connect(Path(folder) / "run" / "run.sqlite") as db:
            rows = db.execute("SELECT count(*), count(DISTINCT device) FROM contributions").fetchone()
        if wrong or rows != (count, count):
            raise AssertionError(f"{rows} rows of {count} contributions, refusals: {list(wrong)[:3]}")
    bare = echoed(message, count)
    cpu = (spent.user + spent.system - before.user - before.system) / count
    size = len(publish(packets[0][0], message, 1))
    return [
        Row(
            f"small contributions ({size} B) committed and receipted",
            f"{count / seconds:,.0f}/s",
            f"{bare:,.0f}/s answered by a subscriber that keeps nothing",
            "3,000/s",
        ),
        Row("the aggregator's processor time for one", f"{1e6 * cpu:.0f} µs"),
    ]


def echoed(message: bytes, count: int) -> float:
    """The same bytes to a subscriber that only answers; per second."""
    with broker() as running, beside(running.url):
        answers = Answers()
        fleet = connected(running.url, answers)
        fleet.add("ears", "fl/v1/d/+/dn/#")
        packets = [(topics.up(f"pi-{i}", "contribution"), message) for i in range(count)]
        seconds = stream(fleet, packets, lambda: answers.echoes)
        fleet.close()
    return count / seconds
