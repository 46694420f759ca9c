"""Masked rounds from the first contribution to the served model."""

import itertools
import sqlite3

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine.run_events import DeviceSeen, SumsAwaited
from device_runtime.aggregator.masking import groups, requests
from device_runtime.aggregator.tasks.kind_settings import KindSettings, kinds_named
from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.broker.wire import compact_round, topics
from device_runtime.broker.wire.messages import Blob, Get, Hello
from device_runtime.broker.wire.sum_messages import SumAnswer
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import manifest as manifests
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.statistics import kind_statistics
from device_runtime.strategies.statistics.bounds import StatisticsBounds
from device_runtime.strategies.statistics.covariance import MeanScatter, RoundMeans

JOINED = KindSettings(name="few-shot", settings={"join_base": True})
PEFT = KindSettings(name="peft", settings={"tunable": "head"})
SLICE = KindSettings(name="width-slice", settings={"members": ["", "twin"]})


@pytest.fixture
def twin(bundle, tmp_path):
    """A smaller model of the family: the main one with other weights, under another name."""
    manifest = msgspec.structs.replace(bundle.manifest, name="twin")
    weights = {name: value + np.float32(0.5) for name, value in bundle.weights().items()}
    manifest = manifests.decode(manifests.encode(manifest))
    graphs = {name: bundle.graph(name) for name in manifest.graphs}
    return str(bundles.write(tmp_path / "twin", manifest, weights, graphs).path)


def kind_of(b, name):
    return next(entry.strategy for entry in b.service.rounds.task.kinds if entry.name == name)


def moved(b, name, seed, number=1, form=None):
    """An update of a kind that sends parameters: its base, each value moved a little."""
    strategy = kind_of(b, name)
    strategy = variant_named(strategy, strategy.variants()[0].variant if form is None else form)
    rng, base = np.random.default_rng(seed), b.service.rounds.weights(number, strategy.member)
    own = {
        spec.name: base[spec.name] + rng.normal(0, 0.01, spec.shape).astype(np.float32)
        for spec in strategy.expected(b.service.rounds.tools.manifests[strategy.member])
    }
    return Update(name, own, 10 + seed, 0.25 * (1 + seed), strategy.variant)


def trained(b, name, data, device):
    """An update with class statistics, trained on these samples."""
    model = open_model(b.service.rounds.tools._bundles[""])
    model.load(b.service.rounds.weights(1))
    run = Run(b.service.rounds.seed(1), device, clock=lambda: 0.0, upload_at=1.0, round=1)
    return kind_statistics.train(kind_of(b, name), model, data, run)


def in_the_clear(b, update, number=1):
    message = b.contribution(update.kind, (update.tensors, update.num_examples), number)
    metrics = msgspec.structs.replace(message.metrics, train_loss=update.train_loss)
    return msgspec.structs.replace(message, form=update.variant, metrics=metrics)


@pytest.fixture
def play(mask_of, helpers):
    """Plays a round on benches: all contribute `(device, update)`, and in masked tasks helpers answer."""

    def send(b, sent, number=1):
        for device, update in sent:
            message = (
                mask_of(b, device, update.kind, update, number, update.variant)
                if b.task.masks
                else in_the_clear(b, update, number)
            )
            [receipt] = b.contribute(device, message)
            assert receipt.status == "accepted", receipt.reason
        for helper in helpers if b.task.masks else ():
            helper.answer(b)

    return send


def served(b, number=1):
    return tensors.decode(b.store.models.get(b.store.rounds.made(number).served))


def distance(left, other):
    """Of two models, relative to the second."""
    off = sum(float(np.square(left[name].astype(np.float64) - other[name]).sum()) for name in other)
    return (off / sum(float(np.square(other[name], dtype=np.float64).sum()) for name in other)) ** 0.5


def assert_equal(masked, clear, number=1):
    assert masked.service.state.round == clear.service.state.round
    assert distance(served(masked, number), served(clear, number)) < 1e-6
    assert (
        distance(masked.service.rounds.weights(number + 1), clear.service.rounds.weights(number + 1)) < 1e-6
    )


@pytest.fixture
def both(bench, make_task, masked_task):
    """The same task in the clear and masked, where so many devices with so many samples are there."""

    def make(*kinds, devices=3, samples=20, **settings):
        pair = bench(masked_task(*kinds, **settings)), bench(make_task(*kinds, **settings))
        for b in pair:
            b.join(*(f"pi-{at}" for at in range(devices)), samples=samples)
        return pair

    return make


