"""Pulling, on a clock made of numbers and a wire made of lists."""

import itertools
import os
import random
from pathlib import Path

import pytest

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.blobs import BLOCK, Blobs, blob_of
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.transfer import MAX_WAIT_S, MAX_WINDOW, UNKNOWN, Pull, answer_get


@pytest.fixture
def here(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "here")


@pytest.fixture
def remote(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "there")


def new_pull(here: Blobs, blob: Blob, window: int = 8) -> Pull:
    return Pull(blob, here.partial(blob), window=window)


def run(pull: Pull, remote: Blobs, faults: random.Random | None = None, until_s: float = 1e9) -> float:
    """Ticks of 0.1 s; with faults, a block is lost, doubled, cut, delayed or delivered. Returns the time."""
    now, on_the_way = 0.0, list[tuple[int, bytes]]()
    while not pull.done and not pull.refused and now < until_s:
        on_the_way += answer_get(remote, Get(blob=pull.blob, blocks=pull.next_blocks(now)))
        if faults:
            faults.shuffle(on_the_way)
        held_back = []
        for index, data in on_the_way:
            fault = faults.choice(["lose", "double", "cut", "delay", "none", "none"]) if faults else "none"
            if fault == "delay":
                held_back.append((index, data))
            copies = {"lose": 0, "delay": 0, "double": 2}.get(fault, 1)
            for _ in range(copies):
                pull.received(index, data[:-1] if fault == "cut" else data, now)
        on_the_way = held_back
        now += 0.1
    return now


def test_a_blob_is_pulled(here: Blobs, remote: Blobs) -> None:
    data = os.urandom(20 * BLOCK + 7)
    pull = new_pull(here, remote.put(data))
    run(pull, remote)
    assert pull.finish().read_bytes() == data


@pytest.mark.parametrize("seed", range(8))
def test_lost_doubled_cut_and_reordered_blocks_only_cost_time(here: Blobs, remote: Blobs, seed: int) -> None:
    data = os.urandom(12 * BLOCK + 7)
    pull = new_pull(here, remote.put(data))
    run(pull, remote, random.Random(seed))
    assert pull.finish().read_bytes() == data


def test_a_window_is_asked_for_in_order_and_nothing_twice(here: Blobs, remote: Blobs) -> None:
    pull = new_pull(here, remote.put(os.urandom(20 * BLOCK)), window=4)
    assert pull.next_blocks(0.0) == (0, 1, 2, 3)
    assert pull.next_blocks(0.1) == ()
    assert pull.next_blocks(1.9) == ()


def test_the_next_blocks_are_asked_for_when_half_the_window_is_free(here: Blobs, remote: Blobs) -> None:
    blob = remote.put(os.urandom(20 * BLOCK))
    pull = new_pull(here, blob, window=4)
    pull.next_blocks(0.0)
    pull.received(0, remote.read_block(blob, 0), 0.1)
    assert pull.next_blocks(0.1) == ()
    pull.received(1, remote.read_block(blob, 1), 0.2)
    assert pull.next_blocks(0.2) == (4, 5)


def test_silence_doubles_the_wait_and_halves_the_window(here: Blobs, remote: Blobs) -> None:
    pull = new_pull(here, remote.put(os.urandom(20 * BLOCK)), window=4)
    requests = {now: blocks for now in range(40) if (blocks := pull.next_blocks(float(now)))}
    assert requests == {0: (0, 1, 2, 3), 2: (0, 1), 6: (0,), 14: (0,), 30: (0,)}
    assert pull.unanswered == 4


def test_the_wait_has_an_upper_bound(here: Blobs, remote: Blobs) -> None:
    pull = new_pull(here, remote.put(os.urandom(BLOCK)))
    times = [now for now in range(1000) if pull.next_blocks(float(now))]
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) == MAX_WAIT_S


def test_a_slow_link_is_not_filled_with_copies(here: Blobs, remote: Blobs) -> None:
    """One block each 5 s, longer than the first wait of 2 s: at most one window is ever asked for twice."""
    data = os.urandom(30 * BLOCK)
    blob = remote.put(data)
    pull, queue, sent = new_pull(here, blob), list[int](), 0
    for now in range(600):
        queue += pull.next_blocks(float(now))
        if now % 5 == 4 and queue:
            index, sent = queue.pop(0), sent + 1
            pull.received(index, remote.read_block(blob, index), float(now))
    assert pull.done
    assert sent <= 30 + 2 * 8


