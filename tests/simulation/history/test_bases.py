import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import Step
from device_runtime.broker.wire.step_log import SEGMENT, TAIL
from device_runtime.models.bundles import tensors
from device_runtime.simulation.history.bases import (
    NO_BASES_HELD,
    SEGMENT_BYTES,
    BaseHistory,
    HeldBases,
    ShippedModel,
)
from device_runtime.strategies.directions import directions
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.merging.merge import Merged

BODY, HEAD, SMALL = 1000, 100, 10
"""Bytes of the main model's two parts, and of the one of the member "small"."""


STEP = Step(1, "philox/1", 7, "all", 0.1, 1.0, (0.5, 2.0**-30))
STEP_BYTES = 8
"""Of its two scalars, which take all of a float32."""


def weights(body: float, head: float = 0.0) -> dict[str, np.ndarray]:
    return {"body": np.full(3, body, np.float32), "head": np.full(2, head, np.float32)}


def family(value: float) -> dict[str, dict[str, np.ndarray]]:
    return {"small": {"w": np.full(2, value, np.float32)}}


def merged(base, *, steps: int = 0, replayable: bool = False, small: float = 0.0, aside=None) -> Merged:
    carried = CarriedState(family(small), aside=aside or {})
    return Merged(base, base, (STEP,) * steps, replayable, carried)


@pytest.fixture
def history() -> BaseHistory:
    shipped = {
        "": ShippedModel(weights(1), (("body",), ("head",)), (BODY, HEAD)),
        "small": ShippedModel(family(0)["small"], (("w",),), (SMALL,)),
    }
    return BaseHistory(shipped, weights(1), CarriedState(family(0)))


def test_what_is_as_in_the_bundle_is_not_fetched_and_a_fresh_start_is(history):
    assert history.to_fetch(1, "", NO_BASES_HELD) == history.to_fetch(1, "small", NO_BASES_HELD) == 0
    fresh = BaseHistory(history._shipped, weights(7), CarriedState(family(0)))
    assert fresh.to_fetch(1, "", NO_BASES_HELD) == BODY
    assert fresh.to_fetch(1, "small", NO_BASES_HELD) == 0


def test_only_parts_that_differ_from_what_a_device_has_are_fetched(history):
    history.advance(1, merged(weights(1, head=2)))
    history.advance(2, merged(weights(3, head=2)))
    history.advance(3, merged(weights(3, head=4)))
    second = history.fetched(2, "", NO_BASES_HELD)
    assert history.to_fetch(2, "", NO_BASES_HELD) == HEAD
    assert history.to_fetch(2, "", second) == 0
    assert history.to_fetch(3, "", second) == BODY
    assert history.to_fetch(4, "", history.fetched(3, "", second)) == HEAD
    assert history.to_fetch(4, "", second) == BODY + HEAD


def test_each_member_is_fetched_by_itself_and_what_a_device_had_of_others_stays(history):
    history.advance(1, merged(weights(2), small=5))
    bases = history.fetched(2, "small", NO_BASES_HELD)
    assert history.to_fetch(2, "small", NO_BASES_HELD) == SMALL
    assert history.to_fetch(2, "", bases) == BODY
    both = history.fetched(2, "", bases)
    assert (both.rounds, history.to_fetch(2, "small", both)) == ({"small": 2, "": 2}, 0)
    history.advance(2, merged(weights(2), small=5))
    assert [history.to_fetch(3, member, both) for member in ("", "small")] == [0, 0]


def test_what_stands_beside_the_bases_is_fetched_once_for_every_change(history):
    beside = {"anchor": np.ones(3, np.float32)}
    size = len(tensors.encode(beside))
    history.advance(1, merged(weights(1), aside=beside))
    assert history.to_fetch(2, "", NO_BASES_HELD) == history.to_fetch(2, "small", NO_BASES_HELD) == size
    bases = history.fetched(2, "small", NO_BASES_HELD)
    history.advance(2, merged(weights(1), aside={"anchor": np.ones(3, np.float32)}))
    assert history.to_fetch(3, "", bases) == 0
    history.advance(3, merged(weights(1), aside={"anchor": np.zeros(3, np.float32)}))
    assert history.to_fetch(4, "", bases) == size
    history.advance(4, merged(weights(1)))
    assert history.to_fetch(5, "", bases) == 0


def test_a_round_of_steps_alone_is_fetched_as_steps(history):
    history.advance(1, merged(weights(2), steps=2, replayable=True))
    assert history.to_fetch(2, "", NO_BASES_HELD) == 2 * STEP_BYTES
    assert history.to_fetch(2, "", history.fetched(2, "", NO_BASES_HELD)) == 0


