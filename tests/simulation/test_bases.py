import numpy as np

from simulation.bases import STEP_BYTES, Bases
from strategies.merge import Merged


def weights(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(3, value, np.float32)}


def bases() -> Bases:
    return Bases(weights(1), weights_bytes=600)


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


def test_who_lacks_more_steps_than_an_offer_holds_fetches_the_log_of_all_of_them():
    kept = bases()
    for number in range(1, 7):
        kept.advance(number, Merged(weights(2), weights(2), ("a step",), replayable=True))
    seventh = kept.of(7)
    assert [kept.to_fetch(seventh, 1, steps) // STEP_BYTES for steps in (1, 2, 6)] == [6, 4, 0]


def test_after_fifty_steps_there_is_a_new_checkpoint_as_in_the_service():
    kept = bases()
    for number in range(1, 52):
        kept.advance(number, Merged(weights(2), weights(2), ("a step",), replayable=True))
    assert (kept.of(51).checkpoint, kept.of(51).steps) == (1, 50)
    assert (kept.of(52).checkpoint, kept.of(52).steps) == (52, 0)
    assert kept.to_fetch(kept.of(52), 1, 50) == 600


def test_what_nobody_needs_is_forgotten():
    kept = bases()
    for number in (1, 2, 3):
        kept.advance(number, Merged(weights(number), weights(number), (), replayable=False))
    kept.keep([2, 4])
    assert sorted(kept.weights()) == ["2", "4"]
