"""What codecs left out: nothing of it is lost, and nothing comes twice, whatever becomes of the updates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.broker.errors import BlobError
from device_runtime.device.delivery.error_feedback import ErrorFeedback, FeedbackKey

OF = FeedbackKey("r", "full")


def rest(**values):
    return {name: np.full(3, value, np.float32) for name, value in values.items()}


def values(tensors):
    return {name: float(value[0]) for name, value in tensors.items()}


@pytest.fixture
def left(tmp_path):
    return ErrorFeedback(tmp_path / "left")


def test_what_is_left_comes_with_the_next_update_of_the_kind_and_member(left):
    assert values(left.get(OF, ())) == {}
    left.put(OF, 1, (), rest(w=5))
    left.settle("r", "full", 1, counts=True)
    assert values(left.get(OF, ())) == {"w": 5}
    for other in (FeedbackKey("r", "peft"), FeedbackKey("r", "full", "../small"), FeedbackKey("s", "full")):
        assert values(left.get(other, ())) == {}


def test_an_update_that_does_not_count_takes_nothing_along(left):
    left.put(OF, 1, (), rest(w=5))
    left.settle("r", "full", 1, counts=True)
    left.put(OF, 2, (), rest(w=2, b=1))
    assert values(left.get(OF, {2})) == {"w": 2, "b": 1}
    for _ in range(2):  # the word may come twice
        left.settle("r", "full", 2, counts=False)
        assert values(left.get(OF, ())) == {"w": 5}


def test_an_update_that_was_never_sent_takes_nothing_along(left):
    left.put(OF, 1, (), rest(w=5))
    left.settle("r", "full", 1, counts=True)
    left.put(OF, 2, (), rest(w=2))
    assert values(left.get(OF, ())) == {"w": 5}
    left.put(OF, 3, (), rest(w=4))
    left.settle("r", "full", 3, counts=False)
    assert values(left.get(OF, ())) == {"w": 5}


def test_the_first_of_a_run_ends_those_of_another(left, tmp_path):
    left.put(OF, 1, (), rest(w=5))
    left.put(FeedbackKey("s", "full"), 1, (), rest(w=7))
    assert values(left.get(OF, {1})) == {}
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1


def test_what_is_damaged_is_nothing_and_said(left, tmp_path, caplog):
    left.put(OF, 1, (), rest(w=5))
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(path.read_bytes()[:-5])
    assert values(left.get(OF, {1})) == {}
    assert "not readable" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "left").write_text("no folder")
    with pytest.raises(BlobError, match="left"):
        ErrorFeedback(tmp_path / "left").put(OF, 1, (), rest(w=5))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-9, 9), st.booleans(), st.integers(0, 3), st.booleans()), max_size=8))
def test_what_arrives_and_what_is_left_make_up_what_counts(tmp_path_factory, rounds):
    """Updates of whole numbers of which multiples of 4 are sent; receipts come in any order, or late."""
    left = ErrorFeedback(tmp_path_factory.mktemp("left"))
    exact, arrived, waiting = 0.0, 0.0, {}

    def receipt(number, counts):
        nonlocal exact, arrived
        left.settle("r", "full", number, counts)
        update, sent = waiting.pop(number)
        if counts:
            exact, arrived = exact + update, arrived + sent

    for number, (update, counts, behind, tensor) in enumerate(rounds, 1):
        name = "w" if tensor else "b"
        before = values(left.get(OF, waiting))
        whole = update + before.get(name, 0.0)
        sent = 4.0 * round(whole / 4)
        left.put(OF, number, list(waiting), rest(**{**before, name: whole - sent}))
        waiting[number] = update, sent
        while len(waiting) > behind:
            receipt(sorted(waiting)[number % len(waiting)], counts)
    for number in list(waiting):
        receipt(number, number % 2 == 0)
    assert arrived + sum(values(left.get(OF, ())).values()) == exact
