"""The process that works for a device, and the answers that it waits for."""

import queue
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from device_runtime.client.backend.rpc import After, Beat, Ended, GoOn, Request, Rpc, WorkerMessage, WorkTerms
from device_runtime.client.backend.worker_main import DeviceWorker
from device_runtime.client.errors import OutOfMemory
from device_runtime.client.settings import Settings


@pytest.fixture
def worker(tmp_path):
    """With its device's end (`device`) and what has come from there (`inbox`)."""
    ours, theirs = socket.socketpair()
    device, crossing, inbox = Rpc(ours, WorkerMessage), Rpc(theirs, Request), queue.SimpleQueue()
    terms = WorkTerms.of(Settings("a", Path("a.npz"), tmp_path), "modelled", 0)
    made = DeviceWorker(terms, None, crossing, inbox)
    made.device, made.inbox = device, inbox
    yield made
    device.close()
    crossing.close()


def test_an_answer_that_work_did_not_wait_for_is_not_taken_for_a_new_request(worker):
    """Memory runs out while it stands still, and there is nothing cheaper to try."""

    def heed():
        worker.inbox.put(GoOn(lost_s=3.0))
        raise OutOfMemory("no memory is left")

    def after(_current, between):
        with suppress(OutOfMemory):
            between()

    worker._here.heed, worker._here.after = heed, after
    ended = worker.answer(After(None))
    assert (type(ended), worker.inbox.empty(), worker._hours.lost()) == (Ended, True, 3.0)
    worker._asked_s = 0.0
    worker.inbox.put(GoOn(lost_s=4.0))
    worker.between()
    assert [worker.device.hear(0.0) for _ in range(3)] == [Beat(0.0), Beat(0.0), None]