@pytest.mark.parametrize("kind", ["full", JOINED, "entropy-subset", PEFT, "local-zeroth-order"])
def test_masked_updates_of_parameters_serve_what_they_serve_in_the_clear(both, play, kind):
    masked, clear = both(kind, rounds=1)
    name = clear.task.kinds[0].name
    sent = [(f"pi-{at}", moved(clear, name, at)) for at in range(3)]
    for b in (masked, clear):
        play(b, sent)
    assert_equal(masked, clear)
    ours, theirs = (b.store.rounds.closed()[0] for b in (masked, clear))
    assert (ours.note, ours.record.participants) == ("", 3)
    assert ours.record.train_loss == pytest.approx(theirs.record.train_loss)


@pytest.mark.parametrize("kind", ["class-means", "zeroth-order"])
def test_masked_class_means_and_scalars_serve_what_they_serve_in_the_clear(both, play, update_of, kind):
    sent = [(f"pi-{at}", Update(kind, *update_of(kind, at), 0.5)) for at in range(3)]
    masked, clear = both(kind, rounds=1, samples=max(update.num_examples for _, update in sent))
    for b in (masked, clear):
        play(b, sent)
    assert_equal(masked, clear)


def test_masked_slices_of_members_are_not_mixed_though_their_tensors_are_alike(both, play, twin):
    masked, clear = both(SLICE, family=(twin,), devices=4, rounds=1)
    sent = [(f"pi-{at}", moved(clear, "width-slice", at, form="twin" if at % 2 else "")) for at in range(4)]
    for b in (masked, clear):
        play(b, sent)
    assert_equal(masked, clear)
    assert [record.devices for record in masked.store.sums.records(1)] == [2, 2]
    for b in (masked, clear):
        b.family = b.service.rounds.weights(2, "twin")
    assert distance(masked.family, clear.family) < 1e-6


def test_masked_class_statistics_serve_the_head_that_they_serve_in_the_clear(both, play, digits, monkeypatch):
    """All kinds of a mixed round, with a head in closed form: class means are class statistics then.

    Scatter is not bounded: bounds look at single devices in the clear, and at sums under masks. Nor does
    the scatter of class means count, which in the clear are those of devices.
    """
    monkeypatch.setattr(StatisticsBounds, "_possible", lambda *_: None)
    monkeypatch.setattr(RoundMeans, "scatter", lambda means: MeanScatter.none(len(means._squares)))
    full = KindSettings(name="full", settings={"epochs": 1, "lr": 0.05, "batch": 16})
    head = KindSettings(name="few-shot", settings={"join_base": True, "epochs": 1})
    masked, clear = both(full, head, "class-means", devices=6, samples=40, rounds=1)
    sent = []
    for at, kind in enumerate(("full", "full", "few-shot", "few-shot", "class-means", "class-means")):
        own = slice(40 * at, 40 * at + 40)
        data = LocalData(digits.x[own], digits.y[own])
        sent.append((f"pi-{at}", trained(clear, kind, data, f"pi-{at}")))
    for b in (masked, clear):
        assert b.service.rounds.task.closed_form
        play(b, sent)
    assert_equal(masked, clear)
    head = clear.service.rounds.manifest.head.weight
    assert not np.array_equal(served(clear)[head], clear.service.rounds.weights(2)[head])


def test_a_masked_round_of_several_kinds_and_a_late_group_merge_as_in_the_clear(both, play, update_of):
    """Of eight devices, two send each kind; the two that send "full" are a round late."""
    kinds = kinds_named(("full", "entropy-subset", "few-shot", "zeroth-order"))
    masked, clear = both(*kinds, devices=8, late="count", head="trained", rounds=2)

    def sent(number):
        scalars = [Update("zeroth-order", *update_of("zeroth-order", at), 0.5) for at in range(2)]
        updates = [moved(clear, kind.name, at, number) for kind in kinds[:-1] for at in range(2)]
        return [(f"pi-{at}", update) for at, update in enumerate([*updates, *scalars])]

    first = sent(1)
    for b in (masked, clear):
        for device, _ in first[:2]:
            b.sit_out(device, 1)
        play(b, first[2:])
    assert_equal(masked, clear)
    second = sent(2)
    for b in (masked, clear):
        play(b, first[:2], 1)
        for device, _ in first[:2]:
            b.sit_out(device, 2)
        play(b, second[2:], 2)
    assert_equal(masked, clear, 2)
    records = [
        (record.kind, record.round, record.devices, record.why) for record in masked.store.sums.records(2)
    ]
    assert records == [
        ("entropy-subset", 2, 2, ""),
        ("few-shot", 2, 2, ""),
        ("full", 1, 2, ""),
        ("zeroth-order", 2, 2, ""),
    ]


