"""What HTTP reads, as the loop tells it; without a loop."""

import os
import re
import threading
from dataclasses import replace
from math import nan
from pathlib import Path
from types import SimpleNamespace

from device_runtime.aggregator.configuration.config import HttpSection
from device_runtime.aggregator.http import devices
from device_runtime.aggregator.http.devices import DeviceFilter
from device_runtime.aggregator.http.journal import COMMIT_EVERY_S, FILE, REFUSALS, Filter, Journal
from device_runtime.aggregator.http.metrics import ProcessMetrics
from device_runtime.aggregator.http.shapes import KindFigures
from device_runtime.aggregator.http.watch import ServedTask, TaskWatch, health_of
from device_runtime.aggregator.machine.ports import LoopClock
from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRecord,
    ContributionRefused,
    DeviceSeen,
    Finished,
    PlanReported,
    RoundClosed,
    RoundExtended,
    RoundOpened,
    RoundRecord,
    Started,
    SumsAwaited,
)
from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.aggregator.tasks.task import Task

TASK = Task(bundle="b", name="digits", rounds=9, kinds=kinds_named(["full"]))


def record(device="pi", number=1, kind="full"):
    return ContributionRecord(number, device, kind, 10, nan, 1.5, 2.0, 1024, 100, 50, "fits")


def closed(number, *records):
    figures = RoundRecord(number, nan, 1.25, nan, nan, len(records), 4.0, 3.0, 300, 200, 7.0)
    return RoundClosed(figures, records, at=50.0 + number)


class Broker:
    bytes_up = bytes_down = 7
    connected = True


def hosted(folder, clock):
    return ServedTask(TASK, folder, Broker(), LoopClock(clock), clock)


def test_figures_are_summed_by_kind_and_what_was_not_measured_is_null(clock):
    watch = TaskWatch("digits", clock)
    watch(Started(TASK, "r", True, (closed(1, record("a"), record("b")),)))
    (first,) = watch.rounds().rounds
    assert first.kinds == {"full": KindFigures(2, 20, 200, 100, 4.0, 3.0)}
    assert (first.accuracy, first.loss, first.closed_at) == (None, 1.25, 51.0)
    assert watch.live().devices == 2
    assert watch.live().online == 0


def test_accuracy_on_what_devices_held_out_is_a_figure_of_its_own(clock):
    watch = TaskWatch("digits", clock)
    figures = replace(closed(1).record, held_out_acc=0.75, held_out_samples=24, held_out_other_acc=0.5)
    watch(Started(TASK, "r", True, (replace(closed(1), record=figures), closed(2))))
    first, second = watch.rounds().rounds
    assert (first.accuracy, first.held_out_accuracy, first.held_out_samples) == (None, 0.75, 24)
    assert (first.held_out_other_accuracy, second.held_out_other_accuracy) == (0.5, None)
    assert (second.held_out_accuracy, second.held_out_samples) == (None, 0)
    assert (watch.live().held_out_accuracy, watch.live().held_out_samples) == (None, 0)


def test_a_device_of_which_nothing_is_wanted_rests(clock):
    watch = TaskWatch("digits", clock)
    watch(RoundOpened(2, ("full",), 60.0))
    watch(DeviceSeen("pi", True, "pi-zero", 12, "onnx", 2**29, 80))
    for reason, doing in (("rests: nothing wanted (..)", "rests"), ("full needs 9 s", "sits out")):
        watch(PlanReported("pi", 2, "", 0.0, 0, 0.0, (reason,)))
        (device,) = watch.devices(DeviceFilter()).devices
        assert (device.doing, device.why) == (doing, reason)


def test_a_device_is_shown_as_it_was_last_heard(clock):
    watch = TaskWatch("digits", clock)
    clock.now = 5.0
    watch(RoundOpened(2, ("full",), 60.0))
    watch(DeviceSeen("pi", True, "pi-zero", 12, "onnx", 2**29, 80))
    watch(PlanReported("pi", 2, "", 0.0, 0, 0.0, ("too slow", "no memory")))
    assert watch.live().sitting_out == 1
    clock.now = 6.0
    watch(ContributionRefused("pi", 2, "full", "refused", "nan in head"))
    (device,) = watch.devices(DeviceFilter()).devices
    assert (device.doing, device.why, device.last_seen) == ("refused", "nan in head", 6.0)
    assert (device.battery_percent, device.profile, device.num_examples) == (80, "pi-zero", 12)
    watch(DeviceSeen("pi", False))
    (device,) = watch.devices(DeviceFilter()).devices
    assert (device.online, device.profile, watch.live().online) == (False, "pi-zero", 0)


