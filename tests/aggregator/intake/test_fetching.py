"""Contributions pulled block by block."""

import hashlib

import pytest

from device_runtime.aggregator.intake import check
from device_runtime.aggregator.intake.fetching import (
    BLOCKS_ASKED,
    MAX_PULLS,
    MOST_OF_ONE,
    ContributionFetcher,
)
from device_runtime.aggregator.machine.events import ContributionId
from device_runtime.broker.wire import messages as wire
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.partial_blob import BLOCK
from device_runtime.broker.wire.transfer import WINDOW, answer_get

CONTENT = bytes(range(256)) * (20 * BLOCK // 256)
BLOB = Blob(hashlib.sha256(CONTENT).digest(), len(CONTENT))
UPDATE = ContributionId("phone", 1, "full", 1, 1)


@pytest.fixture
def blocks():
    return []


@pytest.fixture
def intake(tmp_path, blocks):
    fetcher = ContributionFetcher(
        Blobs(tmp_path), lambda device, get: blocks.extend((device, index) for index in get.blocks)
    )
    fetcher.want(UPDATE, "its message", BLOB)
    return fetcher


def test_a_block_that_comes_is_the_sign_to_ask_for_more_whatever_the_clock_says(intake, blocks):
    assert list(intake.tick(0.0)) == []
    assert blocks == [("phone", index) for index in range(WINDOW)]
    for _, index in blocks:  # grows while it is walked
        intake.received("phone", BLOB.sha, (index, CONTENT[index * BLOCK : (index + 1) * BLOCK]), 0.0)
    assert [index for _, index in blocks] == list(range(20))
    arrived = list(intake.tick(0.0))
    assert [(arrival.update, arrival.message, arrival.refusal) for arrival in arrived] == [
        (UPDATE, "its message", "")
    ]


def test_blocks_of_another_device_or_blob_bring_nothing(intake, blocks):
    list(intake.tick(0.0))
    intake.received("tablet", BLOB.sha, (0, CONTENT[:BLOCK]), 0.0)
    intake.received("phone", bytes(32), (0, CONTENT[:BLOCK]), 0.0)
    assert len(blocks) == WINDOW
    assert list(intake.tick(0.0)) == []


def test_only_so_many_wait_and_those_that_do_are_fetched(intake, blocks, monkeypatch, caplog):
    monkeypatch.setattr("device_runtime.aggregator.intake.fetching.MOST_WAITING", 3)
    others = [ContributionId(f"stranger-{number}", 1, "full", 1, 1) for number in range(5)]
    for update in others:
        intake.want(update, "its message", BLOB)
    intake.want(UPDATE, "sent again", BLOB)
    list(intake.tick(0.0))
    assert {device for device, _ in blocks} == {"phone", "stranger-0", "stranger-1"}
    assert [record.getMessage() for record in caplog.records] == [
        "update from stranger-2 dropped: 3 wait to be fetched already"
    ]
    for index in range(20):
        intake.received("phone", BLOB.sha, (index, CONTENT[index * BLOCK : (index + 1) * BLOCK]), 0.0)
    arrived = {arrival.update.device: arrival.message for arrival in intake.tick(0.0)}
    assert arrived == {"phone": "sent again", "stranger-0": "its message", "stranger-1": "its message"}
    intake.want(others[4], "its message", BLOB)
    assert [arrival.update for arrival in intake.tick(0.0)] == [others[4]]


def test_many_are_fetched_at_once_and_share_the_blocks_that_may_be_on_the_way(tmp_path, blocks):
    fetcher = ContributionFetcher(
        Blobs(tmp_path), lambda device, get: blocks.extend((device, index) for index in get.blocks)
    )
    for number in range(MAX_PULLS + 5):
        fetcher.want(ContributionId(f"pi-{number}", 1, "full", 1, 1), "its message", BLOB)
    list(fetcher.tick(0.0))
    assert blocks == [(f"pi-{number}", 0) for number in range(MAX_PULLS)]
    for number in range(MAX_PULLS + 5):
        fetcher.received(f"pi-{number}", BLOB.sha, (-1, b""), 0.0)
    list(fetcher.tick(0.0))
    del blocks[:]
    for number in range(4):
        fetcher.want(ContributionId(f"late-{number}", 1, "full", 1, 1), "its message", BLOB)
    for _ in range(3):
        list(fetcher.tick(0.0))
    last = [device for device, _ in blocks if device.startswith("late")]
    assert {last.count(device) for device in last} == {min(WINDOW, BLOCKS_ASKED // 9)}


def lying(folder):
    """Bytes of what has come in part, with the room that was taken for it."""
    return sum(path.stat().st_size for path in (folder / "partial").iterdir())


def other(number, size=3 * BLOCK):
    return Blob(number.to_bytes(32, "big"), size)


def test_announcing_one_contribution_again_and_again_leaves_one_content_on_the_disk(intake, tmp_path):
    for number in range(1, 50):
        list(intake.tick(float(number)))
        intake.want(UPDATE, "its message", other(number))
    list(intake.tick(50.0))
    assert lying(tmp_path) == 3 * BLOCK + 3


def test_contents_that_a_device_gives_up_again_and_again_are_bounded(intake, tmp_path):
    for number in range(1, 40):
        update = ContributionId("phone", number, "full", 1, 1)
        intake.want(update, "its message", other(number))
        list(intake.tick(float(number)))
        for moment in range(8):
            list(intake.tick(number * 1000.0 + 100.0 * moment))  # it never answers
    assert lying(tmp_path) <= MOST_OF_ONE * (3 * BLOCK + 3)


def test_of_one_device_only_so_many_wait_and_the_others_are_taken_when_they_have_come(intake, blocks):
    updates = [ContributionId("phone", 1, f"kind-{number}", 1, 1) for number in range(MOST_OF_ONE)]
    for update in updates:
        intake.want(update, "its message", BLOB)
    list(intake.tick(0.0))
    for index in range(20):
        intake.received("phone", BLOB.sha, (index, CONTENT[index * BLOCK : (index + 1) * BLOCK]), 0.0)
    assert [arrival.update for arrival in intake.tick(0.0)] == [UPDATE, *updates[:-1]]
    intake.want(updates[-1], "its message", BLOB)
    assert [arrival.update for arrival in intake.tick(0.0)] == updates[-1:]


def test_a_content_that_two_announced_stays_when_one_of_them_takes_another(intake, tmp_path):
    tablet = ContributionId("tablet", 1, "full", 1, 1)
    intake.want(tablet, "its message", BLOB)
    list(intake.tick(0.0))
    intake.received("tablet", BLOB.sha, (0, CONTENT[:BLOCK]), 0.0)
    intake.want(UPDATE, "its message", other(1))
    list(intake.tick(0.0))
    for index in range(1, 20):
        intake.received("tablet", BLOB.sha, (index, CONTENT[index * BLOCK : (index + 1) * BLOCK]), 0.0)
    assert [arrival.update for arrival in intake.tick(0.0)] == [tablet]


def test_one_that_is_announced_again_after_silence_goes_on_with_what_had_come(intake, blocks):
    list(intake.tick(0.0))
    intake.received("phone", BLOB.sha, (0, CONTENT[:BLOCK]), 0.0)
    for moment in range(8):
        list(intake.tick(100.0 * (moment + 1)))
    del blocks[:]
    intake.want(UPDATE, "sent again", BLOB)
    list(intake.tick(1000.0))
    assert blocks[0] == ("phone", 1)


def arrive_at_once(b, messages):
    """The contributions of several devices, all of whose blocks come before the service looks."""
    count = 0
    for device, message in messages.items():
        b.say(device, "contribution", message)
    while gets := [(to, payload) for to, payload in b.link.sent[count:] if to.endswith("/get")]:
        count = len(b.link.sent)
        for to, payload in gets:
            get = wire.decode(payload, Get)
            for index, data in answer_get(b.blobs, get):
                topic = topics.up(topics.parse(to).device, topics.block(get.blob.sha, index))
                b.service.handle(Received(topic, data, False))
    b.service.tick()


def test_uploads_that_end_together_all_count_though_the_first_closes_the_round(bench, make_task, update_of):
    b = bench(make_task("full", rounds=3, buffer_size=1, min_contributions=1, head="trained"))
    b.join("a", "b")
    arrive_at_once(b, {name: b.contribution("full", update_of("full", i)) for i, name in enumerate("ab")})
    assert [b.receipts(name)[0].status for name in "ab"] == ["accepted", "accepted"]


def test_an_own_kind_that_fails_at_an_upload_does_not_end_the_run(
    bench, make_task, update_of, monkeypatch, caplog
):
    b = bench(make_task("full", rounds=1, head="trained"))
    b.join("a")
    message = b.contribution("full", update_of("full"))

    def fails(*_):
        raise KeyError("no such tensor")

    with monkeypatch.context() as patch:
        patch.setattr(check, "check_content", fails)
        assert b.contribute("a", message) == []
    assert "the update of a (full) cannot be checked" in caplog.text
    assert [receipt.status for receipt in b.contribute("a", message)] == ["accepted"]