@pytest.fixture
def collected(bench, masked_task, play, helpers):
    """Three devices have contributed; no mask helper has answered yet."""

    def make(*kinds, answering=(), **settings):
        b = bench(masked_task(*(kinds or ("full",)), **{"rounds": 2, **settings}))
        b.join("pi-0", "pi-1", "pi-2", samples=20)
        helpers_here, helpers[:] = helpers[:], answering
        play(b, [(f"pi-{at}", moved(b, "full", at)) for at in range(3)])
        helpers[:] = helpers_here
        return b

    return make


def phase(b):
    return b.service.state.round, b.service.state.phase


def test_a_round_waits_until_every_mask_helper_has_answered(collected, helpers):
    b = collected()
    assert phase(b) == (1, "unmask")
    helpers[1].answer(b)
    assert phase(b) == (1, "unmask")
    assert b.heard(SumsAwaited)[-1] == SumsAwaited(1, ("helper-a",), 1)
    helpers[0].answer(b)
    assert phase(b) == (2, "collect")


@pytest.mark.parametrize("before", [0, 1])
def test_a_crash_while_helpers_are_asked_loses_nothing_and_asks_nobody_for_another_set(
    collected, helpers, before
):
    b = collected()
    for helper in helpers[:before]:
        helper.answer(b)
    ids = [request.id for helper in helpers for request in helper.requests(b)]
    b = b.restart()
    assert phase(b) == (1, "unmask")
    assert [len(helper.requests(b)) for helper in helpers] == [1 - before, 1]
    assert {request.id for helper in helpers for request in helper.requests(b)} == set(ids)
    for helper in helpers:
        helper.answered.clear()
        helper.answer(b)
    assert phase(b) == (2, "collect")
    assert b.store.rounds.closed()[0].note == ""


def test_a_merge_that_a_crash_interrupts_is_done_again_from_the_same_sums(collected, helpers, monkeypatch):
    b, undisturbed = collected(), collected()
    with monkeypatch.context() as crash:
        crash.setattr(b.service._run.commands, "merge", lambda *_: 1 / 0)
        helpers[0].answer(b)
        with pytest.raises(RunFolderError, match="the run cannot go on"):
            helpers[1].answer(b)
    b = b.restart()
    assert phase(b) == (2, "collect")
    for helper in helpers:
        helper.answer(undisturbed)
    assert b.store.rounds.made(1).served == undisturbed.store.rounds.made(1).served


def test_a_helper_that_refuses_leaves_its_sum_out_and_the_note_says_why(collected, helpers):
    b = collected()
    base = b.store.rounds.start(1).base
    helpers[0].refusal = "pi-1 is in another set of this round"
    helpers[0].answer(b)
    assert phase(b) == (2, "collect")
    [closed] = b.store.rounds.closed()
    refused = "mask helper helper-a refused it: pi-1 is in another set of this round"
    assert closed.note == f"3 updates of full not opened: {refused}"
    assert b.store.rounds.start(2).base == base
    assert b.offer.masks.alone == ()


def test_a_sum_that_devices_cannot_make_is_left_out_and_the_note_says_why(collected, helpers):
    b = collected()
    base = b.store.rounds.start(1).base
    helpers[1].wrong = True
    for helper in helpers:
        helper.answer(b)
    assert phase(b) == (2, "collect")
    assert "3 updates of full not opened: the sum is of " in b.store.rounds.closed()[0].note
    assert b.store.rounds.start(2).base == base


def test_an_answer_of_another_size_is_a_sum_that_is_not_opened(collected, helpers):
    b = collected()
    [request] = helpers[0].requests(b)
    b.say("helper-a", "sum", SumAnswer(id=request.id, body=b"short"))
    assert phase(b) == (2, "collect")
    assert "its answer has 5 bytes, expected 3" in b.store.rounds.closed()[0].note


