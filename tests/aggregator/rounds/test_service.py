"""The service on a bench: messages in, messages out, files in between."""

import errno
import hashlib
import os
import shutil
from math import isnan
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError, exit_code
from device_runtime.aggregator.intake.fetching import MAX_PULLS
from device_runtime.aggregator.machine.ports import GRACE_S
from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRefused,
    DeviceSeen,
    Finished,
    PlanReported,
    RoundClosed,
    RoundExtended,
)
from device_runtime.aggregator.rounds.device_messages import FETCHED_S, MOST_REASONS, RETURN_S
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.rounds.service import LINGER_S, MOST_LINGER_S
from device_runtime.aggregator.tasks.closing import AllDevices
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.views.text import LIMIT
from device_runtime.broker.errors import BlobError
from device_runtime.broker.security.audit import entries
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.blobs import block_count
from device_runtime.broker.wire.link import Connected, Disconnected, Received, Will, packet_bytes
from device_runtime.broker.wire.messages import Blob, Get, Hello, Offer, Plan, State
from device_runtime.broker.wire.transfer import answer_get
from device_runtime.models.bundles import tensors
from device_runtime.service_process import Exit
from device_runtime.strategies.directions.replaying import replay

DATABASES = ("sqlite", "postgres")


def test_a_round_is_offered_kept_and_closed(bench, make_task, update_of):
    b = bench(make_task("few-shot", "class-means", rounds=1))
    b.join("pi-01", "pi-02")
    offer = b.offer
    assert (offer.round, offer.remaining_s, [kind.name for kind in offer.kinds]) == (
        1,
        10.0,
        ["few-shot", "class-means"],
    )
    assert b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))[0].status == "accepted"
    b.contribute("pi-02", b.contribution("class-means", update_of("class-means")))
    assert b.offer.done
    assert [c.record.participants for c in b.heard(RoundClosed)] == [2]
    assert len(b.heard(Finished)) == 1
    assert b.service.withdrawal() == Will(topics.offer(b.task.name), b"", retain=True)
    last = b.service.last_word()("pi-01")
    assert (last.topic, last.retain, messages.decode(last.payload, Offer)) == (
        "fl/v1/d/pi-01/dn/task",
        False,
        b.offer,
    )


def test_it_stays_for_devices_that_fetch_the_final_model_until_they_leave_but_not_for_ever(
    bench, make_task, update_of
):
    b = bench(make_task("few-shot", rounds=1))
    b.join("pi-01", "pi-02")
    for device in ("pi-01", "pi-02"):
        b.contribute(device, b.contribution("few-shot", update_of("few-shot")))
    get = Get(blob=b.offer.base.checkpoint[0], blocks=(0,))
    assert not b.service.finished
    b.now += LINGER_S - 0.1
    b.say("pi-01", "get", get)
    b.now += FETCHED_S - 0.1
    assert not b.service.finished
    b.now += 0.2
    assert b.service.finished
    for _ in range(20):
        b.say("pi-01", "get", get)
        b.now += FETCHED_S / 2
    assert b.now > MOST_LINGER_S
    assert b.service.finished


def test_it_does_not_stay_once_they_have_left(bench, make_task, update_of):
    b = bench(make_task("few-shot", rounds=1))
    b.join("pi-01", "pi-02")
    for device in ("pi-01", "pi-02"):
        b.contribute(device, b.contribution("few-shot", update_of("few-shot")))
    assert not b.service.finished
    b.say("pi-01", "get", Get(blob=b.offer.base.checkpoint[0], blocks=(0,)))
    for device in ("pi-01", "pi-02"):
        b.say(device, "state", State(boot=1, online=False, leaving=True))
    assert b.service.finished


def test_an_offer_in_answer_to_a_hello_says_what_remains_now(bench, make_task):
    b = bench(make_task("full"))
    b.join("pi-01")
    b.wait(4.0)
    b.join("pi-02")
    answers = [p for t, p in b.link.sent if t == topics.down("pi-02", "task")]
    assert messages.decode(answers[-1], Offer).remaining_s == pytest.approx(6.0)


def test_a_contribution_over_the_inline_limit_is_pulled_and_counts(bench, make_task, update_of):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    assert message.blob.size > 64 * 1024
    receipts = b.contribute("pi-01", message)
    assert [(r.status, r.boot, r.seq) for r in receipts] == [("accepted", 1, 7)]
    stored = next(b.store.contributions.of_round(1))
    assert b.store.contributions.content(stored) == b.blobs.get(message.blob)


def test_a_pull_goes_on_after_a_restart_with_what_had_arrived(bench, make_task, update_of):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    b.say("pi-01", "contribution", message)
    b.raw(topics.up("pi-01", topics.block(message.blob.sha, 0)), b.blobs.read_block(message.blob, 0))
    b = b.restart()
    b.say("pi-01", "contribution", message)
    gets = [messages.decode(p, Get) for t, p in b.link.sent if t == topics.down("pi-01", "get")]
    count = block_count(message.blob)
    assert gets[0].blocks == tuple(range(1, count))
    for index in gets[0].blocks:
        b.raw(
            topics.up("pi-01", topics.block(message.blob.sha, index)), b.blobs.read_block(message.blob, index)
        )
    assert [r.status for r in b.receipts("pi-01")] == ["accepted"]


