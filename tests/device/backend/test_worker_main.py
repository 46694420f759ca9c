"""The process that works for a device, and the answers that it waits for."""

import queue
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from device_runtime.device.backend.rpc import (
    Ended,
    EvaluateModelRequest,
    ProgressReply,
    ProgressReport,
    Request,
    Rpc,
    WorkerMessage,
    WorkTerms,
)
from device_runtime.device.backend.worker_main import DeviceWorker
from device_runtime.device.errors import OutOfMemory
from device_runtime.device.training.settings import Settings


@pytest.fixture
def worker(tmp_path):
    """With its device's end (`device`) and what has come from there (`inbox`)."""
    ours, theirs = socket.socketpair()
    device, rpc, inbox = Rpc(ours, WorkerMessage), Rpc(theirs, Request), queue.SimpleQueue()
    terms = WorkTerms.of(Settings("a", Path("a.npz"), tmp_path), "modelled", 0)
    new_worker = DeviceWorker(terms, None, rpc, inbox)
    new_worker.device, new_worker.inbox = device, inbox
    yield new_worker
    device.close()
    rpc.close()


def test_an_answer_that_work_did_not_wait_for_is_not_taken_for_a_new_request(worker):
    """Memory runs out while it stands still, and there is nothing cheaper to try."""

    def out_of_memory():
        worker.inbox.put(ProgressReply(paused_s=3.0))
        raise OutOfMemory("no memory is left")

    def judge(_current, pause_point):
        with suppress(OutOfMemory):
            pause_point()

    backend = worker._backend
    backend.check_paused_work, backend.evaluate_personal_model = out_of_memory, judge
    ended = worker.answer(EvaluateModelRequest(None))
    assert (type(ended), worker.inbox.empty(), worker._gate.paused_s()) == (Ended, True, 3.0)
    worker._asked_s = 0.0
    worker.inbox.put(ProgressReply(paused_s=4.0))
    worker.pause_point()
    assert [worker.device.receive(0.0) for _ in range(3)] == [ProgressReport(0.0), ProgressReport(0.0), None]
