"""What an aggregator has of an enrolment."""

import logging

import msgspec
import pytest

from device_runtime.aggregator.configuration.enrolled import AHEAD_S, IssueClock, offer_seal
from device_runtime.broker.security.signing import Verifier
from device_runtime.broker.servers.broker_folder import (
    SITE,
    SUCCESSION_SHOWN_S,
    BrokerFolder,
    BrokerSetup,
    SetupError,
    rotate_key,
)
from device_runtime.broker.wire.messages import Base, Blob, Offer, Signed, decode


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def test_offers_are_never_issued_earlier_than_before_also_after_a_restart_with_the_clock_back(tmp_path):
    path, clock = tmp_path / "issued", Clock(1000.9)
    first = IssueClock(path, clock)
    assert first() == 1000
    clock.now = 1030.0
    assert first() == 1030
    clock.now = 10.0
    assert first() == 1030
    again = IssueClock(path, clock)
    assert again() == 1000 + AHEAD_S >= 1030
    clock.now = 5000.0
    assert again() == 5000
    assert IssueClock(path, clock)() == 5000 + AHEAD_S


def test_an_aggregator_with_a_new_key_tells_with_each_offer_that_the_old_one_has_signed_it(tmp_path):
    folder = tmp_path / "enrolment"
    folder.mkdir()
    (folder / SITE).write_bytes(msgspec.json.encode(BrokerSetup(names=("localhost",))))
    opened, blob = BrokerFolder(folder), Blob(bytes(32), 1)
    fields = {"task": "t", "run": "r", "round": 1, "seed": 5, "deadline_s": 1.0, "remaining_s": 1.0}
    offer = Offer(**fields, bundle=blob, base=Base((blob,), bytes(32)), kinds=())
    before = opened.signer.public
    rotate_key(opened, 1000)
    sealed = offer_seal(folder, tmp_path, Clock(1000.0 + SUCCESSION_SHOWN_S - 1))("topic", offer)
    assert Verifier(before).open("topic", sealed)[0] == offer
    later = offer_seal(folder, tmp_path, Clock(1000.0 + SUCCESSION_SHOWN_S))("topic", offer)
    assert decode(later, Signed).successions == ()


def test_a_clock_that_is_far_behind_is_said(tmp_path, caplog):
    IssueClock(tmp_path / "issued", Clock(100_000.0))()
    IssueClock(tmp_path / "issued", Clock(0.0))
    assert f"this machine's clock is {100_000 + AHEAD_S} s behind the last offer" in caplog.text


def test_the_promise_is_written_once_a_minute_and_two_who_share_it_do_not_lower_it(tmp_path):
    path, clock = tmp_path / "issued", Clock(1000.0)
    issue, ahead = IssueClock(path, clock), IssueClock(path, Clock(9000.0))
    issue()
    ahead()
    for clock.now in range(1000, 1200):
        issue()
    assert int(path.read_text()) == 9000 + AHEAD_S


def test_a_file_of_issued_offers_that_is_none_is_refused(tmp_path):
    (tmp_path / "issued").write_text("x")
    with pytest.raises(SetupError, match="issued cannot be read"):
        IssueClock(tmp_path / "issued")


def test_a_disk_that_cannot_keep_it_does_not_stop_the_offers(tmp_path, caplog):
    clock = IssueClock(tmp_path / "none" / "issued", Clock(7.0))
    with caplog.at_level(logging.WARNING):
        assert clock() == 7
    assert "devices may refuse offers after a restart" in caplog.text
