import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from device_runtime.device.engine.engine_guard import (
    EngineGuard,
    guard_engine,
    limit_bytes,
    own_memory,
    run_bytes,
)
from device_runtime.device.errors import OutOfMemory
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.profiles import Memory, ProfileError, Speed, shipped
from device_runtime.profiles.cost import session_bytes
from device_runtime.profiles.device import Emulation, Time


def test_a_run_takes_as_long_as_it_would_on_the_pretended_board(bundle, clock):
    graph = bundle.manifest.graphs["forward"]
    engine_guard = EngineGuard(10**12, Emulation.of("pi-zero-2w", slow=25), time=Time(clock, clock.sleep))
    engine_guard.start()
    engine_guard.ran("forward", graph, samples=180, seconds=0.1)
    rate = 0.6e9 / 0.147 / 25  # MobileNetV2's operations in 147 ms, 25 times slower
    assert clock.now == pytest.approx(180 * graph.flops / rate - 0.1, rel=1e-6)


def test_what_took_longer_than_pretended_is_made_up_for_later(bundle, clock):
    graph = bundle.manifest.graphs["forward"]
    emulation = Emulation.of("pi-4", slow=10)
    engine_guard = EngineGuard(10**12, emulation, time=Time(clock, clock.sleep))
    engine_guard.start()
    each = 32 * graph.flops / emulation.profile.speed.flops_per_s
    engine_guard.ran("forward", graph, 32, seconds=each + 0.02)  # this machine was busy
    assert clock.now == 0
    engine_guard.ran("forward", graph, 32, seconds=0.0)
    assert clock.now == pytest.approx(each - 0.02, abs=1e-3)


def test_a_device_that_is_itself_is_not_slowed(bundle, clock):
    engine_guard = EngineGuard(10**12, time=Time(clock, clock.sleep))
    engine_guard.ran("forward", bundle.manifest.graphs["forward"], 1000, 0.0)
    assert clock.now == 0


def test_the_pretended_link_takes_its_time(clock, monkeypatch):
    monkeypatch.setattr(time, "sleep", clock.sleep)
    Emulation.of("jetson-nano", uplink=300.0).transfer(up=190)
    assert clock.now == pytest.approx(190 / 300)


def test_a_session_that_would_not_fit_is_refused_before_it_is_made(bundle):
    model = OnnxModel(bundle, watch=Weighed(Weighed.footprint + 1_000_000))
    with pytest.raises(OutOfMemory, match=r"train.all needs \d+ MB in all, this device may use \d+ MB"):
        model.trainer("all")


def test_what_another_process_of_the_device_holds_of_the_limit_is_told(bundle):
    watch = Weighed(Weighed.footprint + 1_000_000)
    watch.elsewhere_bytes = 30_000_000
    with pytest.raises(OutOfMemory, match=r"MB \(30 MB of its limit are held by its other process\)"):
        OnnxModel(bundle, watch=watch).trainer("all")


def test_work_that_outgrows_the_memory_is_given_up(bundle):
    model = OnnxModel(bundle, watch=(engine_guard := EngineGuard(10**12)))
    model.forward(np.zeros((1, 1, 8, 8), np.float32))
    engine_guard.limit_bytes = 1_000_000
    with pytest.raises(OutOfMemory, match="over its 1 MB"):
        model.forward(np.zeros((1, 1, 8, 8), np.float32))


class Weighed(EngineGuard):
    """Of a process that holds what it is told to."""

    footprint = 1000

    def resident(self) -> int:
        return self.footprint


def test_what_a_graph_with_a_whole_batch_holds_is_seen_and_told_with_some_more(bundle):
    graphs, watch = bundle.manifest.graphs, Weighed(10**12)
    watch.will_load("forward", graphs["forward"])
    watch.footprint = 3000
    watch.ran("forward", graphs["forward"], 31, 0.0)
    assert watch.grown == {}
    watch.ran("forward", graphs["forward"], 32, 0.0)
    assert watch.grown == {"forward": round(1.1 * 2000) + 8 * 2**20}