def test_a_contribution_sent_twice_counts_once(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01", "pi-02")
    message = b.contribution("few-shot", update_of("few-shot"))
    first = b.contribute("pi-01", message)
    second = b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot", 5), seq=8))
    assert [r.status for r in first + second] == ["accepted", "duplicate"]
    assert second[0].seq == 8
    assert b.service.state.contributions == 1
    b.contribute("pi-02", message)
    assert b.contribute("pi-01", message)[0].status == "duplicate"
    assert b.heard(RoundClosed)[0].record.participants == 2


def test_every_refusal_reaches_the_device_with_values(bench, make_task, update_of):
    b = bench(make_task("few-shot", max_num_examples=100))
    b.join("pi-07", "pi-08")
    good, n = update_of("few-shot")
    bad = {
        "update from pi-07 refused: head.weight is (12, 64), expected (10, 64)": (
            {**good, "head.weight": np.zeros((12, 64), np.float32)},
            n,
            {},
        ),
        "non-finite": ({**good, "head.bias": np.full(10, np.nan, np.float32)}, n, {}),
        "head.bias missing": ({"head.weight": good["head.weight"]}, n, {}),
        "does not accept kind 'full'": (good, n, {"kind": "full"}),
        "num_examples is 0, expected 1 to 100": (good, 0, {}),
        "num_examples is 101": (good, 101, {}),
        "round 9 has not begun": (good, n, {"round": 9}),
        "round -1": (good, n, {"round": -(2**63)}),
        "it is for run 'other'": (good, n, {"run": "other"}),
        "it is for task 'other'": (good, n, {"task": "other"}),
        "not safetensors": (b"\xff" * 100, n, {}),
        "no content": (good, n, {"body": b""}),
    }
    for text, (content, examples, changes) in bad.items():
        receipts = b.contribute("pi-07", b.contribution("few-shot", (content, examples), **changes))
        assert [r.status for r in receipts] == ["refused"], text
        if not text.startswith("round -1"):
            assert text in receipts[0].reason
    assert b.service.state.contributions == 0
    assert len(b.heard(ContributionRefused)) == len(bad)


def test_a_content_that_is_too_large_is_refused_before_it_is_fetched(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01")
    huge = b.contribution("few-shot", update_of("few-shot"), body=b"", blob=Blob(bytes(32), 10**9))
    receipts = b.contribute("pi-01", huge)
    assert receipts[0].status == "refused"
    assert "1000000000 bytes" in receipts[0].reason
    assert not [t for t, _ in b.link.sent if t.endswith("/get")]


def test_a_blob_that_is_not_what_it_is_named_is_refused(bench, make_task, update_of):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    b.say("pi-01", "contribution", message)
    count = 0
    for _ in range(5):
        gets = [p for t, p in b.link.sent[count:] if t == topics.down("pi-01", "get")]
        count = len(b.link.sent)
        for payload in gets:
            for index in messages.decode(payload, Get).blocks:
                data = bytes(len(b.blobs.read_block(message.blob, index)))
                b.raw(topics.up("pi-01", topics.block(message.blob.sha, index)), data)
        b.wait(0.1)
    assert b.receipts("pi-01")[0].status == "refused"
    assert "another hash" in b.receipts("pi-01")[0].reason


def test_what_is_refused_does_not_lie_on_the_disk_but_what_counts_does(bench, make_task, update_of):
    b = bench(make_task("full", min_devices=4))
    b.join("pi-01", "pi-02", "liar", "slow")
    good = b.contribution("full", update_of("full"))
    content, examples = update_of("full", 1)
    name = next(iter(content))
    bad = b.contribution("full", ({**content, name: content[name] * np.float32(np.nan)}, examples))
    assert b.contribute("liar", bad)[0].status == "refused"
    assert b.contribute("pi-01", good)[0].status == "accepted"
    twice = msgspec.structs.replace(good, num_examples=10**9)
    assert b.contribute("pi-02", twice)[0].status == "refused"
    assert b.store.updates.has(good.blob)
    assert not b.store.updates.has(bad.blob)


def test_late_contributions_are_discarded_or_counted_as_the_task_says(bench, make_task, update_of):
    b = bench(make_task("few-shot", late="count"))
    b.join("pi-01", "pi-02", "pi-03")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b.wait(10.0)
    assert b.service.state.round == 2
    late = b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot", 2)))
    assert (late[0].status, late[0].reason) == (
        "accepted",
        "round 1 is closed, counted in round 2 unless a newer one comes",
    )
    assert [(s.round, s.into) for s in b.store.contributions.of_round(2)] == [(1, 2)]


@pytest.mark.parametrize("settings", [{"late": "count"}, {"buffer_size": 2}, {"wait_for": "fast"}])
def test_a_device_has_one_voice_in_a_merge_however_many_updates_it_sends(
    bench, make_task, update_of, settings
):
    """Updates for rounds 1 to 3 come in round 3, the newest one in the middle; the restart forgets none."""
    task = make_task("few-shot", "class-means", min_contributions=2, max_extensions=0, rounds=9, **settings)
    b = bench(task)
    b.join("a", "b", "liar")
    for number in (1, 2):
        for device in ("a", "b"):
            b.contribute(device, b.contribution("few-shot", update_of("few-shot"), number))
        b.wait(10.0)
    assert b.service.state.round == 3
    statistics = b.contribution("class-means", update_of("class-means", 5), 2)
    receipts = b.contribute("liar", b.contribution("few-shot", update_of("few-shot", 7), 1))
    receipts += b.contribute("liar", statistics)
    b = b.restart()
    b.join("a", "b", "liar")
    receipts += b.contribute("liar", b.contribution("few-shot", update_of("few-shot", 8), 1))
    assert [receipt.status for receipt in receipts] == ["accepted", "accepted", "duplicate"]
    for device in ("liar", "a"):
        b.contribute(device, b.contribution("few-shot", update_of("few-shot", 9), 3))
    b.wait(10.0)
    records = b.store.contributions.records(3)
    assert [(record.device, record.kind) for record in records] == [("a", "few-shot"), ("liar", "few-shot")]
    again = b.contribute("liar", statistics)
    assert [receipt.status for receipt in again] == ["duplicate"]
    assert not list(b.store.contributions.of_round(4))


def test_a_round_with_too_few_contributions_is_extended_in_sight_of_all(bench, make_task):
    b = bench(make_task("few-shot", min_contributions=2))
    b.join("pi-01")
    b.sit_out("pi-01", 1)
    sent = len(b.link.sent)
    b.wait(10.0)
    assert b.heard(RoundExtended) == [RoundExtended(1, 10.0, 0, 2, devices=1, fruitless=1, left=4)]
    assert [t for t, _ in b.link.sent[sent:]] == [topics.offer(b.task.name)]
    assert b.offer.round == 1


def test_a_run_to_which_no_device_contributes_ends_with_the_devices_reasons(bench, make_task):
    b = bench(make_task("few-shot", max_extensions=2))
    b.join("pi-01", "pi-02")
    for _ in range(2):
        assert not b.service.finished
        b.sit_out("pi-01", 1)
        b.sit_out("pi-02", 1)
        b.wait(10.0)
    assert b.service.finished
    text = b.service._run.commands.gave_up
    assert text.startswith(
        "round 1 is abandoned: 2 deadlines in a row, the last of 10 s, brought no contribution"
    )
    assert "; 2 sit out: pi-01 (nothing fits), pi-02 (nothing fits). " in text


def test_deadlines_in_vain_are_counted_over_crashes_and_anew_by_a_run_that_ended_so(bench, make_task):
    b = bench(make_task("few-shot", max_extensions=3))
    for left in (2, 1):
        b.join("pi-01")
        b.sit_out("pi-01", 1)
        b.wait(10.0)
        assert [event.left for event in b.heard(RoundExtended)] == [left]
        b = b.restart()
    b.join("pi-01")
    b.sit_out("pi-01", 1)
    b.wait(10.0)
    assert b.service.state.phase == "given up"
    b = b.restart()
    assert (b.service.state.phase, b.service.state.fruitless) == ("collect", 0)


def test_of_a_plan_with_reasons_without_end_some_are_kept_and_told(bench, make_task):
    b = bench(make_task("few-shot"))
    b.join("pi-01")
    plan = {"seconds": 1.0, "memory_bytes": 1, "energy_j": 1.0, "reasons": ("a", "b" * 999, *[""] * 100_000)}
    b.say("pi-01", "plan", Plan(task=b.task.name, round=1, kind="k" * 999, **plan))
    (report,) = b.heard(PlanReported)
    assert report.reasons[:2] == ("a", "b" * (LIMIT - 3) + "...")
    assert (len(report.reasons), len(report.kind)) == (MOST_REASONS, LIMIT)
    b.say(
        "pi-01",
        "plan",
        Plan(task=b.task.name, round=1, kind="few-shot", **{**plan, "reasons": ("fits",)}),
    )
    assert b.heard(PlanReported)[-1].reasons == ("fits",)


def test_devices_may_fetch_models_but_not_the_updates_of_others(bench, make_task, update_of):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    b.contribute("pi-01", message)

    def fetch(blob):
        sent = len(b.link.sent)
        b.say("pi-02", "get", Get(blob=blob, blocks=(0,)))
        return b.link.sent[sent:][-1]

    assert fetch(b.offer.bundle)[0] == topics.down("pi-02", topics.block(b.offer.bundle.sha, 0))
    assert fetch(b.offer.base.checkpoint[0])[0].endswith("/0")
    topic, data = fetch(message.blob)
    assert topic.endswith("/-1") and data == b""


def test_bytes_are_those_of_the_packets_of_each_device(bench, make_task, update_of):
    b = bench(make_task("few-shot", rounds=1))
    b.join("pi-01", "pi-02")
    sent = len(b.link.sent)
    counted = b.service._out.traffic.of("pi-02")
    message = b.contribution("few-shot", update_of("few-shot"))
    b.contribute("pi-02", message)
    up = packet_bytes(topics.up("pi-02", "contribution"), messages.encode(message))
    down = sum(packet_bytes(t, p) for t, p in b.link.sent[sent:])
    b.contribute("pi-01", message)
    record = {c.device: c for c in b.heard(RoundClosed)[0].contributions}["pi-02"]
    assert record.bytes_up == counted.up + up
    assert record.bytes_down == counted.down + down


def test_a_zeroth_order_round_is_offered_as_steps_on_its_checkpoint(bench, make_task, update_of, manifest):
    b = bench(make_task("zeroth-order", rounds=6))
    b.join("pi-01")
    first = b.offer.base
    start = b.weights(first)
    assert (first.steps, first.sha) == (0, hashlib.sha256(tensors.encode(start)).digest())
    for number in range(1, 6):
        b.contribute("pi-01", b.contribution("zeroth-order", update_of("zeroth-order", number), number))
        base = b.offer.base
        assert (base.checkpoint, base.steps) == (first.checkpoint, number)
        assert [step.round for step in steps.unpack(base.tail)] == list(range(1, number + 1))
    [segment] = base.log
    log = steps.decode(b.store.models.get(segment))
    assert log == steps.unpack(base.tail)
    assert hashlib.sha256(tensors.encode(replay(start, log, manifest))).digest() == base.sha


def test_a_round_that_changes_tensors_gives_a_new_checkpoint(bench, make_task, update_of):
    b = bench(make_task("full", "zeroth-order"))
    b.join("pi-01", "pi-02")
    first = b.offer.base
    b.contribute("pi-01", b.contribution("full", update_of("full")))
    b.contribute("pi-02", b.contribution("zeroth-order", update_of("zeroth-order")))
    base = b.offer.base
    assert (base.steps, base.tail, base.log) == (0, (), ())
    assert base.checkpoint != first.checkpoint
    assert base.sha == hashlib.sha256(tensors.encode(b.weights(base))).digest()


def test_a_restart_goes_on_in_the_same_round_with_what_was_acknowledged(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    before = b.offer
    b = b.restart()
    after = b.offer
    assert (after.run, after.round, after.seed, after.base) == (before.run, 1, before.seed, before.base)
    assert after.remaining_s == 10.0
    b.join("pi-01", "pi-02")
    assert b.service.state.answered == {"pi-01"}
    assert b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))[0].status == "duplicate"
    b.wait(2.0)
    b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot")))
    assert b.heard(RoundClosed)[0].record.participants == 2


def test_before_the_first_round_a_device_gets_ready_in_the_lobby(bench, make_task):
    b = bench(make_task("few-shot", min_devices=1))
    assert (b.offer.round, b.offer.kinds) == (0, ())
    b.say("pi-01", "hello", Hello(boot=1, num_examples=0, profile="pi", memory_bytes=1, engine="onnx"))
    lobby = messages.decode(b.link.sent[-1][1], Offer)
    assert (b.link.sent[-1][0], lobby.round) == (topics.down("pi-01", "task"), 0)
    assert b.service.state.phase == "wait"
    b.join("pi-01")
    assert (b.service.state.phase, b.offer.round) == ("collect", 1)


def test_after_a_restart_the_round_waits_for_devices_that_only_the_broker_remembers(
    bench, make_task, update_of
):
    b = bench(make_task("few-shot"))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b = b.restart()
    for device in ("pi-01", "pi-02"):
        state = messages.encode(State(boot=1, online=True))
        b.raw(topics.up(device, "state"), state, retain=True)
    b.wait(5.0)
    assert b.service.state.phase == "collect"
    b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot")))
    assert b.heard(RoundClosed)[0].record.participants == 2


def test_garbage_on_every_topic_stops_nothing(bench, make_task, update_of):
    b = bench(make_task("few-shot", rounds=1))
    b.join("pi-01")
    leaves = [
        "state",
        "hello",
        "plan",
        "contribution",
        "get",
        "nonsense",
        "block/zz/1",
        f"block/{'0' * 64}/-1",
        f"block/{'0' * 64}/99999999",
        "block",
        "",
        "x/y/z",
    ]
    payloads = [
        b"",
        b"\x00",
        b"\xff" * 300,
        b"\x91\x01",
        b"\xc1",
        bytes(300_000),
        b"\x95\x01\x01\x01\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ]
    for leaf in leaves:
        for payload in payloads:
            for device in ("pi-01", "pi 01", ".", "x" * 99):
                b.raw(f"fl/v1/d/{device}/up/{leaf}", payload)
    b.raw("fl/v1/all/round", b"x")
    b.raw("", b"x")
    nasty = b.contribution("few-shot", update_of("few-shot"), kind="\x1b[2Jfull\n", num_examples=2**63)
    assert b.contribute("pi-01", nasty)[0].status == "refused"
    assert all("\x1b" not in refused.kind for refused in b.heard(ContributionRefused))
    assert b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))[0].status == "accepted"
    assert b.offer.done


