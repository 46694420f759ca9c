"""A blob of 1 MB across real brokers: dropped blocks, a receiver that restarts, and what it costs."""

import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import Blob, Get, decode, encode
from device_runtime.broker.wire.transfer import Pull, answer_get

DATA = os.urandom(1_000_003)


class Sender:
    """A device that answers every Get; the blocks named in `drop` are lost once."""

    def __init__(self, peer: Any, blobs: Blobs, drop: set[int]) -> None:
        self._peer, self._blobs, self._drop = peer, blobs, drop
        self.sent: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                event = self._peer.inbox.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(event, Received):
                self._send(decode(event.payload, Get))

    def _send(self, get: Get) -> None:
        for index, data in answer_get(self._blobs, get):
            if index in self._drop:
                self._drop.remove(index)
                continue
            self.sent.append(index)
            self._peer.link.publish(topics.up("pi", topics.block(get.blob.sha, index)), data)


def pull_some(peer: Any, pull: Pull, blocks: int) -> None:
    """Pull until this many blocks came in, or all."""
    end, came = time.monotonic() + 300, 0
    while not pull.done and not pull.refused and came < blocks:
        assert time.monotonic() < end, "too slow"
        if indices := pull.next_blocks(time.monotonic()):
            peer.link.publish(topics.down("pi", "get"), encode(Get(blob=pull.blob, blocks=indices)))
        try:
            event = peer.inbox.get(timeout=0.02)
        except queue.Empty:
            continue
        if isinstance(event, Received):
            address = topics.parse(event.topic)
            came += pull.received(address.index, event.payload, time.monotonic())


def new_pull(folder: Path, blob: Blob) -> Pull:
    return Pull(blob, Blobs(folder).partial(blob), window=4, retry_after_s=0.3)


def test_a_megabyte_survives_a_dropped_block_and_a_restarted_receiver(house: Any, tmp_path: Path) -> None:
    url = house.broker().url
    store = Blobs(tmp_path / "device")
    blob = store.put(DATA)
    sender = Sender(house.listener(url, "pi", topics.down("pi", "#")), store, drop={2, 9})
    first = house.listener(url, "aggregator", topics.FROM_DEVICES)
    pull_some(first, new_pull(tmp_path / "aggregator", blob), blocks=6)
    first.link.close()
    second = house.listener(url, "aggregator", topics.FROM_DEVICES)
    pull = new_pull(tmp_path / "aggregator", blob)
    pull_some(second, pull, blocks=1000)
    sender.stop()
    assert pull.finish().read_bytes() == DATA
    assert sorted(set(sender.sent)) == list(range(16))
    assert len(sender.sent) <= 16 + 4  # what was on the way at the restart is sent again, and no more


def test_a_sender_that_restarts_in_the_middle_is_asked_for_the_rest(house: Any, tmp_path: Path) -> None:
    url = house.broker().url
    blob = Blobs(tmp_path / "device").put(DATA)
    receiver = house.listener(url, "aggregator", topics.FROM_DEVICES)
    pull = new_pull(tmp_path / "aggregator", blob)
    peer = house.listener(url, "pi", topics.down("pi", "#"))
    sender = Sender(peer, Blobs(tmp_path / "device"), drop=set())
    pull_some(receiver, pull, blocks=6)
    sender.stop()
    peer.link.close()
    peer = house.listener(url, "pi", topics.down("pi", "#"))
    sender = Sender(peer, Blobs(tmp_path / "device"), drop=set())
    pull_some(receiver, pull, blocks=1000)
    sender.stop()
    assert pull.finish().read_bytes() == DATA


def test_a_blob_that_nobody_has_is_refused_across_the_wire(house: Any, tmp_path: Path) -> None:
    url = house.broker().url
    sender = Sender(house.listener(url, "pi", topics.down("pi", "#")), Blobs(tmp_path / "device"), set())
    receiver = house.listener(url, "aggregator", topics.FROM_DEVICES)
    pull = new_pull(tmp_path / "aggregator", Blob(bytes(32), 100))
    pull_some(receiver, pull, blocks=1)
    sender.stop()
    assert pull.refused
    assert not pull.done
