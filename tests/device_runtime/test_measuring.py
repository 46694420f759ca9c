import time

import pytest

from device_runtime.errors import OutOfMemory
from device_runtime.measuring import measure
from models.bundle import Bundle, shipped
from models.engines import open_model


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


def measured(**limits: str) -> set[str]:
    model = open_model(Bundle.open(shipped("digits-wrn-10-1")), watch=Limited(**limits))
    speed = measure(model, time.perf_counter)
    assert not model._sessions  # nothing is held when all is measured
    return set(speed.seconds)


def test_every_training_graph_is_measured_and_the_loss():
    assert measured() == {"forward", "train.all", "train.mid", "train.head", "loss.all"}


def test_what_the_memory_does_not_allow_is_left_out_before_it_is_loaded_or_when_it_has_run():
    assert measured(refused="train.all", too_large="train.mid") == {"forward", "train.head", "loss.all"}


def test_a_device_that_cannot_even_run_a_forward_pass_says_so():
    with pytest.raises(OutOfMemory, match="forward"):
        measured(too_large="forward")