def test_a_life_that_no_database_can_hold_is_no_message(bench, make_task):
    b = bench(make_task("class-means", min_devices=2))
    b.join("pi-01", boot=2**63 - 1)
    b.join("liar", boot=2**63)
    b.wait(1.0)
    assert list(b.service.state.devices) == ["pi-01"]


@pytest.mark.parametrize("form", ["\0", "x" * 100_000], ids=["not a text of a database", "long"])
def test_an_update_of_a_variant_that_is_none_is_refused_and_those_that_come_with_it_count(
    bench, make_task, update_of, form
):
    b = bench(make_task("few-shot", min_contributions=3))
    b.join("pi-01", "pi-02", "pi-03")
    message = b.contribution("few-shot", update_of("few-shot", 1))
    for device, sent in (("pi-01", message), ("pi-02", msgspec.structs.replace(message, form=form))):
        b.service.handle(Received(topics.up(device, "contribution"), messages.encode(sent)))
    b.service.tick()
    [accepted], [refused] = b.receipts("pi-01"), b.receipts("pi-02")
    assert (accepted.status, refused.status) == ("accepted", "refused")
    assert "few-shot has no variant" in refused.reason and len(refused.reason) < 120
    assert [stored.form for stored in b.store.contributions.of_round(1)] == [""]