def test_too_few_updates_of_a_kind_are_not_opened_and_the_next_offer_names_it(
    bench, masked_task, play, helpers
):
    b = bench(masked_task("full", JOINED, head="trained", rounds=3))
    b.join("pi-0", "pi-1", "pi-2", samples=20)
    alone = [("pi-2", moved(b, "few-shot", 2))]
    play(b, [(f"pi-{at}", moved(b, "full", at)) for at in range(2)] + alone)
    assert b.store.rounds.closed()[0].note == (
        "1 update of few-shot not opened: too few devices, a sum has at least 2"
    )
    assert b.offer.masks.alone == ("few-shot",)
    play(b, [(f"pi-{at}", moved(b, "few-shot", at, 2)) for at in range(3)], 2)
    assert b.offer.masks.alone == ()
    assert [len(helper.requests(b)) for helper in helpers] == [2, 2]


def test_a_round_closes_only_with_enough_devices_for_a_sum(bench, masked_task, play):
    b = bench(masked_task("full", min_group=3))
    b.join("pi-0", "pi-1", samples=20)
    play(b, [(f"pi-{at}", moved(b, "full", at)) for at in range(2)])
    b.wait(11)
    assert phase(b) == (1, "collect")


def test_a_helper_that_is_away_is_named_after_each_deadline_and_asked_again(collected, helpers):
    b = collected(max_extensions=3)
    helpers[0].answer(b)
    assert len(helpers[1].requests(b)) == 1
    b.wait(requests.RESEND_S)
    assert [request.id for request in helpers[1].requests(b)] == [helpers[1].requests(b)[0].id] * 2
    waits = [event for event in b.heard(SumsAwaited) if event.deadlines]
    assert waits == [SumsAwaited(1, ("helper-b",), 1, deadlines=1, left=2)]
    assert waits[0].text == (
        "waits for mask helper helper-b; the run ends after 2 more deadlines without an answer"
    )
    helpers[1].come(b)
    b.wait(0.1)
    assert len(helpers[1].requests(b)) == 3
    helpers[1].answer(b)
    assert phase(b) == (2, "collect")


def test_a_run_whose_helpers_stay_away_ends_with_that_reason_and_a_restart_asks_again(collected, helpers):
    b = collected(max_extensions=2)
    helpers[0].answer(b)
    b.wait(10)
    b.wait(10)
    assert (b.service.state.phase, b.service.finished) == ("given up", True)
    assert b.service._run.commands.gave_up == (
        "round 1 is not opened: 2 deadlines in a row, of 10 s, brought no answer of mask helper helper-b. "
        "Nothing is lost: the same command asks again"
    )
    b = b.restart()
    assert phase(b) == (1, "unmask")
    b.wait(10)
    assert phase(b) == (1, "unmask")
    helpers[1].answer(b)
    assert phase(b) == (2, "collect")
    assert b.store.rounds.closed()[0].note == ""


def test_what_comes_while_helpers_are_asked_is_put_off_where_it_may_count_later(
    collected, helpers, mask_of, play
):
    b = collected(late="count", min_group=2)
    b.join("pi-3", samples=20)
    late = mask_of(b, "pi-3", "full", moved(b, "full", 3), 1)
    [receipt] = b.contribute("pi-3", late)
    assert (receipt.status, receipt.retry_after_s) == ("refused", 5)
    assert receipt.reason.endswith("refused: round 1 is being unmasked, it may count in the next one")
    for helper in helpers:
        helper.answer(b)
    [receipt] = b.contribute("pi-3", late)
    assert receipt.status == "accepted"


def test_a_device_has_one_voice_in_a_round_of_masked_sums(collected, helpers, mask_of):
    b = collected(late="count", min_group=2)
    for helper in helpers:
        helper.answer(b)
    b.join("pi-3", samples=20)
    for number in (1, 2):
        late = mask_of(b, "pi-3", "full", moved(b, "full", 3, number), number)
        assert b.contribute("pi-3", late)[0].status == "accepted"
    for place in range(2):
        b.contribute(f"pi-{place}", mask_of(b, f"pi-{place}", "full", moved(b, "full", place, 2), 2))
    b.wait(10)
    [request] = helpers[0].requests(b)[1:]
    assert request.round == 2
    for helper in helpers:
        helper.answer(b)
    [opened] = b.store.sums.records(2)
    assert (opened.round, opened.devices, opened.why) == (2, 3, "")


