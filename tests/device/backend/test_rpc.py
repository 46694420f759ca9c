"""Messages between a device and the process that works for it."""

import socket
from pathlib import Path

import pytest

from device_runtime.broker.wire.messages import Hello
from device_runtime.device.backend.rpc import (
    LENGTH,
    Ended,
    KnownTask,
    ProgressReply,
    ProgressReport,
    Request,
    Rpc,
    WorkerGone,
    WorkerMessage,
    WorkTerms,
)
from device_runtime.device.training.settings import PersonalModelSettings, Settings
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import SampleSource
from device_runtime.profiles.device import Emulation
from device_runtime.strategies.terms.accountant import PrivacyBudget


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    device, worker = Rpc(ours, WorkerMessage), Rpc(theirs, Request)
    yield device, worker
    device.close()
    worker.close()


def test_messages_come_whole_and_in_order_however_large(ends):
    device, worker = ends
    many = [ProgressReport(0.25), Ended(error=("DataError", "x" * 50_000)), ProgressReport(float("inf"))]
    for message in many:
        worker.send(message)
    assert [device.receive() for _ in many] == many
    assert device.receive(0.0) is None


def test_a_message_that_comes_in_pieces_is_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        device = Rpc(ours, WorkerMessage)
        data = device._encoder.encode(ProgressReport(0.5))
        whole = LENGTH.pack(len(data)) + data
        for at in range(len(whole)):
            assert device.receive(0.0) is None
            theirs.sendall(whole[at : at + 1])
        assert device.receive() == ProgressReport(0.5)


def test_that_the_other_end_is_closed_is_heard_of(ends):
    device, worker = ends
    worker.send(ProgressReport(1.0))
    worker.close()
    assert device.receive() == ProgressReport(1.0)
    with pytest.raises(WorkerGone):
        device.receive()
    with pytest.raises(WorkerGone):
        device.send(ProgressReply(0.0))


def test_settings_are_the_same_beyond(ends):
    device, worker = ends
    place = SampleSource(Path("a.db"), "SELECT x, y FROM t", Path("labels.toml"), "y")
    personal, engine = PersonalModelSettings(True, 0.1, True), EngineSettings("torch", "int8", 2, "cuda:1")
    emulation = Emulation.of("pi-4", 2.0)
    settings = Settings(
        "a",
        place,
        Path("state"),
        emulation,
        10**9,
        engine,
        PrivacyBudget(8.0, 1e-3),
        personal=personal,
        choose="frugal",
    )
    device.send(WorkTerms.of(settings, "rapl", held_bytes=3 * 10**7))
    terms = worker.receive()
    assert terms.meter == "rapl"
    copy = terms.settings(None)
    assert (copy.name, copy.data, copy.folder, copy.emulation) == (
        "a",
        place.absolute(),
        Path("state").absolute(),
        emulation,
    )
    assert (copy.engine, copy.owner, copy.personal) == (engine, settings.owner, personal)
    assert copy.choose == "frugal"
    assert copy.memory_bytes == 10**9 - 3 * 10**7


def test_where_no_limit_is_set_there_is_none_beyond_and_never_one_of_nothing():
    settings = Settings("a", Path("a.npz"), Path("state"))
    assert WorkTerms.of(settings, "auto", 10**6).settings(None).memory_bytes is None
    small = Settings("a", Path("a.npz"), Path("state"), memory_bytes=10)
    assert WorkTerms.of(small, "auto", 10**6).settings(None).memory_bytes == 1


def test_what_is_known_of_a_task_crosses(ends):
    device, worker = ends
    hello = Hello(boot=0, num_examples=3, profile="pi-4", memory_bytes=10, engine="onnxruntime")
    worker.send(Ended(KnownTask((), hello), finished=False, cpu_s=0.5))
    assert device.receive() == Ended(KnownTask((), hello), finished=False, cpu_s=0.5)