def test_presence_of_devices_that_are_gone_is_cleared_from_the_broker(bench, make_task):
    b = bench(make_task("few-shot"))
    b.join("pi-01", boot=5)
    b.say("pi-01", "state", State(boot=4, online=False))
    assert topics.up("pi-01", "state") not in b.link.retained
    b.say("pi-01", "state", State(boot=5, online=False, leaving=True))
    assert b.link.retained[topics.up("pi-01", "state")] == b""
    assert [event.online for event in b.heard(DeviceSeen)][-1] is False


def test_what_cannot_be_kept_is_not_acknowledged(bench, make_task, update_of, monkeypatch):
    from device_runtime.aggregator.errors import RunFolderError

    b = bench(make_task("few-shot"))
    b.join("pi-01")
    message = b.contribution("few-shot", update_of("few-shot"))

    def full(*_):
        raise RunFolderError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(type(b.store.contributions), "keep", full)
        assert b.contribute("pi-01", message) == []
    assert not b.heard(Contributed)
    assert b.contribute("pi-01", message)[0].status == "accepted"


def test_a_reason_is_one_short_line_whatever_a_device_names_things(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01")
    good, n = update_of("few-shot")
    extra = {**good, "a\nb\x1b[2J" * 400: np.zeros(1, np.float32)}
    for message in (
        b.contribution("few-shot", (good, n), kind="k\n" * 90_000),
        b.contribution("few-shot", (good, n), task="t\n" * 90_000),
        b.contribution("few-shot", (extra, n)),
    ):
        [receipt] = b.contribute("pi-01", message)
        assert receipt.status == "refused"
        assert receipt.reason.isprintable()
        assert len(receipt.reason) < 250


def test_a_disk_that_cannot_be_read_costs_no_device_its_contribution(
    bench, make_task, update_of, monkeypatch
):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))

    def broken(*_):
        raise BlobError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(b.store.updates, "read", broken)
        assert b.contribute("pi-01", message) == []
    assert b.contribute("pi-01", message)[0].status == "accepted"


