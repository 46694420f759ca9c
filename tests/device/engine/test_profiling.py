import time
from dataclasses import replace

import pytest

from device_runtime.device.engine.profiling import clocks, completed, measure, ready
from device_runtime.device.errors import OutOfMemory
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.profiles import Speed
from device_runtime.profiles.device import Emulation
from device_runtime.profiles.measure import Clocks


@pytest.fixture
def manifest():
    return Bundle.open(shipped_folder("digits-wrn-10-1")).manifest


class Limited:
    """A watch that refuses to load one graph, or gives up after a run of another."""

    def __init__(self, refused: str = "", too_large: str = "") -> None:
        self.refused, self.too_large = refused, too_large

    def will_load(self, name, graph) -> None:
        if name == self.refused:
            raise OutOfMemory(name)

    def ran(self, name, graph, samples, seconds) -> None:
        if name == self.too_large:
            raise OutOfMemory(name)


class Ticking:
    """A millisecond passes with each look at it, however slow the machine is."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def measured(**limits: str) -> Speed:
    model = open_model(Bundle.open(shipped_folder("digits-wrn-10-1")), watch=Limited(**limits))
    ticking = Ticking()
    rows = dict.fromkeys(model.manifest.graphs, 32)
    speed = measure(model, Clocks(ticking, ticking), rows)
    assert not (model._sessions or model._blocked)  # nothing is held when all is measured
    return speed


@pytest.mark.slow
def test_every_training_graph_is_measured_and_the_loss_and_a_step_of_the_classifier(manifest):
    speed = measured()
    assert set(speed.seconds) == set(speed.opening) == set(manifest.graphs)
    assert "2 of 7 graphs by their operations" in speed.source  # loss.mid, loss.head
    assert speed.step_s > 0


@pytest.mark.slow
def test_what_the_memory_does_not_allow_is_left_out_before_it_is_loaded_or_when_it_has_run(manifest):
    graphs, speed = manifest.graphs, measured(refused="train.all", too_large="train.mid")
    assert "4 of 7 graphs by their operations" in speed.source
    rate = graphs["train.head"].flops / speed.seconds["train.head"]
    for name in ("train.all", "train.mid"):
        assert graphs[name].flops / speed.seconds[name] == pytest.approx(rate)


def test_what_is_not_measured_is_as_fast_as_its_sort_and_opens_as_slowly_as_its_size_says(manifest):
    graphs = manifest.graphs
    seconds = {"forward": 1e-3, "train.all": 9e-3}
    speed = completed(Speed(1e9, seconds, opening={"forward": 0.01, "train.all": 0.05}), graphs)
    assert speed.seconds["loss.mid"] == pytest.approx(
        1e-3 * graphs["loss.mid"].flops / graphs["forward"].flops
    )
    assert speed.seconds["train.mid"] == pytest.approx(
        9e-3 * graphs["train.mid"].flops / graphs["train.all"].flops
    )
    assert completed(replace(speed, seconds={"forward": 1e-3, "loss.all": 2e-3}), graphs).seconds[
        "loss.mid"
    ] == pytest.approx(2e-3 * graphs["loss.mid"].flops / graphs["loss.all"].flops)
    size = graphs["forward"].bytes + graphs["train.all"].bytes
    assert speed.opening["train.mid"] == pytest.approx(0.06 * graphs["train.mid"].bytes / size)
    assert {name: speed.seconds[name] for name in seconds} == seconds


def test_what_a_gpu_or_a_pretended_device_computes_is_not_known():
    meters = clocks(time.monotonic, EngineSettings(), None)
    assert (meters.passed, meters.busy) == (time.monotonic, time.process_time)
    for settings, emulation in (
        (EngineSettings(device="cuda"), None),
        (EngineSettings(), Emulation.of("pi-4")),
    ):
        assert clocks(time.monotonic, settings, emulation).busy == time.monotonic


def test_a_device_whose_speed_is_remembered_has_its_engine_loaded_and_no_graph(manifest):
    model = open_model(Bundle.open(shipped_folder("digits-wrn-10-1")), watch=Limited())
    ready(model)
    assert not (model._sessions or model._blocked)
    with pytest.raises(OutOfMemory):
        ready(open_model(Bundle.open(shipped_folder("digits-wrn-10-1")), watch=Limited(refused="forward")))


def test_a_device_that_cannot_even_run_a_forward_pass_says_so():
    with pytest.raises(OutOfMemory, match="forward"):
        measured(too_large="forward")
