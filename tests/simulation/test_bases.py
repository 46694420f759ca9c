import numpy as np

from simulation.bases import STEP_BYTES, Bases
from strategies.merge import Merged


def weights(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(3, value, np.float32)}


def bases() -> Bases:
    return Bases(weights(1), bundle_bytes=1000, weights_bytes=600)


def test_a_new_device_fetches_the_bundle_and_once_there_are_newer_weights_these_too():
    kept = bases()
    assert kept.to_fetch(kept.of(1), -1, 0) == 1000
    second = kept.advance(1, Merged(weights(2), weights(2), (), replayable=False))
    assert kept.to_fetch(second, -1, 0) == 1600


def test_a_device_that_holds_the_base_fetches_nothing_and_one_that_does_not_fetches_weights():
    kept = bases()
    assert kept.to_fetch(kept.of(1), 1, 0) == 0
    second = kept.advance(1, Merged(weights(2), weights(2), (), replayable=False))
    assert kept.to_fetch(second, 1, 0) == 600


def test_a_round_of_steps_alone_is_fetched_as_steps():
    kept = bases()
    second = kept.advance(1, Merged(weights(2), weights(2), ("a step", "another"), replayable=True))
    assert (second.checkpoint, second.steps) == (1, 2)
    assert kept.to_fetch(second, 1, 0) == 2 * STEP_BYTES
    assert kept.to_fetch(second, 1, 2) == 0


def test_what_nobody_needs_is_forgotten():
    kept = bases()
    for number in (1, 2, 3):
        kept.advance(number, Merged(weights(number), weights(number), (), replayable=False))
    kept.keep([2, 4])
    assert sorted(kept.weights()) == [2, 4]
