"""Blocks of models go to all devices in turn, as fast as the link takes them, and not without end to one."""

import os
from types import SimpleNamespace

import pytest

from device_runtime.aggregator.delivery.outbound import (
    FREE_EXTRA_BYTES,
    FREE_TIMES,
    LINK_BACKLOG_BYTES,
    MOST_BLOCKS_OF_DEVICE,
    REFILL_S,
    BlockSender,
)
from device_runtime.broker.wire.blobs import BLOCK, Blobs
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.transfer import MAX_WINDOW


@pytest.fixture
def place(tmp_path):
    """Blocks, what they sent as (device, number), a clock and a link that a test fills and empties."""
    at = SimpleNamespace(sent=[], now=0.0, waiting=0, full=False)

    def send(device, _blob, index, data):
        if at.full:
            return False
        at.sent.append((device, index))
        at.waiting += len(data)
        return True

    at.blobs = Blobs(tmp_path)
    at.blocks = BlockSender(send, lambda: at.now, lambda: at.waiting)
    return at


def test_what_is_asked_for_is_sent_at_once_each_block_once_and_at_most_so_many(place):
    blob = place.blobs.put(os.urandom(40 * BLOCK))
    place.blocks.ask("pi", Get(blob=blob, blocks=(3, 3, 1, 99, -1)), place.blobs)
    assert place.sent == [("pi", 3), ("pi", 1)]
    place.blocks.ask("pi", Get(blob=blob, blocks=tuple(range(40))), place.blobs)
    assert len(place.sent) == 2 + MAX_WINDOW


def test_of_a_blob_that_is_not_here_one_word_is_sent(place):
    place.blocks.ask("pi", Get(blob=Blob(b"\1" * 32, 9 * BLOCK), blocks=(0, 1, 2)), place.blobs)
    assert place.sent == [("pi", -1)]
    place.blocks.go_on()
    assert place.sent == [("pi", -1)]


def test_while_the_link_is_full_blocks_wait_as_numbers_and_then_go_to_each_device_in_turn(place):
    blob = place.blobs.put(os.urandom(4 * BLOCK))
    place.waiting = LINK_BACKLOG_BYTES
    for device in ("a", "b"):
        for _ in range(3):  # asked again as nothing came
            place.blocks.ask(device, Get(blob=blob, blocks=(0, 1, 2)), place.blobs)
    assert place.sent == []
    place.waiting = 0
    place.blocks.go_on()
    assert place.sent == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_the_link_never_holds_much_more_than_it_should_however_much_is_asked_for(place):
    blob = place.blobs.put(os.urandom(32 * BLOCK))
    for number in range(100):
        place.blocks.ask(f"pi-{number}", Get(blob=blob, blocks=tuple(range(32))), place.blobs)
    assert place.waiting <= LINK_BACKLOG_BYTES + BLOCK
    for _ in range(12):
        place.waiting = 0
        place.blocks.go_on()
    assert len(place.sent) == len(set(place.sent)) == 100 * 32


def test_a_device_that_asks_for_the_same_blob_without_end_waits_and_others_do_not(place):
    size = 32 * BLOCK
    blob = place.blobs.put(os.urandom(size))
    everything = Get(blob=blob, blocks=tuple(range(32)))
    for _ in range(1000):
        place.waiting = 0
        place.blocks.ask("evil", everything, place.blobs)
    most = FREE_TIMES * size + FREE_EXTRA_BYTES
    assert len(place.sent) * BLOCK <= most
    del place.sent[:]
    place.waiting = 0
    place.blocks.ask("pi", everything, place.blobs)
    assert place.sent == [("pi", index) for index in range(32)]
    del place.sent[:]
    place.now = REFILL_S / 10
    for _ in range(1000):
        place.waiting = 0
        place.blocks.go_on()
        place.blocks.ask("evil", everything, place.blobs)
    assert 0 < len(place.sent) * BLOCK <= most / 10 + BLOCK
    assert {device for device, _ in place.sent} == {"evil"}


def test_a_size_that_is_a_lie_gives_no_more(place):
    blob = place.blobs.put(os.urandom(4 * BLOCK))
    for _ in range(100):
        place.waiting = 0
        place.blocks.ask("evil", Get(blob=Blob(blob.sha, 2**40 - 1), blocks=(0,)), place.blobs)
        place.blocks.ask("evil", Get(blob=blob, blocks=(0, 1, 2, 3)), place.blobs)
        place.now += 0.001
    sent = [index for _, index in place.sent if index >= 0]
    assert len(sent) * BLOCK <= FREE_TIMES * blob.size + FREE_EXTRA_BYTES + BLOCK


def test_of_one_device_only_so_many_blocks_wait(place):
    place.full = True
    for number in range(100):
        blob = place.blobs.put(bytes([number]) * 32 * BLOCK)
        place.blocks.ask("evil", Get(blob=blob, blocks=tuple(range(32))), place.blobs)
    place.full = False
    for _ in range(100):
        place.now += 1.0
        place.waiting = 0
        place.blocks.go_on()
    assert len(place.sent) == MOST_BLOCKS_OF_DEVICE


def test_a_device_that_is_forgotten_gets_nothing_more(place):
    blob = place.blobs.put(os.urandom(4 * BLOCK))
    place.waiting = LINK_BACKLOG_BYTES
    place.blocks.ask("a", Get(blob=blob, blocks=(0, 1)), place.blobs)
    place.blocks.forget("a")
    place.waiting = 0
    place.blocks.ask("b", Get(blob=blob, blocks=(0,)), place.blobs)
    assert place.sent == [("b", 0)]