def test_what_comes_while_helpers_are_asked_is_late_where_late_updates_do_not_count(collected, mask_of):
    b = collected()
    b.join("pi-3", samples=20)
    [receipt] = b.contribute("pi-3", mask_of(b, "pi-3", "full", moved(b, "full", 3), 1))
    assert (receipt.status, receipt.retry_after_s) == ("late", 0)


def test_a_helper_is_no_device_whatever_it_says(bench, masked_task, helpers, mask_of, caplog):
    b = bench(masked_task("full", min_devices=2))
    b.join("pi-0", samples=20)
    helpers[0].come(b)
    hello = Hello(boot=1, num_examples=10, profile="pi", memory_bytes=2**29, engine="onnx")
    b.say("helper-a", "hello", hello)
    assert phase(b) == (0, "wait")
    b.join("pi-1", samples=20)
    b.say("helper-a", "contribution", mask_of(b, "helper-a", "full", moved(b, "full", 0)))
    assert sorted(b.service.state.devices) == ["pi-0", "pi-1"]
    assert {event.device for event in b.heard(DeviceSeen)} == {"pi-0", "pi-1"}
    assert b.receipts("helper-a") == []
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert lines == [
        f"message from mask helper helper-a dropped: it sends {leaf}" for leaf in ("hello", "contribution")
    ]
    assert b.service._out.traffic.of("helper-a").up == 0


def test_an_answer_of_anybody_else_is_dropped(collected, helpers, caplog):
    b = collected()
    [request] = helpers[0].requests(b)
    b.say("pi-1", "sum", SumAnswer(id=request.id, refusal="so that it is not opened"))
    b.say("helper-a", "sum", SumAnswer(id=bytes(32), refusal="of what nobody asked"))
    assert phase(b) == (1, "unmask")
    assert "answer of pi-1 dropped: it is no mask helper of this task" in caplog.text


def test_blocks_of_a_list_that_another_task_has_sent_are_not_answered(collected, helpers):
    b = collected()
    count = len(b.link.sent)
    b.say("helper-a", "get", Get(blob=Blob(sha=b"x" * 32, size=10**6), blocks=(0, 1)))
    assert b.link.sent[count:] == []


def test_a_long_list_of_masks_and_a_large_answer_go_in_blocks(collected, helpers, monkeypatch):
    monkeypatch.setattr(groups, "INLINE_LIMIT", 100)
    b = collected()
    [request] = helpers[0].requests(b)
    assert (request.body, request.blob is None) == (b"", False)
    for helper in helpers:
        helper.answer(b)
    assert phase(b) == (2, "collect")
    assert b.store.rounds.closed()[0].note == ""
    folder = b.folder / "sums"
    assert [path.name for path in folder.iterdir()] == ["partial"]
    assert not list((folder / "partial").iterdir())


def test_an_answer_that_was_half_fetched_in_a_crash_is_fetched_on(collected, helpers):
    b = collected()
    helpers[0].answer(b)
    helper, [request] = helpers[1], helpers[1].requests(b)
    b.say("helper-b", "sum", helper._sum(b, request))
    b = b.restart()
    helper.answered.clear()
    helper.answer(b)
    assert phase(b) == (2, "collect")


def test_a_sum_with_more_devices_than_there_is_room_for_is_divided(
    bench, masked_task, play, helpers, monkeypatch
):
    offered = MaskSettings.offered

    def small(*args):
        return msgspec.structs.replace(offered(*args), capacity=4)

    monkeypatch.setattr(MaskSettings, "offered", small)
    b = bench(masked_task("full", rounds=1))
    names = [f"pi-{at}" for at in range(7)]
    b.join(*names, samples=20)
    play(b, [(name, moved(b, "full", at)) for at, name in enumerate(names)])
    assert phase(b) == (1, "done")
    assert sorted(record.devices for record in b.store.sums.records(1)) == [3, 4]
    assert b.store.rounds.closed()[0].note == ""


def test_offers_say_how_updates_are_masked_and_keep_to_it_over_a_restart(bench, masked_task, helpers):
    b = bench(masked_task("full", min_group=3, max_num_examples=500))
    assert b.service.offers.lobby().masks.helpers == b.task.masks.keys
    b.join(*(f"pi-{at}" for at in range(40)), samples=700)
    b.wait(11)
    masks = b.offer.masks
    assert [helper.name for helper in masks.helpers] == ["helper-a", "helper-b"]
    assert (masks.min_group, masks.capacity, masks.most_weight, masks.alone) == (3, 64, 500, ())
    b = b.restart()
    b.join(*(f"pj-{at}" for at in range(40)), samples=100)
    assert b.service.offers.offer(1, 1.0, 1.0).masks == masks


