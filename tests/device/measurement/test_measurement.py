from math import isnan, nan

import msgspec
import pytest

from device_runtime.broker.wire.messages import Kind
from device_runtime.device.energy import MODELLED, MeterInfo, find_meter
from device_runtime.device.energy.meter import CounterIntegral, PolledMeter
from device_runtime.device.measurement import measurement as trials
from device_runtime.device.measurement.measure_one import (
    MeasuredDevice,
    MeasuredFigures,
    MeasureOrder,
    peak_bytes,
)
from device_runtime.device.measurement.measurement import (
    MeasuredSpread,
    cells,
    idle_watts,
    in_a_child,
    interleaved,
    lines,
    row,
)
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.profiles import Speed
from device_runtime.profiles.device import Time

# Of /proc/PID/status of a process on Linux 6.1.
STATUS = (
    "Name:\tpython3\nVmPeak:\t  361220 kB\nVmSize:\t  361216 kB\nVmHWM:\t   82004 kB\nVmRSS:\t   81996 kB\n"
)


def order(kind, bundle="digits-wrn-10-1", **device):
    offered = Kind(kind, msgspec.Raw(msgspec.msgpack.encode({})))
    return MeasureOrder(bundle, offered, "", 30, MeasuredDevice(Speed(1e9), EngineSettings(), **device))


def figures(seconds, joules=4.0, **changes):
    usual = {"kind": "full", "seconds": seconds, "predicted_s": 2.0, "joules": joules, "source": "rapl"}
    usual |= {"uncertainty": 0.05, "peak_bytes": 90_000_000, "predicted_peak_bytes": 80_000_000}
    return MeasuredFigures(**{**usual, **changes})


def test_the_middle_run_counts_and_half_of_the_range_is_told():
    spread = MeasuredSpread.of([3.0, 1.0, 2.0])
    assert spread == MeasuredSpread(2.0, 1.0, 3.0)
    assert spread.formatted(".2f") == "2.00 ± 1.00"
    assert spread.formatted(".1f", 1e3) == "2000.0 ± 1000.0"


def test_above_idle_is_told_with_the_meter_s_error():
    line = row([figures(1.0, above_idle_j=-5.3, above_idle_off_j=0.7)])
    assert cells(line)[4] == "-5.30 ± 0.70"


def test_what_was_not_measured_is_left_out_and_nothing_is_told_of_nothing():
    assert MeasuredSpread.of([nan, 5.0, nan]) == MeasuredSpread(5.0, 5.0, 5.0)
    assert isnan(MeasuredSpread.of([nan]).median)
    assert MeasuredSpread.of([]).formatted(".2f") == ""


def test_a_kind_is_believed_as_little_as_its_least_believable_run():
    line = row([figures(1.0), figures(3.0, 9.0, source=MODELLED, uncertainty=1.0), figures(2.0)])
    assert (line.runs, line.seconds.median, line.joules.median) == (3, 2.0, 4.0)
    assert (line.source, line.uncertainty) == (MODELLED, 1.0)
    assert cells(line)[5] == "modelled ± 100%"


def test_a_run_in_which_nothing_was_made_counts_for_nothing_and_says_why():
    failed = MeasuredFigures("full", why="needs 90 MB of 80 MB")
    line = row([failed, figures(2.0)])
    assert (line.runs, line.seconds.median, line.why) == (1, 2.0, "needs 90 MB of 80 MB")
    nothing = row([failed, failed])
    assert nothing.runs == 0
    assert cells(nothing) == ("full", "needs 90 MB of 80 MB")


def test_a_file_of_runs_has_their_names_and_nothing_for_what_is_not_known():
    names, first, second = lines([figures(1.5), MeasuredFigures("full", why="no")])
    filled, untold = dict(zip(names, first, strict=True)), dict(zip(names, second, strict=True))
    assert (filled["kind"], filled["seconds"], filled["source"], filled["above_idle_j"]) == (
        "full",
        1.5,
        "rapl",
        "",
    )
    assert (untold["seconds"], untold["why"]) == ("", "no")


def test_kinds_take_turns(monkeypatch):
    kinds = []
    monkeypatch.setattr(trials, "in_a_child", lambda order: MeasuredFigures(order.kind))
    runs = interleaved([order("full"), order("few-shot")], 2, lambda order, _: kinds.append(order.kind))
    assert kinds == ["full", "few-shot", "full", "few-shot"]
    assert {kind: len(some) for kind, some in runs.items()} == {"full": 2, "few-shot": 2}


def test_the_peak_of_a_process_is_read_where_the_system_tells_it():
    assert peak_bytes(STATUS) == 82004 * 1024
    assert peak_bytes("Name:\tpython3\n") == 0


def test_a_child_does_one_kind_and_tells_what_it_took():
    run = in_a_child(order("class-means"))
    assert run.kind == "class-means"
    assert run.why == ""
    assert run.joules > 0
    assert (run.source, run.uncertainty) == (MODELLED, 1.0)
    assert run.bytes_up == run.predicted_bytes_up
    assert run.peak_bytes > 30_000_000


def test_a_child_s_meter_is_asked_and_what_it_uses_at_rest_taken_away():
    run = in_a_child(order("class-means", meter="command:echo 3 W", idle_w=2.0))
    assert (run.source, run.uncertainty) == ("command", pytest.approx(0.05))
    assert run.above_idle_j < run.joules


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, why",
    [
        (order("class-means", bundle="nothing"), "neither a bundle folder or zip nor a shipped bundle"),
        (order("full", meter="sundial"), "--meter sundial: expected one of"),
        (order("full", memory_bytes=1_000_000), "needs"),
    ],
)
def test_a_child_that_cannot_says_why(task, why):
    run = in_a_child(task)
    assert isnan(run.seconds)
    assert why in run.why


def test_what_a_child_prints_is_none_of_its_figures(tmp_path, monkeypatch):
    says = "import atexit, os; print('hello'); os.write(1, b'from C'); atexit.register(print, 'bye')"
    (tmp_path / "sitecustomize.py").write_text(says)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = in_a_child(order("class-means"))
    assert (run.why, run.kind) == ("", "class-means")
    assert run.seconds > 0


def test_a_child_that_is_killed_is_told_so(monkeypatch):
    monkeypatch.setattr(trials, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    assert "ended by signal 9" in in_a_child(order("full")).why


def test_power_at_rest_is_what_the_meter_shows_while_nothing_is_done(clock):
    choice = find_meter("command:echo 3 W", clock)
    assert idle_watts(choice.meter, 4.0, Time(clock, clock.sleep)) == pytest.approx(3.0)


def test_a_meter_too_coarse_for_seconds_at_rest_tells_no_power_at_rest(clock):
    counter = iter([0.0, 36.0])
    coarse = PolledMeter(
        MeterInfo("battery", "all", 0.1, step_j=36.0), lambda: next(counter), CounterIntegral(), clock
    )
    assert isnan(idle_watts(coarse, 5.0, Time(clock, clock.sleep)))
