import errno
import os
from pathlib import Path

import msgspec
import pytest

from device_runtime.broker.wire.messages import Contribution, Metrics, Receipt
from device_runtime.device.delivery.sending import Outbox


def contribution(seq, boot=7):
    return Contribution(
        task="t",
        run="r",
        round=seq,
        boot=boot,
        seq=seq,
        kind="full",
        num_examples=3,
        metrics=Metrics(0.5, 10, 20, 30),
        body=b"\x00" * seq,
    )


def settle(outbox, receipt):
    """Take a receipt; returns the contribution that it is for, if any."""
    message = outbox.named(receipt)
    if message is not None:
        outbox.end(message)
    return message


def test_what_was_not_receipted_waits_again_after_a_restart(tmp_path):
    first = Outbox(tmp_path)
    first.add(contribution(1))
    first.add(contribution(2))
    again = Outbox(tmp_path)
    assert list(again) == [contribution(1), contribution(2)]
    assert again.next_seq == 3


@pytest.mark.parametrize("status", ["accepted", "duplicate", "late", "refused"])
def test_any_receipt_ends_the_wait_for_good(tmp_path, status):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    assert settle(outbox, Receipt(boot=7, seq=1, round=1, status=status)) == contribution(1)
    assert len(outbox) == 0
    assert len(Outbox(tmp_path)) == 0


def test_a_receipt_for_another_life_or_sending_changes_nothing(tmp_path):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    assert settle(outbox, Receipt(boot=8, seq=1, round=1, status="accepted")) is None
    assert settle(outbox, Receipt(boot=7, seq=2, round=1, status="accepted")) is None
    assert len(outbox) == 1


def test_a_file_cut_short_is_dropped_with_a_warning(tmp_path, caplog):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    outbox.add(contribution(2))
    path = tmp_path / "00000001.msg"
    path.write_bytes(path.read_bytes()[:5])
    assert list(Outbox(tmp_path)) == [contribution(2)]
    assert "00000001.msg" in caplog.text


def test_a_half_written_file_is_not_taken_for_a_contribution(tmp_path):
    (tmp_path / ".00000009.msg.new").write_bytes(b"half")
    assert len(Outbox(tmp_path)) == 0


def test_a_second_receipt_of_an_earlier_contribution_settles_no_later_one(tmp_path):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    receipt = Receipt(boot=7, seq=1, round=1, status="accepted")
    settle(outbox, receipt)
    assert outbox.next_seq == 2
    again = Outbox(tmp_path)  # which counts anew
    again.add(msgspec.structs.replace(contribution(1), round=2))
    assert settle(again, receipt) is None
    assert len(again) == 1


def test_the_round_that_was_receipted_last_is_known_to_the_next_life(tmp_path):
    outbox = Outbox(tmp_path)
    for seq in (1, 2):
        outbox.add(contribution(seq))
    for seq in (2, 1):  # round 1 was late
        settle(outbox, Receipt(boot=7, seq=seq, round=seq, status="accepted"))
    again = Outbox(tmp_path)
    assert again.settled == contribution(2)
    assert len(again) == 0


def test_what_nobody_waits_for_any_more_is_dropped_for_good(tmp_path):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    outbox.add(contribution(2))
    outbox.drop(1)
    assert list(outbox) == [contribution(2)]
    assert list(Outbox(tmp_path)) == [contribution(2)]


def test_what_a_full_disk_does_not_take_is_sent_all_the_same_and_written_later(tmp_path, monkeypatch, caplog):
    outbox = Outbox(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        outbox.add(contribution(1))
        outbox.add(contribution(2))
        outbox.save()
        assert [message.seq for message in outbox] == [1, 2]
        assert list(tmp_path.iterdir()) == []
        assert settle(outbox, Receipt(boot=7, seq=2, round=2, status="accepted")) == contribution(2)
    outbox.save()
    assert [path.name for path in tmp_path.iterdir()] == ["00000001.msg"]
    assert list(Outbox(tmp_path)) == [contribution(1)]
    assert f"{tmp_path / '00000001.msg'}: no space left: free some space" in caplog.text


def test_a_receipt_on_a_disk_that_became_read_only_ends_the_wait_of_this_process(
    tmp_path, monkeypatch, caplog
):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    outbox.add(contribution(2))

    def read_only(self, *_):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr("pathlib.Path.replace", read_only)
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: read_only(self))
    settle(outbox, Receipt(boot=7, seq=1, round=1, status="accepted"))
    outbox.drop(2)
    assert len(outbox) == 0
    assert caplog.text.count("cannot be removed: read-only file system") == 2


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_costs_one_contribution(tmp_path, monkeypatch, caplog, number):
    outbox = Outbox(tmp_path)
    outbox.add(contribution(1))
    outbox.add(contribution(2))
    read = Path.read_bytes

    def failing(self):
        if self.name == "00000001.msg":
            raise OSError(number, os.strerror(number), str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", failing)
    assert list(Outbox(tmp_path)) == [contribution(2)]
    assert "00000001.msg cannot be read, and is not sent" in caplog.text