def test_room_and_weight_of_the_next_round_follow_the_devices_that_are_known(
    bench, masked_task, play, helpers
):
    b = bench(masked_task("full", rounds=3))
    b.join("pi-0", "pi-1", samples=30)
    assert (b.offer.masks.capacity, b.offer.masks.most_weight) == (64, 30)
    b.join(*(f"pk-{at}" for at in range(60)), samples=90)
    play(b, [(f"pi-{at}", moved(b, "full", at)) for at in range(2)])
    assert (b.offer.masks.capacity, b.offer.masks.most_weight) == (64, 30)
    b.wait(11)
    for helper in helpers:
        helper.answer(b)
    assert phase(b) == (2, "collect")
    assert (b.offer.masks.capacity, b.offer.masks.most_weight) == (128, 90)


def test_a_round_that_asks_some_devices_has_room_for_these(bench, masked_task, play):
    b = bench(masked_task("full", rounds=3, min_devices=80, devices_per_round=5))
    b.join(*(f"pk-{at}" for at in range(80)), samples=90)
    assert b.store.sums.masks(1).capacity == 64
    everyone = bench(masked_task("full", rounds=3, min_devices=80))
    everyone.join(*(f"pk-{at}" for at in range(80)), samples=90)
    assert everyone.store.sums.masks(1).capacity == 256


def test_offers_of_masked_rounds_are_never_compact(bench, masked_task, play, update_of):
    b = bench(masked_task("zeroth-order", rounds=3))
    b.join("pi-0", "pi-1", samples=20)
    scalars = [Update("zeroth-order", *update_of("zeroth-order", at), 0.5) for at in range(2)]
    play(b, [(f"pi-{at}", update) for at, update in enumerate(scalars)])
    assert phase(b) == (2, "collect")
    offers = [payload for where, payload in b.link.sent if where == topics.offer("task")]
    assert not any(map(compact_round.is_compact_offer, offers))


def test_updates_of_a_round_that_is_rolled_back_are_not_opened(bench, masked_task, play, mask_of, helpers):
    b = bench(masked_task("full", rounds=3))
    b.join("pi-0", "pi-1", samples=20)
    play(b, [(f"pi-{at}", moved(b, "full", at)) for at in range(2)])
    sent = [mask_of(b, f"pi-{at}", "full", moved(b, "full", at, 2), 2) for at in range(2)]
    b.contribute("pi-0", sent[0])
    b.service._run.go_back(1)
    b.contribute("pi-1", sent[1])
    assert phase(b) == (3, "collect")
    assert [len(helper.requests(b)) for helper in helpers] == [1, 1]
    assert b.store.rounds.closed()[1].note.startswith("went back to the model of round 1")


def bytes_kept(b):
    """The content of every file of the run, and of every value in its database."""
    with sqlite3.connect(b.folder / "run.sqlite") as db:
        names = [name for [name] in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in names for row in db.execute(f"SELECT * FROM {name}")]  # noqa: S608
    values = (value for row in rows for value in row if isinstance(value, bytes))
    files = (path.read_bytes() for path in b.folder.rglob("*") if path.is_file())
    return [*values, *files]


def test_no_single_update_is_ever_in_the_run_s_files_or_database(collected, helpers):
    b = collected()
    sent = [moved(b, "full", at) for at in range(3)]
    stages = [bytes_kept(b)]
    for helper in helpers:
        helper.answer(b)
        stages.append(bytes_kept(b))
    contents = [body for body in stages[0] if len(body) == masked_size(b)]
    assert len(contents) == 3
    for content in contents:
        counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert (
            float(((counts - expected) ** 2 / expected).sum()) < 420
        )  # 255 degrees of freedom: one in 10^9 is more
    for update, stage in itertools.product(sent, stages):
        for value in update.tensors.values():
            if value.size >= 16:
                assert not any(value.tobytes() in part for part in stage)
    assert not [part for part in stages[-1] if len(part) == masked_size(b)]
    assert not b.store.sums.answers(1) and not b.store.contributions.masked(1)


def masked_size(b):
    return sum(4 * value.size for value in moved(b, "full", 0).tensors.values()) + 4 * 4 + 8 * 2