def test_devices_without_end_do_not_fill_the_memory(clock, monkeypatch):
    monkeypatch.setattr(devices, "DEVICES_KEPT", 3)
    watch = TaskWatch("digits", clock)
    for number in range(5):
        watch(DeviceSeen(f"pi-{number}", True))
    page = watch.devices(DeviceFilter())
    assert [device.device for device in page.devices] == ["pi-2", "pi-3", "pi-4"]
    assert watch.live().online == 3


def test_the_log_keeps_refusals_and_puts_back_what_a_crash_lost(tmp_path, clock):
    journal = Journal(tmp_path, clock)
    journal(Started(TASK, "r", False, ()))
    journal(Contributed(record("a")))
    journal(ContributionRefused("b", 2**64, "full", "refused", "no such round"))
    journal.close()
    again = Journal(tmp_path, clock)
    again(Started(TASK, "r", True, (closed(1, record("a"), record("c")),)))
    again.close()
    entries = again.page(Filter()).entries
    assert [(entry.device, entry.status, entry.at) for entry in entries] == [
        ("c", "accepted", None),
        ("b", "refused", 0.0),
        ("a", "accepted", 0.0),
    ]
    assert entries[1].round == 2**63 - 1
    assert [entry.device for entry in again.page(Filter(device="a")).entries] == ["a"]
    assert again.page(Filter(limit=1)).next == entries[0].id
    assert again.dropped == 0


def test_a_run_that_never_pauses_does_not_keep_its_log_waiting(tmp_path, clock, monkeypatch):
    journal = Journal(tmp_path, clock)
    seconds = iter(range(1000))
    monkeypatch.setattr(
        "device_runtime.aggregator.http.journal.time.monotonic", lambda: next(seconds) * COMMIT_EVERY_S / 3
    )
    for name in "abcdefghij":
        journal(Contributed(record(name)))
    items, more = journal._gather()
    assert (len(items), more) == (3, True)


def test_a_line_that_cannot_be_written_costs_itself_alone(tmp_path, clock, caplog):
    journal, odd = Journal(tmp_path, clock), record("\ud800")
    large = replace(record("c"), num_examples=2**64)
    journal(Started(TASK, "r", False, (closed(1, record("a"), large),)))
    journal(Contributed(odd))
    journal(Contributed(record("b", number=2)))
    journal.close()
    assert [entry.device for entry in journal.page(Filter()).entries] == ["b", "a"]
    assert journal.dropped == 2
    assert caplog.text.count("a line is skipped") == 2


def test_the_end_does_not_wait_for_ever_for_a_disk_that_hangs(tmp_path, clock, monkeypatch, caplog):
    hangs = threading.Event()

    def opened(_):
        hangs.wait(60)
        raise OSError("gone")

    monkeypatch.setattr("device_runtime.aggregator.http.journal._opened", opened)
    monkeypatch.setattr("device_runtime.aggregator.http.journal.CLOSE_S", 0.2)
    journal = Journal(tmp_path, clock)
    journal(Started(TASK, "r", False, ()))
    journal(Contributed(record("a")))
    journal.close()
    assert "the last lines are not written" in caplog.text
    hangs.set()
    journal._thread.join(120)


def test_a_log_that_is_being_made_has_no_lines_yet(tmp_path, clock):
    (tmp_path / FILE).touch()
    assert Journal(tmp_path, clock).page(Filter()).entries == []


def test_a_log_that_is_damaged_or_cannot_be_written_costs_lines_and_nothing_else(tmp_path, clock):
    (tmp_path / FILE).write_bytes(b"this is no database, but quite another thing" * 50)
    journal = Journal(tmp_path, clock)
    journal(Started(TASK, "r", False, ()))
    journal(Contributed(record("a")))
    journal.close()
    assert [entry.device for entry in journal.page(Filter()).entries] == ["a"]
    gone = Journal(tmp_path / "gone", clock)
    gone(Started(TASK, "r", False, ()))
    gone(Contributed(record("a")))
    gone.close()
    assert gone.dropped == 1
    assert gone.page(Filter()).entries == []


def test_health_says_what_is_wrong(tmp_path, clock):
    host, settings = hosted(tmp_path, clock), HttpSection(stalled_s=60.0, min_free_mb=0)

    def wrong():
        return [check.name for check in health_of([host], settings).checks if not check.ok]

    host.watch(RoundOpened(1, ("full",), 50.0))
    host.loop_clock()
    assert wrong() == []
    clock.now = 149.0
    assert wrong() == ["loop"]
    host.loop_clock()
    host.watch(RoundExtended(1, 50.0, 0, 1))
    clock.now = 151.0
    assert wrong() == ["round"]
    host.watch(Contributed(record()))
    assert wrong() == []
    host.link.connected = False
    host.folder = tmp_path / "gone"
    assert wrong() == ["broker", "disk"]