def test_a_block_that_answers_the_first_of_several_requests_took_as_long_as_from_that_one(
    here: Blobs, remote: Blobs
) -> None:
    """One block each 33 s, asked for again after 2, 4, 8 and 16 s; then it is known how slow the link is."""
    blob = remote.put(os.urandom(3 * BLOCK))
    pull = new_pull(here, blob)
    moments = [now for now in range(33) if pull.next_blocks(float(now))]
    assert moments == [0, 2, 6, 14, 30]
    pull.received(0, remote.read_block(blob, 0), 33.0)
    pull.next_blocks(33.0)
    assert [now for now in range(34, 93) if pull.next_blocks(float(now))] == []  # for MAX_WAIT_S at most
    pull.received(1, remote.read_block(blob, 1), 66.0)
    assert [now for now in range(66, 99) if pull.next_blocks(float(now))] == []


def test_a_lost_block_is_asked_for_again(here: Blobs, remote: Blobs) -> None:
    blob = remote.put(os.urandom(3 * BLOCK))
    pull = new_pull(here, blob)
    for index, data in answer_get(remote, Get(blob=blob, blocks=pull.next_blocks(0.0))):
        if index != 1:
            pull.received(index, data, 0.1)
    assert pull.next_blocks(1.0) == ()
    assert pull.next_blocks(2.1) == (1,)


def test_a_damaged_block_of_right_length_is_found_by_the_hash_and_all_is_fetched_anew(
    here: Blobs, remote: Blobs
) -> None:
    data = os.urandom(3 * BLOCK)
    pull = new_pull(here, remote.put(data))
    pull.received(1, b"\0" * BLOCK, 0.0)
    run(pull, remote)
    with pytest.raises(BlobError, match="another hash"):
        pull.finish()
    run(pull, remote)
    assert pull.finish().read_bytes() == data


def test_an_unknown_blob_is_refused_and_not_asked_for_again(here: Blobs, remote: Blobs) -> None:
    blob = blob_of(b"nobody has this")
    assert list(answer_get(remote, Get(blob=blob, blocks=(0,)))) == [(UNKNOWN, b"")]
    pull = new_pull(here, blob)
    run(pull, remote)
    assert pull.refused
    assert pull.next_blocks(100.0) == ()


def test_a_restarted_receiver_asks_only_for_the_rest(tmp_path: Path, remote: Blobs) -> None:
    data = os.urandom(10 * BLOCK)
    blob = remote.put(data)
    pull = new_pull(Blobs(tmp_path / "here"), blob, window=4)
    for index, block in answer_get(remote, Get(blob=blob, blocks=pull.next_blocks(0.0))):
        pull.received(index, block, 0.0)
    again = new_pull(Blobs(tmp_path / "here"), blob)
    assert again.next_blocks(0.0) == (4, 5, 6, 7, 8, 9)
    run(again, remote)
    assert again.finish().read_bytes() == data


def test_after_a_lost_connection_it_asks_at_once(here: Blobs, remote: Blobs) -> None:
    pull = new_pull(here, remote.put(os.urandom(2 * BLOCK)))
    assert pull.next_blocks(0.0) == (0, 1)
    pull.restart()
    assert pull.next_blocks(0.1) == (0, 1)


def test_an_empty_blob_is_done_before_it_began(here: Blobs, remote: Blobs) -> None:
    pull = new_pull(here, remote.put(b""))
    assert pull.done
    assert pull.finish().read_bytes() == b""


def test_an_answer_is_bounded_and_holds_each_existing_block_once(remote: Blobs) -> None:
    blob = remote.put(os.urandom(MAX_WINDOW * BLOCK + BLOCK))
    indices = (5, 5, -1, 10**6, *range(MAX_WINDOW + 1))
    answered = [index for index, _ in answer_get(remote, Get(blob=blob, blocks=indices))]
    assert answered == [5, 0, 1, 2, 3, 4, *range(6, MAX_WINDOW)]
    assert [index for index, _ in answer_get(remote, Get(blob=blob, blocks=indices), limit=2)] == [5, 0]


def test_a_size_that_lies_is_refused_like_an_unknown_blob(remote: Blobs) -> None:
    blob = remote.put(b"abc")
    assert list(answer_get(remote, Get(blob=Blob(blob.sha, 10), blocks=(0,)))) == [(UNKNOWN, b"")]
