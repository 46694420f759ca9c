import numpy as np
import pytest

from models import tensors
from simulation.bases import NOTHING_HELD, STEP_BYTES, Bases, Held, Shipped
from strategies.kind import Carried
from strategies.merge import Merged

BODY, HEAD, SMALL = 1000, 100, 10
"""Bytes of the main model's two parts, and of the one of the member "small"."""


def weights(body: float, head: float = 0.0) -> dict[str, np.ndarray]:
    return {"body": np.full(3, body, np.float32), "head": np.full(2, head, np.float32)}


def family(value: float) -> dict[str, dict[str, np.ndarray]]:
    return {"small": {"w": np.full(2, value, np.float32)}}


def merged(base, *, steps: int = 0, replayable: bool = False, small: float = 0.0, aside=None) -> Merged:
    carried = Carried(family(small), aside=aside or {})
    return Merged(base, base, ("a step",) * steps, replayable, carried)


@pytest.fixture
def kept() -> Bases:
    shipped = {
        "": Shipped(weights(1), (("body",), ("head",)), (BODY, HEAD)),
        "small": Shipped(family(0)["small"], (("w",),), (SMALL,)),
    }
    return Bases(shipped, weights(1), Carried(family(0)))


def test_what_is_as_in_the_bundle_is_not_fetched_and_a_fresh_start_is(kept):
    assert kept.to_fetch(1, "", NOTHING_HELD) == kept.to_fetch(1, "small", NOTHING_HELD) == 0
    fresh = Bases(kept._shipped, weights(7), Carried(family(0)))
    assert fresh.to_fetch(1, "", NOTHING_HELD) == BODY
    assert fresh.to_fetch(1, "small", NOTHING_HELD) == 0


def test_only_parts_that_differ_from_what_a_device_has_are_fetched(kept):
    kept.advance(1, merged(weights(1, head=2)))
    kept.advance(2, merged(weights(3, head=2)))
    kept.advance(3, merged(weights(3, head=4)))
    second = kept.fetched(2, "", NOTHING_HELD)
    assert kept.to_fetch(2, "", NOTHING_HELD) == HEAD
    assert kept.to_fetch(2, "", second) == 0
    assert kept.to_fetch(3, "", second) == BODY
    assert kept.to_fetch(4, "", kept.fetched(3, "", second)) == HEAD
    assert kept.to_fetch(4, "", second) == BODY + HEAD


def test_each_member_is_fetched_by_itself_and_what_a_device_had_of_others_stays(kept):
    kept.advance(1, merged(weights(2), small=5))
    held = kept.fetched(2, "small", NOTHING_HELD)
    assert kept.to_fetch(2, "small", NOTHING_HELD) == SMALL
    assert kept.to_fetch(2, "", held) == BODY
    both = kept.fetched(2, "", held)
    assert (both.rounds, kept.to_fetch(2, "small", both)) == ({"small": 2, "": 2}, 0)
    kept.advance(2, merged(weights(2), small=5))
    assert [kept.to_fetch(3, member, both) for member in ("", "small")] == [0, 0]


def test_what_stands_beside_the_bases_is_fetched_once_for_every_change(kept):
    beside = {"anchor": np.ones(3, np.float32)}
    size = len(tensors.encode(beside))
    kept.advance(1, merged(weights(1), aside=beside))
    assert kept.to_fetch(2, "", NOTHING_HELD) == kept.to_fetch(2, "small", NOTHING_HELD) == size
    held = kept.fetched(2, "small", NOTHING_HELD)
    kept.advance(2, merged(weights(1), aside={"anchor": np.ones(3, np.float32)}))
    assert kept.to_fetch(3, "", held) == 0
    kept.advance(3, merged(weights(1), aside={"anchor": np.zeros(3, np.float32)}))
    assert kept.to_fetch(4, "", held) == size
    kept.advance(4, merged(weights(1)))
    assert kept.to_fetch(5, "", held) == 0


def test_a_round_of_steps_alone_is_fetched_as_steps(kept):
    kept.advance(1, merged(weights(2), steps=2, replayable=True))
    assert kept.to_fetch(2, "", NOTHING_HELD) == 2 * STEP_BYTES
    assert kept.to_fetch(2, "", kept.fetched(2, "", NOTHING_HELD)) == 0


def test_who_lacks_more_steps_than_an_offer_holds_fetches_the_log_of_all_of_them(kept):
    for number in range(1, 7):
        kept.advance(number, merged(weights(number + 1), steps=1, replayable=True))
    lacking = [kept.to_fetch(7, "", Held({"": 1}, steps)) // STEP_BYTES for steps in (1, 2, 6)]
    assert lacking == [6, 4, 0]


def test_who_trained_another_model_since_takes_all_steps_again(kept):
    kept.advance(1, merged(weights(2), steps=3, replayable=True))
    held = kept.fetched(2, "small", kept.fetched(2, "", NOTHING_HELD))
    assert kept.to_fetch(2, "", held) == 3 * STEP_BYTES


def test_after_fifty_steps_the_parts_that_they_moved_are_new_as_in_the_service(kept):
    for number in range(1, 52):
        kept.advance(number, merged(weights(1, head=number), steps=1, replayable=True))
    held = kept.fetched(51, "", NOTHING_HELD)
    assert (kept.history[50].parts[""], kept.history[50].steps) == ((0, 0), 50)
    assert (kept.history[51].parts[""], kept.history[51].steps) == ((0, 52), 0)
    assert kept.to_fetch(52, "", held) == HEAD


def test_a_new_checkpoint_has_what_steps_moved_before_it(kept):
    """The second round changes the body alone, but the head of the checkpoint is without the step."""
    kept.advance(1, merged(weights(1, head=2), steps=1, replayable=True))
    kept.advance(2, merged(weights(3, head=2)))
    assert kept.to_fetch(3, "", kept.fetched(2, "", NOTHING_HELD)) == BODY + HEAD


def test_what_nobody_needs_is_forgotten(kept):
    for number in (1, 2, 3):
        kept.advance(number, merged(weights(number), aside={"w": np.ones(1)} if number == 3 else None))
    kept.keep([2, 4])
    assert sorted(kept.tensors()) == ["2", "2/small", "4", "4//aside", "4/small"]
