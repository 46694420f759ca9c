"""Contributions are read a few at a time, and those of all rounds at once."""

from collections import Counter
from dataclasses import replace

import pytest

from device_runtime.aggregator.machine.run_events import RoundRecord
from device_runtime.aggregator.storage.contributions import ROWS_AT_ONCE, DeviceTraffic, StoredContribution
from device_runtime.aggregator.storage.store import CarriedBlobs, RoundStart, Store
from device_runtime.broker.wire.messages import Base, Metrics

DATABASES = ("sqlite", "postgres")


@pytest.fixture
def store(tmp_path, database):
    opened = Store(tmp_path / "run", database=database)
    yield opened
    opened.close()


def stored(device, number=1, kind="full", body=b"body"):
    return StoredContribution(
        device, number, number, kind, 10, Metrics(0.5, 1500, 2000, 1024), "", None, body
    )


def record(number):
    return RoundRecord(number, 0.5, 0.5, 0.5, 0.5, 40, 0.0, 0.0, 0, 0, 1.0)


def test_those_of_a_round_come_in_order_however_many_there_are(store, monkeypatch):
    monkeypatch.setattr("device_runtime.aggregator.storage.contributions.ROWS_AT_ONCE", 4)
    devices = [f"pi-{number:02d}" for number in range(10)]
    for device in reversed(devices):
        store.contributions.keep(stored(device, kind="b" if device < "pi-03" else "a"), DeviceTraffic(1, 2))
    store.contributions.keep(stored("another", 2), DeviceTraffic(1, 2))
    store.contributions.settle()
    read = [(entry.kind, entry.device, entry.body) for entry in store.contributions.of_round(1)]
    assert read == [("a", device, b"body") for device in devices[3:]] + [
        ("b", device, b"body") for device in devices[:3]
    ]


def test_a_restart_reads_all_records_with_few_queries(store, monkeypatch):
    rounds, count = 5, 40
    for number in range(1, rounds + 1):
        store.rounds.open(number, RoundStart(Base(checkpoint=(), sha=b""), CarriedBlobs()))
        for device in range(count):
            store.contributions.keep(stored(f"pi-{device:02d}", number), DeviceTraffic(number, device))
        store.contributions.settle()
        store.rounds.close(record(number))
    counts, rows = Counter(), store._db.rows

    def counted(sql, *values):
        counts["queries"] += 1
        return rows(sql, *values)

    monkeypatch.setattr(store._db, "rows", counted)
    closed = store.rounds.closed()
    assert counts["queries"] <= 3
    assert [entry.record.round for entry in closed] == [1, 2, 3, 4, 5]
    moved = [[each.bytes_down for each in entry.contributions] for entry in closed]
    assert moved == [list(range(count))] * rounds
    assert {each.bytes_up for each in closed[3].contributions} == {4}
    counts.clear()
    assert len(list(store.contributions.of_round(3))) == count
    assert counts["queries"] <= count // ROWS_AT_ONCE + 2
    [alone] = store.rounds.closed(4)
    assert [each.device for each in alone.contributions] == [each.device for each in closed[3].contributions]


def test_a_round_is_read_without_looking_at_all_others(tmp_path):
    store = Store(tmp_path / "run")
    plans, rows = [], store._db.rows

    def explained(sql, *values):
        plans.append([row["detail"] for row in rows(f"EXPLAIN QUERY PLAN {sql}", *values)])
        return rows(sql, *values)

    store._db.rows = explained
    try:
        store.contributions.records(3)
        store.contributions.sent(3, "pi-01")
        blob = store.updates.put(b"some")
        store.contributions.let_go(blob)
        assert not store.updates.has(blob)
        store.rounds.closed(3)
    finally:
        store.close()
    assert len(plans) == 7
    assert not [step for plan in plans for step in plan if step.startswith("SCAN") and "rounds" not in step]


def test_the_content_of_one_that_counts_stays_when_another_device_sent_the_same(store):
    store.rounds.open(1, RoundStart(Base(checkpoint=(), sha=b""), CarriedBlobs()))
    blob = store.updates.put(b"some")
    store.contributions.keep(replace(stored("pi-01", body=b""), blob=blob), DeviceTraffic(1, 2))
    store.contributions.settle()
    store.contributions.let_go(blob)
    assert store.updates.has(blob)
    assert store.contributions.sent(1, "pi-01") == "full"
    assert store.contributions.sent(1, "pi-02") == ""