def test_a_full_disk_while_blocks_come_in_loses_nothing(bench, make_task, update_of, monkeypatch):
    from device_runtime.broker.wire import partial_blob as partial

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    for function in ("reserve", "write_at", "move_into_place"):
        with monkeypatch.context() as patch:
            patch.setattr(partial, function, full)
            assert b.contribute("pi-01", message) == []
    assert b.contribute("pi-01", message)[0].status == "accepted"


def test_a_disk_that_uploads_filled_merges_what_was_accepted(bench, make_task, update_of, monkeypatch):
    b = bench(make_task("full", min_contributions=2))
    b.join("pi-01", "pi-02", "evil")
    updates, models = b.store.updates, b.store.models
    for number in range(3):
        b.say("evil", "contribution", b.contribution("full", update_of("full", 90 + number)))
    put, size = models.put, b.contribution("full", update_of("full")).blob.size

    def put_in_room(content):
        """The disk takes two contents, and a model only where there are no more."""
        if updates.taken() > 2.5 * size:
            raise BlobError("cannot write: no space left on device: free some space")
        return put(content)

    with monkeypatch.context() as patch:
        patch.setattr(models, "put", put_in_room)
        for number, device in enumerate(("pi-01", "pi-02")):
            message = b.contribution("full", update_of("full", number))
            assert b.contribute(device, message)[0].status == "accepted"
        b.wait(10.0)
    [closed] = b.heard(RoundClosed)
    assert [record.device for record in closed.contributions] == ["pi-01", "pi-02"]


def test_uploads_are_put_off_where_the_disk_would_lack_room_to_merge(
    bench, make_task, update_of, monkeypatch
):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message, usage = b.contribution("full", update_of("full")), shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10 * 1024**2))
        assert b.contribute("pi-01", message) == []
    assert b.store.updates.taken() == 0
    assert b.contribute("pi-01", message)[0].status == "accepted"


def test_a_nearly_full_disk_is_said_and_no_device_is_blamed(bench, make_task, update_of, monkeypatch, caplog):
    b = bench(make_task("full", round_deadline_s=10.0, max_extensions=2))
    b.join("pi-01", "pi-02")
    message, usage = b.contribution("full", update_of("full")), shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10 * 1024**2))
        for _ in range(3):
            assert b.contribute("pi-01", message) == []
        with pytest.raises(RunFolderError, match="takes no contributions: no room for blob") as raised:
            for _ in range(30):
                b.wait(1.0)
    assert exit_code(raised.value) == Exit.FOLDER
    assert "free some space" in str(raised.value).lower()
    assert b.service._run.commands.gave_up == ""
    texts = [entry.getMessage() for entry in caplog.records if "takes no contributions" in entry.getMessage()]
    assert len(texts) == 1  # for the whole time
    b = b.restart()
    b.join("pi-01", "pi-02")
    assert b.contribute("pi-01", message)[0].status == "accepted"


def test_a_disk_that_takes_contributions_again_before_the_deadline_stops_nothing(
    bench, make_task, update_of, monkeypatch
):
    b = bench(make_task("full", round_deadline_s=10.0, max_extensions=2, min_contributions=1))
    b.join("pi-01", "pi-02")
    message, usage = b.contribution("full", update_of("full")), shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10 * 1024**2))
        assert b.contribute("pi-01", message) == []
    assert b.contribute("pi-01", message)[0].status == "accepted"
    for _ in range(12):
        b.wait(1.0)
    assert len(b.heard(RoundClosed)) == 1


@pytest.mark.parametrize("text", ["database or disk is full", "disk I/O error"])
def test_a_commit_that_the_disk_refuses_does_not_abandon_the_run(
    bench, make_task, update_of, monkeypatch, text
):
    from device_runtime.aggregator.storage.contributions import Contributions

    def full(_self):
        raise RunFolderError(f"run folder /run: {text}")

    b = bench(make_task("few-shot", round_deadline_s=10.0, max_extensions=2))
    b.join("pi-01", "pi-02")
    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "settle", full)
        with pytest.raises(RunFolderError, match=f"takes no contributions: run folder /run: {text}"):
            for _ in range(30):
                b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
                b.wait(1.0)