def test_what_an_engine_took_as_it_was_loaded_is_not_a_graph_s(bundle):
    graphs, watch = bundle.manifest.graphs, Weighed(10**12)
    watch.will_load("forward", graphs["forward"])
    watch.ran("forward", graphs["forward"], 32, 0.0)
    watch.forget()
    assert watch.grown == {}


def test_runs_are_of_fewer_samples_where_there_is_less_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert [run_bytes(free << 20) >> 20 for free in (10_000, 768, 767, 383, 96, 95, 6, 0)] == [
        128,
        128,
        64,
        32,
        16,
        8,
        1,
        1,
    ]
    monkeypatch.delitem(sys.modules, "onnxruntime")
    assert run_bytes((384 + 29) << 20) >> 20 == 32  # its library is still to come
    assert run_bytes((384 + 30) << 20) >> 20 == 64


def test_a_graph_in_smaller_runs_needs_less(bundle):
    graph, watch = bundle.manifest.graphs["train.all"], Weighed(10**12)
    watch.run_bytes = graph.activation_bytes(4)
    watch.limit_bytes = 1000 + session_bytes(graph.bytes) + graph.memory_bytes(4)
    watch.will_load("train.all", graph)
    watch.ran("train.all", graph, 4, 0.0)
    assert set(watch.grown) == {"train.all"}


def test_a_session_is_refused_by_what_it_was_seen_to_hold_where_that_is_known(bundle):
    graph, watch = bundle.manifest.graphs["train.all"], Weighed(6000)
    with pytest.raises(OutOfMemory):
        watch.will_load("train.all", graph)
    watch.held_bytes = {"train.all": 5000}
    watch.will_load("train.all", graph)
    watch.held_bytes = {"train.all": 5001}
    with pytest.raises(OutOfMemory):
        watch.will_load("train.all", graph)


def test_a_board_that_is_not_shipped_is_named_with_those_that_are():
    with pytest.raises(ProfileError, match="no profile named 'abacus'; there are pi-zero-2w, pi-4"):
        Emulation.of("abacus")
    assert limit_bytes(Emulation.of("pi-4"), 5) == 5
    assert own_memory(Emulation.of("pi-4").profile, 5).memory.limit_bytes == 5
    assert limit_bytes(Emulation.of("pi-4"), None) == 3600 * 2**20
    assert shipped("pi-4").memory.limit_bytes == 3600 * 2**20


def virtual(clock, **changes):
    """A Raspberry Pi 4 on a clock of its own."""
    profile = replace(shipped("pi-4"), **changes)
    return Emulation(profile, time=Time(clock, clock.sleep))


def test_a_virtual_device_is_charged_its_own_time_and_none_of_this_machine_s(bundle, clock):
    graph = bundle.manifest.graphs["forward"]
    speed = Speed(2e9, {"loss.all": 0.25})  # seconds a sample, where a graph's time is known
    watched = guard_engine(virtual(clock, speed=speed), None)
    watched.start()
    watched.ran("forward", graph, samples=50, seconds=99.0)
    assert clock.now == 50 * graph.flops / 2e9
    watched.ran("loss.all", graph, samples=4, seconds=99.0)
    assert clock.now == 50 * graph.flops / 2e9 + 1.0


def test_the_link_of_a_virtual_device_is_not_pretended(clock):
    virtual(clock).transfer(up=10**9, down=10**9)
    assert clock.now == 0.0


def test_a_virtual_device_s_memory_is_that_of_its_profile_and_not_of_this_process(bundle, clock):
    graph = bundle.manifest.graphs["train.all"]
    needed = 40_000_000 + session_bytes(graph.bytes) + graph.memory_bytes(graph.rows(32))
    enough = guard_engine(virtual(clock, memory=Memory(10**9, needed, 40_000_000)), None)
    enough.start()
    assert enough.peak_bytes == 40_000_000
    OnnxModel(bundle, watch=enough).trainer("all")
    assert enough.peak_bytes == needed
    scarce = guard_engine(virtual(clock, memory=Memory(10**9, needed - 1, 40_000_000)), None)
    with pytest.raises(OutOfMemory, match="train.all needs"):
        OnnxModel(bundle, watch=scarce).trainer("all")