def test_who_lacks_more_steps_than_an_offer_holds_fetches_the_log_of_all_of_them(history):
    for number in range(1, TAIL + 4):
        history.advance(number, merged(weights(1, head=number), steps=1, replayable=True))
    newest = TAIL + 4
    lacking = [history.to_fetch(newest, "", HeldBases({"": 1}, at)) for at in (0, 2, 3, TAIL + 3)]
    whole = SEGMENT_BYTES + (TAIL + 3) * STEP_BYTES
    assert lacking == [whole, whole, TAIL * STEP_BYTES, 0]


def test_scalars_that_are_whole_numbers_are_bytes_as_in_the_service(history):
    whole = msgspec.structs.replace(STEP, scalars=(32.0, -127.0, 0.0, 5.0))
    for number in range(1, TAIL + 2):
        history.advance(
            number, Merged(weights(1, head=number), NO_TENSORS, (whole,), True, CarriedState(family(0)))
        )
    tail = TAIL * 4
    assert history.to_fetch(TAIL + 2, "", history.fetched(2, "", NO_BASES_HELD)) == tail
    assert history.to_fetch(TAIL + 2, "", NO_BASES_HELD) == SEGMENT_BYTES + tail + 4
    named = msgspec.structs.replace(whole, generator=directions.GENERATOR)
    wire = steps.encode(
        [msgspec.structs.replace(named, round=n, seed=steps.round_seed(5, n)) for n in range(33)], 5
    )
    assert abs(len(wire) - (SEGMENT_BYTES + tail + 4)) < 10


def test_who_trained_another_model_since_takes_all_steps_again(history):
    history.advance(1, merged(weights(2), steps=3, replayable=True))
    bases = history.fetched(2, "small", history.fetched(2, "", NO_BASES_HELD))
    assert history.to_fetch(2, "", bases) == 3 * STEP_BYTES


def after_a_full_segment(history) -> int:
    for number in range(1, SEGMENT + 2):
        history.advance(number, merged(weights(1, head=number), steps=1, replayable=True))
    return SEGMENT + 2


def test_when_a_segment_is_full_the_parts_that_its_steps_moved_are_new_as_in_the_service(history):
    newest = after_a_full_segment(history)
    before, after = history.history[SEGMENT - 1], history.history[SEGMENT]
    assert (before.parts[""], before.steps) == ((0, 0), SEGMENT - 1)
    assert (after.parts[""], after.steps, after.at) == ((0, SEGMENT + 1), 0, SEGMENT)
    assert history.history[newest - 1].steps == 1


def test_who_keeps_up_goes_over_a_checkpoint_by_steps_and_others_take_what_is_fewer_bytes(history):
    newest = after_a_full_segment(history)
    keeping_up = history.fetched(newest - 2, "", NO_BASES_HELD)
    assert history.to_fetch(newest, "", keeping_up) == 2 * STEP_BYTES
    anew = HEAD + STEP_BYTES  # the log of all steps is 4 kB
    assert (
        history.to_fetch(newest, "", NO_BASES_HELD)
        == history.to_fetch(newest, "", HeldBases({"": 1}, 0))
        == anew
    )


def test_a_line_that_does_not_begin_with_the_bundle_s_weights_is_entered_at_its_checkpoint(history):
    history.advance(1, merged(weights(5)))
    history.advance(2, merged(weights(6), steps=1, replayable=True))
    assert history.to_fetch(3, "", NO_BASES_HELD) == BODY + STEP_BYTES
    assert history.to_fetch(3, "", history.fetched(1, "", NO_BASES_HELD)) == BODY + STEP_BYTES
    assert history.to_fetch(3, "", history.fetched(2, "", NO_BASES_HELD)) == STEP_BYTES


def test_a_new_checkpoint_has_what_steps_moved_before_it(history):
    """The second round changes the body alone, but the head of the checkpoint is without the step."""
    history.advance(1, merged(weights(1, head=2), steps=1, replayable=True))
    history.advance(2, merged(weights(3, head=2)))
    assert history.to_fetch(3, "", history.fetched(2, "", NO_BASES_HELD)) == BODY + HEAD


def test_what_nobody_needs_is_forgotten(history):
    for number in (1, 2, 3):
        history.advance(number, merged(weights(number), aside={"w": np.ones(1)} if number == 3 else None))
    history.keep([2, 4])
    assert sorted(history.tensors()) == ["2", "2/small", "4", "4//aside", "4/small"]