def test_a_round_whose_mask_helpers_stay_away_is_named_and_is_no_longer_healthy(tmp_path, clock):
    host, settings = hosted(tmp_path, clock), HttpSection(stalled_s=60.0, min_free_mb=0)
    host.watch(RoundOpened(1, ("full",), 10.0))
    host.watch(SumsAwaited(1, ("site-a",), 2))
    assert (host.watch.live().phase, host.watch.live().note) == ("unmasking", "waits for mask helper site-a")
    clock.now += 61.0
    host.loop_clock()
    host.watch(SumsAwaited(1, ("site-a",), 2, deadlines=1, left=4))
    assert [check.name for check in health_of([host], settings).checks if not check.ok] == ["round"]
    host.watch(RoundOpened(2, ("full",), 10.0))
    assert health_of([host], settings).ok


def test_who_asks_how_it_is_writes_nothing(tmp_path, clock, monkeypatch):
    host = hosted(tmp_path, clock)
    before = tmp_path.stat().st_mtime_ns, sorted(host.folder.rglob("*"))
    opened, write = [], os.open
    monkeypatch.setattr(os, "open", lambda *words, **more: opened.append(words) or write(*words, **more))
    monkeypatch.setattr(Path, "write_bytes", lambda path, _: opened.append(path))
    health_of([host], HttpSection(min_free_mb=0))
    assert opened == []
    assert (tmp_path.stat().st_mtime_ns, sorted(host.folder.rglob("*"))) == before


def test_a_folder_that_cannot_be_written_is_told_without_writing(tmp_path, clock, monkeypatch):
    host, about = hosted(tmp_path, clock), os.statvfs(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    [disk] = [check for check in health_of([host], HttpSection(min_free_mb=0)).checks if check.name == "disk"]
    assert (disk.ok, "permission denied" in disk.detail.lower()) == (False, True)
    read_only = SimpleNamespace(f_flag=about.f_flag | os.ST_RDONLY, f_bavail=1, f_frsize=1, f_blocks=1)
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    [disk] = [check for check in health_of([host], HttpSection(min_free_mb=0)).checks if check.name == "disk"]
    assert (disk.ok, "read-only" in disk.detail.lower()) == (False, True)


def test_no_device_chooses_a_label_of_a_metric(tmp_path, clock):
    metrics = ProcessMetrics()
    observe = metrics.observe(hosted(tmp_path, clock))
    for kind in ("full", "x1", 'x2"} 1\nowned'):
        observe(ContributionRefused("pi", 1, kind, "refused", ""))
    text = metrics.text().decode()
    assert 'contributions_total{kind="full",status="refused",task="digits"} 1.0' in text
    assert 'contributions_total{kind="other",status="refused",task="digits"} 2.0' in text
    assert "x1" not in text
    assert "owned" not in text


def test_a_metric_counts_the_mask_helpers_that_a_round_waits_for(tmp_path, clock):
    metrics, name = ProcessMetrics(), 'device_runtime_mask_helpers_awaited{task="digits"}'
    observe = metrics.observe(hosted(tmp_path, clock))
    observe(Started(TASK, "r", False, ()))
    assert f"{name} 0.0" in metrics.text().decode()
    observe(SumsAwaited(1, ("site-a", "site-b"), 2))
    assert f"{name} 2.0" in metrics.text().decode()
    observe(closed(1))
    assert f"{name} 0.0" in metrics.text().decode()


def test_metrics_have_the_extensions_of_the_open_round_and_whether_the_task_is_finished(tmp_path, clock):
    metrics, host = ProcessMetrics(), hosted(tmp_path, clock)
    metrics.observe(host)

    def readings():
        text = metrics.text().decode()
        names = ("round_extensions", "finished")
        return [re.search(rf'device_runtime_{name}{{task="digits"}} (\S+)', text)[1] for name in names]

    host.watch(Started(TASK, "r", False, ()))
    host.watch(RoundOpened(9, ("full",), 60.0))
    assert readings() == ["0.0", "0.0"]  # the last round is open
    for _ in range(2):
        host.watch(RoundExtended(9, 60.0, 1, 2))
    assert readings() == ["2.0", "0.0"]
    host.watch(closed(9))
    host.watch(Finished("r", 9))
    assert readings() == ["NaN", "1.0"]


def test_refusals_of_one_device_do_not_push_out_those_of_others(tmp_path, clock):
    journal = Journal(tmp_path, clock)
    journal(Started(TASK, "r", False, ()))
    for _ in range(2000):
        journal(ContributionRefused("evil", 1, "full", "refused", "nonsense"))
    journal(ContributionRefused("pi", 1, "full", "refused", "late"))
    journal.close()
    page = journal.page(Filter(limit=1000))
    assert len(page.entries) == REFUSALS + 1
    assert page.entries[0].device == "pi"
