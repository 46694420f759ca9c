"""Contributions that come close to each other: one commit for all, and no receipt before it."""

from contextlib import contextmanager

import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine.run_events import Contributed, RoundClosed
from device_runtime.aggregator.storage.contributions import Contributions
from device_runtime.aggregator.storage.database import Database
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Received

DEVICES = ("pi-01", "pi-02", "pi-03")


@pytest.fixture
def crowd(bench, make_task):
    """Three devices in the first round of a bench."""

    def make(**settings):
        b = bench(make_task("class-means", **settings))
        b.join(*DEVICES)
        return b

    return make


def hear(b, update_of, *devices):
    """What they send is handled, and nothing is done about it yet."""
    for number, device in enumerate(devices):
        message = b.contribution("class-means", update_of("class-means", number))
        topic = topics.up(device, "contribution")
        b.service.handle(Received(topic, messages.encode(message)))


def statuses(b):
    return [[receipt.status for receipt in b.receipts(device)] for device in DEVICES]


def stored_devices(b):
    """As another process would find them after a power cut."""
    b.service.close()
    database = Database(b.folder)
    rows = database.rows("SELECT device FROM contributions ORDER BY device")
    database.close()
    return [row["device"] for row in rows]


def test_one_commit_for_those_that_came_together_and_receipts_only_after_it(crowd, update_of, monkeypatch):
    b, settled = crowd(min_contributions=3), []
    real = Database.commit

    @contextmanager
    def commit(self):
        with real(self) as db:
            yield db
        settled.append(statuses(b))

    monkeypatch.setattr(Database, "commit", commit)
    hear(b, update_of, "pi-01", "pi-02")
    assert statuses(b) == [[], [], []]
    assert not b.heard(Contributed)
    b.service.tick()
    assert settled == [[[], [], []]]  # on the disk, and nobody had been told
    assert statuses(b) == [["accepted"], ["accepted"], []]
    assert stored_devices(b) == ["pi-01", "pi-02"]


def test_what_was_not_committed_was_not_acknowledged_either(crowd, update_of):
    b = crowd(min_contributions=3)
    hear(b, update_of, "pi-01", "pi-02")
    assert statuses(b) == [[], [], []]
    assert stored_devices(b) == []


def test_the_round_that_closes_does_so_on_committed_contributions(crowd, update_of, monkeypatch):
    b, at_merge = crowd(), []
    commands = b.service._run.commands
    real = commands.merge
    monkeypatch.setattr(commands, "merge", lambda command: (at_merge.append(statuses(b)), real(command)))
    hear(b, update_of, *DEVICES)
    b.service.tick()
    assert at_merge == [[["accepted"], ["accepted"], ["accepted"]]]
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [3]


def test_a_phase_that_the_disk_refuses_is_done_again_when_unfinished_uploads_are_removed(
    crowd, update_of, monkeypatch
):
    b, attempts, removals = crowd(), [], []
    commands, real = b.service._run.commands, b.service._run.commands.merge

    def merge(command):
        attempts.append(command)
        if len(attempts) == 1:
            raise BlobError("no space left")
        real(command)

    monkeypatch.setattr(commands, "merge", merge)
    reception = b.service._run.contributions.reception
    monkeypatch.setattr(reception, "make_room", lambda: removals.append(10) or 10)
    hear(b, update_of, *DEVICES)
    b.service.tick()
    assert ([command.round for command in attempts], removals) == ([1, 1], [10])
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [3]


@pytest.mark.parametrize("together", [1, 2, 3])
def test_a_commit_that_the_disk_refuses_loses_nothing_and_counts_nothing(
    crowd, update_of, monkeypatch, together
):
    b = crowd()

    def full(self):
        raise RunFolderError("no space left")

    before = b.service.state
    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", full)
        hear(b, update_of, *DEVICES[:together])
        b.service.tick()
    assert b.service.state.contributions == 0
    assert (b.service.state.waiting, b.service.state.answered) == (before.waiting, before.answered)
    assert statuses(b) == [[], [], []]
    assert not b.heard(Contributed)
    hear(b, update_of, *DEVICES)
    b.service.tick()
    assert statuses(b) == [["accepted"]] * 3
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [3]


def test_what_cannot_be_kept_takes_its_group_along_and_nothing_of_it_is_written_later(
    crowd, update_of, monkeypatch
):
    b = crowd(min_contributions=3)
    hear(b, update_of, "pi-01")
    with monkeypatch.context() as patch:
        patch.setattr(type(b.service._run.contributions.statements), "why", lambda *_: 1 / 0)
        hear(b, update_of, "pi-02")
    hear(b, update_of, "pi-03")
    b.service.tick()
    assert statuses(b) == [[], [], ["accepted"]]
    assert b.service.state.contributions == 1
    assert b.service._run.contributions.reception._in_hand == {}
    assert stored_devices(b) == ["pi-03"]


def test_a_kill_as_a_round_closes_leaves_no_content_behind(crowd, update_of, monkeypatch):
    b = crowd()
    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "prune", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hear(b, update_of, *DEVICES)
            b.service.tick()
    b.service.close()
    database = Database(b.folder)
    assert database.rows("SELECT phase FROM rounds WHERE round = 1")[0][0] == "closed"
    assert database.rows("SELECT count(*), count(body) FROM contributions")[0][:] == (3, 0)
    database.close()


def test_a_second_copy_is_a_duplicate_only_of_what_is_on_the_disk(crowd, update_of, monkeypatch):
    b = crowd(min_contributions=3)

    def full(self):
        raise RunFolderError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", full)
        hear(b, update_of, "pi-01")
        hear(b, update_of, "pi-01")
        assert statuses(b)[0] == []
        b.service.tick()
        assert statuses(b)[0] == []
    hear(b, update_of, "pi-01")
    hear(b, update_of, "pi-01")
    b.service.tick()
    assert statuses(b)[0] == ["accepted", "duplicate"]


def test_a_receipt_that_cannot_be_sent_keeps_no_other_from_its_device(crowd, update_of, monkeypatch, caplog):
    b = crowd(min_contributions=3)
    publish = b.link.publish

    def failing(topic, payload, retain=False):
        if topic == topics.down(DEVICES[0], "receipt"):
            raise ValueError("no such topic")
        return publish(topic, payload, retain)

    monkeypatch.setattr(b.link, "publish", failing)
    hear(b, update_of, *DEVICES)
    b.wait(0.1)
    assert statuses(b) == [[], ["accepted"], ["accepted"]]
    assert "a report after a commit failed: ValueError: no such topic" in caplog.text
    assert b.service._run.contributions.reception._in_hand == {}
    monkeypatch.undo()
    hear(b, update_of, DEVICES[0])
    b.wait(0.1)
    assert statuses(b)[0] == ["duplicate"]