def test_a_phase_that_the_disk_refuses_says_which_file_and_what_to_do(
    bench, make_task, update_of, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    b = bench(make_task("full", min_contributions=1, round_deadline_s=10.0))
    b.join("pi-01", "pi-02")
    assert b.contribute("pi-01", b.contribution("full", update_of("full")))[0].status == "accepted"
    monkeypatch.setattr("device_runtime.broker.wire.durable_files.os.fsync", full)
    with pytest.raises(RunFolderError, match=r"the run cannot go on: cannot write .*: free some space"):
        b.wait(11.0)


def test_a_restart_removes_contents_that_nobody_has_sent_for_long_and_keeps_what_counts(
    bench, make_task, update_of
):
    b = bench(make_task("full"))
    b.join("pi-01", "pi-02")
    message = b.contribution("full", update_of("full"))
    assert b.contribute("pi-01", message)[0].status == "accepted"
    b.say("pi-02", "contribution", b.contribution("full", update_of("full", 1)))
    orphan = b.store.updates.put(b"a crash came before its commit")
    [partial] = (b.store.updates.folder / "partial").iterdir()
    for path in (partial, b.store.updates.path(orphan.sha), b.store.updates.path(message.blob.sha)):
        os.utime(path, (1000, 1000))
    b = b.restart()
    assert not partial.exists()
    assert not b.store.updates.has(orphan)
    assert b.store.updates.has(message.blob)


def test_devices_that_fall_silent_in_an_upload_do_not_hold_up_the_others(bench, make_task, update_of):
    b = bench(make_task("full", round_deadline_s=60.0))
    frozen = [f"frozen-{i}" for i in range(MAX_PULLS)]
    b.join(*frozen, "pi-01")
    for i, device in enumerate(frozen):
        b.say(device, "contribution", b.contribution("full", update_of("full", i)))
    message = b.contribution("full", update_of("full", 99))
    assert b.contribute("pi-01", message) == []
    sent = len(b.link.sent)
    b.wait(2.5)
    b.wait(0.1)
    assert topics.down("pi-01", "get") in [topic for topic, _ in b.link.sent[sent:]]


def test_only_presence_is_believed_when_it_is_retained(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01")
    hello = Hello(boot=1, num_examples=20, profile="pi", memory_bytes=1, engine="onnx")
    b.raw(topics.up("ghost", "hello"), messages.encode(hello), retain=True)
    message = b.contribution("few-shot", update_of("few-shot"))
    b.raw(topics.up("ghost", "contribution"), messages.encode(message), retain=True)
    assert "ghost" not in b.service.state.devices
    assert b.receipts("ghost") == []
    topic = topics.up("ghost", topics.block(bytes(32), 7))
    b.raw(topic, bytes(65536), retain=True)
    cleared = [
        name for name in b.link.retained if name.startswith("fl/v1/d/ghost/") and not b.link.retained[name]
    ]
    assert cleared == [topics.up("ghost", "hello"), topics.up("ghost", "contribution"), topic]


def test_models_are_kept_while_they_are_offered_or_still_fetched_and_no_longer(bench, make_task, update_of):
    b = bench(make_task("full", rounds=6, keep_versions=1))
    b.join("pi-01")
    for number in range(1, 6):
        before = b.offer.base.checkpoint
        b.contribute("pi-01", b.contribution("full", update_of("full", number), number))
        assert all(b.store.models.has(part) for part in (*before, *b.offer.base.checkpoint))
        assert b.store.models.has(b.offer.bundle)
        assert b.store.models.has(b.store.rounds.made(number).served)
    files = [path for path in b.store.models.folder.iterdir() if path.is_file()]
    parts = len(b.offer.base.checkpoint)
    # the bundle, the served model; its weights, the last base, the open one; lengths with the last two
    assert len(files) == 2 + 3 * parts + 2
    b = b.restart()
    b.join("pi-01")
    assert b.contribute("pi-01", b.contribution("full", update_of("full"), 6))[0].status == "accepted"
    b.wait(2.0)
    assert b.offer.done


def test_what_is_fetched_after_its_round_has_closed_is_late_and_not_held_against_another_base(
    bench, make_task, update_of
):
    """Its blocks come in round 2, whose base is further from it than is believed."""
    b = bench(make_task(KindSettings(name="full", max_norm=3.5), rounds=3))
    b.join("pi-01", "pi-02")
    slow = b.contribution("full", update_of("full", 2))
    b.say("pi-02", "contribution", slow)
    b.contribute("pi-01", b.contribution("full", update_of("full", 1)))
    b.wait(10.0)
    assert b.service.state.round == 2
    for index, data in answer_get(b.blobs, Get(blob=slow.blob, blocks=tuple(range(block_count(slow.blob))))):
        b.raw(topics.up("pi-02", topics.block(slow.blob.sha, index)), data)
    [receipt] = b.receipts("pi-02")
    assert (receipt.status, receipt.reason) == ("late", "round 1 is closed, round 2 is open")


def test_a_late_contribution_that_counted_counts_once_after_a_restart_too(bench, make_task, update_of):
    b = bench(make_task("few-shot", late="count"))
    b.join("pi-01", "pi-02", "pi-03")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b.wait(10.0)
    late = b.contribution("few-shot", update_of("few-shot", 2))
    assert b.contribute("pi-02", late)[0].status == "accepted"
    b = b.restart()
    b.join("pi-01", "pi-02", "pi-03")
    assert (b.service.state.round, b.service.state.contributions) == (2, 1)
    assert b.service.state.answered == set()  # its answer to round 2 is still awaited
    assert b.contribute("pi-02", late)[0].status == "duplicate"
    b.wait(10.0)
    assert [c.record.participants for c in b.heard(RoundClosed)] == [1]
    assert b.contribute("pi-02", late)[0].status == "duplicate"


def test_a_run_that_was_begun_before_there_was_a_setting_goes_on_with_its_default(bench, make_task):
    b = bench(make_task("few-shot"))
    run = b.service.run_id
    settings = msgspec.json.decode(b.store.identity().task)
    del settings["buffer_size"], settings["devices_per_round"]
    with b.store._db.commit() as db:
        db.execute("UPDATE meta SET task = ?", (msgspec.json.encode(settings),))
    b = b.restart()
    assert (b.service.run_id, b.service.state.rules.closing) == (run, AllDevices())


def test_a_run_that_is_done_goes_on_when_it_is_given_more_rounds(bench, make_task, update_of):
    b = bench(make_task("few-shot", rounds=1, min_devices=1))
    b.join("pi-01")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    assert b.offer.done
    run = b.service.run_id
    b.task = msgspec.structs.replace(b.task, rounds=2)
    b = b.restart()
    b.join("pi-01")
    assert (b.offer.run, b.offer.round, b.offer.done) == (run, 2, False)
    b.wait(2.0)
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot"), number=2))
    assert b.offer.done
    assert b.restart().offer.done
    assert b.store.rounds.latest_closed() == 2
    assert msgspec.json.decode((b.folder / "task.json").read_bytes())["rounds"] == 2
    for changed, says in ({"rounds": 1}, "rounds 2, now 1"), ({"rounds": 3, "seed": 5}, "seed 0, now 5"):
        b.service.close()
        with pytest.raises(RunFolderError, match=f"another task .*{says}"):
            OpenRun(msgspec.structs.replace(b.task, **changed), b.folder, database=b.database)


def test_evaluation_data_are_added_to_a_run_that_exists_and_what_devices_hold_out_stays(
    bench, make_task, update_of, digits_in, tmp_path, caplog
):
    b = bench(make_task("few-shot", "class-means", rounds=1, min_devices=1))
    held_out = b.service.rounds.task.statistics.hold_out
    b.join("pi-01")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    assert isnan(b.store.rounds.closed()[0].record.eval_acc)
    run, begun = b.service.run_id, b.task
    test = digits_in(tmp_path / "test.npz")
    b.task = msgspec.structs.replace(b.task, rounds=2, eval_data=str(test))
    with caplog.at_level("INFO"):
        b = b.restart()
    assert f"its models are measured on {test}" in caplog.text
    assert "other settings: rounds 1, now 2" in caplog.text
    assert (b.service.run_id, b.service.rounds.task.statistics.hold_out) == (run, held_out)
    b.join("pi-01")
    b.wait(2.0)
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot"), number=2))
    accuracies = [closed.record.eval_acc for closed in b.store.rounds.closed()]
    assert (isnan(accuracies[0]), 0 <= accuracies[1] <= 1) == (True, True)
    audited = [(entry.action, entry.subject) for entry in reversed(entries([b.folder]))]
    assert audited == [("add eval_data", str(test)), ("change settings", "rounds 1, now 2")]
    b = b.restart()
    assert len(entries([b.folder])) == 2  # the same data are added once
    b.task = msgspec.structs.replace(begun, rounds=2)
    assert b.restart().service.run_id == run  # without them again


def test_a_run_goes_on_with_other_texts_for_people(bench, make_task):
    b = bench(make_task("few-shot", rounds=2))
    run = b.service.run_id
    b.task = msgspec.structs.replace(b.task, title="Read digits", ask="Draw a digit.")
    b = b.restart()
    assert (b.service.run_id, b.service.rounds.task.ask) == (run, "Draw a digit.")
    assert entries([b.folder])[-1].action == "change settings"
    b.task = msgspec.structs.replace(b.task, ask="Draw a letter.", round_deadline_s=1.0)
    with pytest.raises(RunFolderError, match="title, about and ask can be changed"):
        b.restart()


def test_evaluation_data_of_a_run_are_not_exchanged(bench, make_task, digits_in, tmp_path):
    b = bench(make_task("few-shot", eval_data=str(digits_in(tmp_path / "test.npz"))))
    b.service.close()
    for other in (None, str(digits_in(tmp_path / "other.npz"))):
        with pytest.raises(
            RunFolderError,
            match=r"another task \(eval_data .*rounds can be added, but not taken away, and eval_data",
        ):
            OpenRun(msgspec.structs.replace(b.task, eval_data=other), b.folder, database=b.database)


def test_files_of_a_run_may_lie_in_another_folder(bench, make_task, digits_in, tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    paths = [str(digits_in(tmp_path / name / "test.npz")) for name in ("here", "there")]
    b = bench(make_task("few-shot", eval_data=paths[0]))
    run, b.task = b.service.run_id, msgspec.structs.replace(b.task, eval_data=paths[1])
    b = b.restart()
    assert b.service.run_id == run
    assert msgspec.json.decode((b.folder / "task.json").read_bytes())["eval_data"] == paths[1]
    [entry] = entries([b.folder])
    assert (entry.action, entry.subject) == ("change settings", f"eval_data {paths[0]}, now {paths[1]}")


def test_a_run_that_was_begun_with_a_relative_path_goes_on_with_the_full_one(
    bench, make_task, digits_in, tmp_path, monkeypatch
):
    """As before 0.3, when `serve --config site/server.toml` left a path of the file as it was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    path = str(digits_in(tmp_path / "site" / "test.npz"))
    b = bench(make_task("few-shot", eval_data="site/test.npz"))
    run, b.task = b.service.run_id, msgspec.structs.replace(b.task, eval_data=path)
    monkeypatch.chdir("/")
    assert b.restart().service.run_id == run


def test_after_a_restart_a_round_waits_for_those_that_were_in_it_however_long_they_take(
    bench, make_task, update_of
):
    """Their links come back when they come back; the one that is back first does not close the round."""
    b = bench(make_task("few-shot", round_deadline_s=60.0))
    b.join("pi-01", "pi-02", "pi-03", "pi-04")
    b.say("pi-04", "state", State(boot=1, online=False, leaving=True))
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b = b.restart()
    assert b.service.state.waiting == {"pi-02", "pi-03"}
    b.join("pi-02")
    b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot", 2)))
    b.wait(30.0)
    assert b.service.state.round == 1
    b.join("pi-03")
    b.contribute("pi-03", b.contribution("few-shot", update_of("few-shot", 3)))
    b.wait(2.0)
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [3]


def test_after_a_restart_the_will_of_one_that_left_meanwhile_is_heard_and_a_silent_one_costs_a_deadline(
    bench, make_task, update_of
):
    b = bench(make_task("few-shot", round_deadline_s=60.0))
    b.join("pi-01", "pi-02", "pi-03")
    b = b.restart()
    b.raw(topics.up("pi-02", "state"), messages.encode(State(boot=1, online=False)), retain=True)
    b.join("pi-01")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    assert b.service.state.waiting == {"pi-03"}
    b.wait(60.0)
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [1]


def test_who_is_here_is_remembered_once_the_disk_has_room_again(bench, make_task, monkeypatch):
    from device_runtime.aggregator.errors import RunFolderError

    b = bench(make_task("few-shot"))

    def full(*_):
        raise RunFolderError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(b.store.session, "_db", SimpleNamespace(commit=full))
        b.join("pi-01")
    b.wait(0.1)
    b = b.restart()
    assert set(b.service.state.ready) == {"pi-01"}


def test_wills_that_are_heard_before_the_broker_is_gone_end_no_round(bench, make_task, update_of):
    """A broker that ends in order speaks them one after the other, and we are the last to go."""
    b = bench(make_task("few-shot", round_deadline_s=600.0))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b.say("pi-02", "state", State(boot=1, online=False))
    b.wait(GRACE_S / 2)
    b.service.handle(Disconnected("connection lost"))
    b.wait(100.0)
    b.service.handle(Connected(first=False))
    b.wait(RETURN_S / 2)
    b.say("pi-02", "state", State(boot=1, online=True))
    b.wait(RETURN_S)
    receipts = b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot", 2)))
    assert [receipt.status for receipt in receipts] == ["accepted"]
    assert [closed.record.participants for closed in b.heard(RoundClosed)] == [2]


@pytest.mark.parametrize(("leaving", "waits_s"), [(False, GRACE_S), (True, 0.0)])
def test_a_device_that_says_that_it_leaves_is_gone_at_once_and_one_whose_will_is_heard_a_little_later(
    bench, make_task, update_of, leaving, waits_s
):
    b = bench(make_task("few-shot", round_deadline_s=600.0))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b.say("pi-02", "state", State(boot=1, online=False, leaving=leaving))
    assert b.service.state.round == (2 if leaving else 1)
    b.wait(waits_s)
    assert b.service.state.round == 2


@pytest.mark.parametrize("returns", [True, False])
def test_wills_that_a_broker_speaks_as_it_ends_end_no_round_for_those_that_come_back(
    bench, make_task, update_of, returns
):
    """It ends, speaks the wills of all, and keeps them: the aggregator may be back before its devices are."""
    b = bench(make_task("few-shot", round_deadline_s=600.0))
    b.join("pi-01", "pi-02")
    b.contribute("pi-01", b.contribution("few-shot", update_of("few-shot")))
    b.service.handle(Disconnected("connection lost"))
    b.service.handle(Connected(first=False))
    b.raw(topics.up("pi-02", "state"), messages.encode(State(boot=1, online=False)), retain=True)
    b.wait(RETURN_S - 1)
    assert b.service.state.round == 1
    if returns:
        b.say("pi-02", "state", State(boot=1, online=True))
    b.wait(2.0)
    assert b.service.state.round == (1 if returns else 2)
    if returns:
        receipts = b.contribute("pi-02", b.contribution("few-shot", update_of("few-shot", 2)))
        assert [receipt.status for receipt in receipts] == ["accepted"]


def test_a_second_kind_of_a_device_is_refused_and_its_other_devices_are_still_waited_for(
    bench, make_task, update_of
):
    """A liar that sends every kind neither meets min_contributions alone nor closes the round."""
    b = bench(make_task("full", "few-shot", "class-means", min_contributions=3))
    b.join("kitchen-pi", "pi-02", "pi-03")
    assert b.contribute("kitchen-pi", b.contribution("full", update_of("full")))[0].status == "accepted"
    for seq, kind in enumerate(("few-shot", "class-means"), 8):
        [receipt] = b.contribute("kitchen-pi", b.contribution(kind, update_of(kind), seq=seq))
        assert (receipt.status, receipt.seq, receipt.retry_after_s) == ("refused", seq, 0)
        assert receipt.reason.endswith("refused: kitchen-pi has already sent full for round 1")
    b.wait(10.0)
    assert b.heard(RoundExtended) == [RoundExtended(1, 10.0, 1, 3, devices=3)]
    b = b.restart()
    b.join("kitchen-pi", "pi-02", "pi-03")
    again = b.contribution("few-shot", update_of("few-shot"))
    assert "has already sent full" in b.contribute("kitchen-pi", again)[0].reason
    assert b.contribute("kitchen-pi", b.contribution("full", update_of("full")))[0].status == "duplicate"
    assert dict(b.service.state.counted) == {"kitchen-pi": 1}


def test_of_two_kinds_that_are_fetched_at_once_the_first_that_is_here_counts(bench, make_task, update_of):
    b = bench(make_task("full", "entropy-subset"))
    b.join("pi-01", "pi-02")
    full = b.contribution("full", update_of("full"))
    subset = b.contribution("entropy-subset", update_of("entropy-subset"), seq=8, form="50%")
    b.say("pi-01", "contribution", subset)
    receipts = b.contribute("pi-01", full)
    for index, data in answer_get(
        b.blobs, Get(blob=subset.blob, blocks=tuple(range(block_count(subset.blob))))
    ):
        b.raw(topics.up("pi-01", topics.block(subset.blob.sha, index)), data)
    assert [(r.seq, r.status) for r in receipts] == [(7, "accepted")]
    last = b.receipts("pi-01")[-1]
    assert (last.seq, last.status) == (8, "refused")
    assert not b.store.updates.has(subset.blob)


def test_a_device_counts_as_no_more_samples_than_its_hello_has_said(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-01", "pi-02", samples=20)
    content, _ = update_of("few-shot")
    [receipt] = b.contribute("pi-01", b.contribution("few-shot", (content, 1_000_000)))
    assert receipt.status == "refused"
    assert "num_examples is 1000000, the hello of the device says that it has 20" in receipt.reason
    b.join("pi-01", samples=30)  # some have come
    b.join("pi-01", samples=10)  # some were deleted while an update waited
    assert b.contribute("pi-01", b.contribution("few-shot", (content, 30)))[0].status == "accepted"


def test_an_aggregator_that_was_restarted_bounds_samples_by_its_task_until_a_device_says_hello(
    bench, make_task, update_of
):
    b = bench(make_task("few-shot", max_num_examples=500))
    b.join("pi-01", "pi-02", samples=20)
    b = b.restart()
    content, _ = update_of("few-shot")
    [receipt] = b.contribute("pi-01", b.contribution("few-shot", (content, 501)))
    assert "num_examples is 501, expected 1 to 500" in receipt.reason
    assert b.contribute("pi-01", b.contribution("few-shot", (content, 500)))[0].status == "accepted"
