"""Class statistics on their way through the service: refused, kept, pooled, and served or not."""

import logging
from dataclasses import replace
from math import isnan

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.feasible import with_possible_head
from device_runtime.aggregator.tasks.kind_settings import KindSettings, kinds_named
from device_runtime.aggregator.tasks.task import Task, decode
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.tensors import decode as read
from device_runtime.models.bundles.tensors import encode
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import class_statistics, closed_form, kind_statistics
from device_runtime.strategies.statistics.class_statistics import RIGHT, ROWS

FULL = KindSettings(name="full", settings={"epochs": 1, "lr": 0.05, "batch": 16})
FEW_SHOT = KindSettings(name="few-shot", settings={"epochs": 1, "join_base": True})
HALVES = {"a": slice(0, 120), "b": slice(120, 240)}


@pytest.fixture
def task(make_task):
    return make_task(FULL, FEW_SHOT, head="closed-form", rounds=2)


@pytest.fixture
def sends(bundle):
    """What a device with these digits sends from the base of its round."""
    from sklearn.datasets import load_digits

    raw, model = load_digits(), open_model(bundle)
    x, y = bundle.manifest.input.prepare(raw.images[:240, None]), raw.target[:240].astype(np.int64)

    def update(b, device, kind="full", number=1):
        model.load(b.service.rounds.weights(number))
        strategy = next(entry.strategy for entry in b.task.kinds if entry.name == kind)
        data = LocalData(x[HALVES[device]], y[HALVES[device]])
        run = Run(b.service.rounds.seed(number), device, clock=lambda: 0.0, upload_at=1.0, round=number)
        update_ = kind_statistics.train(strategy, model, data, run)
        return update_.tensors, update_.num_examples

    return update


def test_a_round_serves_the_head_in_closed_form_and_offers_the_trained_one(bench, task, sends, bundle):
    b = bench(task)
    b.join("a", "b")
    for device, kind in (("a", "full"), ("b", "few-shot")):
        assert b.contribute(device, b.contribution(kind, sends(b, device, kind)))[0].status == "accepted"
    served, base = (
        read(b.store.models.get(b.store.rounds.made(1).served)),
        b.weights(b.store.rounds.start(2).base),
    )
    assert not np.array_equal(served["head.weight"], base["head.weight"])
    pool = closed_form.StatisticsPool.of(
        read(b.store.models.get(b.store.rounds.start(2).carried.memory[closed_form.MEMORY])),
        len(bundle.manifest.labels),
        ClassStatistics().projection(bundle.manifest.head.features),
    )
    assert (pool.rounds, pool.weight, pool.samples) == (1, 240, 240)
    assert b.store.rounds.closed()[0].note == ""


def test_a_liar_is_refused_with_the_reason(bench, task, sends):
    b = bench(task)
    b.join("a")
    content, examples = sends(b, "a")
    for count, why in ((120, "class counts sum to"), (1, "class 0 is counted 1 times, expected 2")):
        wrong = {**content, ROWS: content[ROWS].copy()}
        wrong[ROWS][0, 2:6] = np.frombuffer(np.uint32(count).tobytes(), np.uint8)
        receipt = b.contribute("a", b.contribution("full", (wrong, examples), seq=count))[0]
        assert receipt.status == "refused"
        assert why in receipt.reason


def test_an_update_without_statistics_counts_as_ever(bench, task, sends):
    """As of a device whose owner allows none."""
    b = bench(task)
    b.join("a", "b")
    content, examples = sends(b, "a")
    plain = class_statistics.split_statistics(content)[0], examples
    assert b.contribute("a", b.contribution("full", plain))[0].status == "accepted"
    b.wait(20.0)
    assert b.store.rounds.made(1).served
    why = "devices have sent means of 0 classes and no spread of a class yet"
    assert b.store.rounds.closed()[0].note == f"the trained head is served: {why}"


def test_a_restarted_aggregator_goes_on_to_the_bit(bench, task, sends):
    def played(restarts):
        b = bench(task)
        b.join(*HALVES)
        for number in (1, 2):
            for device in HALVES:
                message = b.contribution("full", sends(b, device, number=number), number=number)
                assert b.contribute(device, message)[0].status == "accepted"
                if restarts and (number, device) != (2, "b"):
                    b = b.restart()
                    b.join(*HALVES)
                    b.wait(SETTLE_S + 0.1)
        models = b.store.models
        return models.get(b.store.rounds.made(2).served), models.get(
            b.store.rounds.start(3).carried.memory[closed_form.MEMORY]
        )

    assert played(restarts=True) == played(restarts=False)


def test_an_offer_names_the_classes_that_nobody_has_sent_before_and_after_a_restart(bench, make_task, sends):
    """Of ten classes seven come in a round: 7, 8, 9, 0, 1, 2 and 3 in the first."""
    few = ClassStatistics(most_classes=7)
    b = bench(make_task(FULL, FEW_SHOT, head="closed-form", rounds=2, statistics=few))
    b.join(*HALVES)
    assert b.offer.rare == ()
    for device in HALVES:
        message = b.contribution("full", sends(b, device))
        assert b.contribute(device, message)[0].status == "accepted"
    assert (b.offer.round, b.offer.rare) == (2, (4, 5, 6))
    b = b.restart()
    b.join(*HALVES)
    b.wait(SETTLE_S + 0.1)
    assert (b.offer.round, b.offer.rare) == (2, (4, 5, 6))


def test_where_no_statistics_are_asked_for_no_class_is_named(bench, task, sends):
    b = bench(task)
    b.join(*HALVES)
    for device in HALVES:
        b.contribute(device, b.contribution("full", sends(b, device)))
    assert b.store.rounds.start(2).carried.memory[closed_form.MEMORY]
    trained = msgspec.structs.replace(task, head="trained")
    b.service.rounds.task = trained
    assert b.service.offers.offer(2, 1.0, 1.0).rare == ()


def test_where_the_trained_head_is_better_it_is_served_and_the_log_says_so(
    bench, make_task, sends, digits_in, tmp_path, caplog
):
    """Judged on the digits that are in no half, by a head whose statistics are of other labels."""
    caplog.set_level(logging.INFO)
    data = str(digits_in(tmp_path / "test.npz", slice(240, 400)))
    b = bench(make_task(FULL, head="closed-form", rounds=1, eval_data=data))
    b.join("a")
    content, examples = sends(b, "a")
    rows = np.roll(content[ROWS], 1, axis=0)
    rows[:, :2] = content[ROWS][:, :2]
    turned = {**content, ROWS: rows}
    assert b.contribute("a", b.contribution("full", (turned, examples)))[0].status == "accepted"
    record = b.store.rounds.closed()[0].record
    assert record.eval_acc == record.base_eval_acc
    assert "with the trained one, which is served" in caplog.text
    assert b.store.models.get(b.store.rounds.made(1).served) == encode(b.service.rounds.weights(2))


def test_a_bundle_that_can_have_no_such_head_is_served_as_trained_and_the_log_says_why(
    task, manifest, caplog
):
    without = msgspec.structs.replace(manifest, head=msgspec.structs.replace(manifest.head, bias=None))
    assert with_possible_head(task, manifest) is task
    assert with_possible_head(task, without).head == "trained"
    assert all(kind.strategy.statistics is None for kind in with_possible_head(task, without).kinds)
    assert "is served with its trained head: its head has no bias" in caplog.text


def test_every_kind_of_a_task_with_the_head_sends_statistics_as_the_task_says():
    settings = {"bundle": "b", "head": "closed-form", "statistics": {"numbers": "int8", "samples": 3}}
    task = msgspec.convert(settings, Task)
    assert {kind.strategy.statistics for kind in task.kinds} == {task.statistics}
    assert decode(task.json()).json() == task.json()
    robust = msgspec.structs.replace(task, robust="median")
    assert {kind.strategy.statistics for kind in robust.kinds} == {task.statistics}
    off = msgspec.structs.replace(task, head="trained")
    assert all(kind.strategy.statistics is None for kind in off.kinds)
    assert off.offer_kinds(1) == Task(bundle="b", head="trained").offer_kinds(1)


@pytest.mark.parametrize(
    ("kinds", "closed"),
    [
        (["full", "few-shot"], True),
        (["full"], False),
        (["few-shot", "class-means"], False),  # nobody sends second moments
        (["zeroth-order", "class-means"], False),
    ],
)
def test_by_default_the_head_is_in_closed_form_where_several_kinds_and_second_moments_come(kinds, closed):
    task = Task(bundle="b", kinds=kinds_named(kinds))
    assert task.closed_form is closed
    assert {kind.strategy.statistics for kind in task.kinds} == {task.statistics if closed else None}


def test_updates_under_differential_privacy_alone_give_no_closed_form_head_by_default():
    private = KindSettings(name="full", settings={"terms": {"dp-sgd": {}}})
    assert not Task(bundle="b", kinds=(private, *kinds_named(["few-shot"]))).closed_form


def test_a_published_system_keeps_its_trained_head_unless_the_task_says_otherwise():
    task = Task(bundle="b")
    assert not systems.task_as_system("fedfsc+", task).closed_form
    assert systems.task_as_system("fedfsc+", msgspec.structs.replace(task, head="closed-form")).closed_form


def test_devices_that_hold_samples_out_say_which_head_is_served(bench, make_task, sends, digits_in, tmp_path):
    """And the evaluation data do not: the base is served for the devices' word alone."""
    data = str(digits_in(tmp_path / "test.npz", slice(240, 400)))
    request = ClassStatistics(hold_out=0.2)
    b = bench(make_task(FULL, FEW_SHOT, head="closed-form", rounds=4, statistics=request, eval_data=data))
    for number, counts in ((1, None), (2, [24, 3, 9]), (3, [24, 20, 4])):
        b.join("a")
        assert (b.offer.aside is None) is (number == 1)
        content, examples = sends(b, "a", number=number)
        assert examples == 96
        if counts is not None:
            wrong = {**content, RIGHT: np.array([[24, 25, 0]], np.int32)}
            receipt = b.contribute("a", b.contribution("full", (wrong, examples), number, seq=9))[0]
            assert "25 and 0 of 24 held-out samples are counted as correct" in receipt.reason
            content = {**content, RIGHT: np.array([counts], np.int32)}
        message = b.contribution("full", (content, examples), number=number)
        assert b.contribute("a", message)[0].status == "accepted"
        b.wait(20.0)
        b = b.restart() if number == 2 else b
    closed = b.store.rounds.closed()
    why = "of 24 held-out samples 3 right with the closed-form head, 9 with the trained one, which is served"
    assert [entry.note for entry in closed] == ["", why, ""]
    records = [entry.record for entry in closed]
    held_out = [(each.held_out_acc, each.held_out_samples, each.held_out_head) for each in records[1:]]
    assert held_out == [(3 / 24, 24, "closed-form"), (4 / 24, 24, "trained")]  # as the rounds before served
    assert [each.held_out_other_acc for each in records[1:]] == [9 / 24, 20 / 24]
    assert isnan(records[0].held_out_acc) and records[0].held_out_samples == 0
    assert records[1].eval_acc == records[1].base_eval_acc
    assert records[0].eval_acc != records[0].base_eval_acc
    aside = read(b.store.models.get(b.offer.aside))
    served = read(b.store.models.get(b.store.rounds.made(3).served))
    np.testing.assert_array_equal(aside["closed-form/head.weight"], served["head.weight"])
    memory = read(b.store.models.get(b.store.rounds.start(4).carried.memory[closed_form.MEMORY]))
    assert 24 < memory["right"][0] < 48 and memory["right"][1] > memory["right"][2]


@pytest.mark.parametrize(
    ("settings", "share", "line"),
    [
        ({}, 0.1, "devices hold 10% of their samples out of training, to test the model"),
        ({"statistics": ClassStatistics(hold_out=0.3)}, 0.3, "devices hold 30% of their samples"),
        ({"statistics": ClassStatistics(hold_out=0)}, 0, "nothing measures the model"),
        ({"head": "trained"}, None, "nothing measures the model"),
        ({"eval_data": "test.npz"}, None, ""),
    ],
)
def test_without_evaluation_data_devices_hold_samples_out_by_default(
    bench, make_task, digits_in, tmp_path, caplog, settings, share, line
):
    if "eval_data" in settings:
        settings = {"eval_data": str(digits_in(tmp_path / settings["eval_data"], slice(240, 400)))}
    caplog.set_level(logging.INFO)
    b = bench(make_task(FULL, FEW_SHOT, **{"head": "closed-form", **settings}))
    task = b.service.rounds.task
    assert task.statistics.hold_out == share
    assert line in caplog.text and bool(line) is ("the task has no eval_data" in caplog.text)
    for kind in b.offer.kinds:
        sent = msgspec.msgpack.decode(kind.settings).get("statistics", {})
        assert sent.get("hold_out") == (share if task.closed_form else None)


def test_a_run_from_before_devices_held_samples_out_by_default_goes_on(bench, make_task):
    b = bench(make_task(FULL, FEW_SHOT, head="closed-form"))
    run, old = b.service.run_id, replace(b.task.statistics, hold_out=0.0)
    with b.store._db.commit() as db:
        before = msgspec.structs.replace(b.task, statistics=old)
        db.execute("UPDATE meta SET task = ?", (before.json(),))
    b = b.restart()
    assert b.service.run_id == run
    b.task = msgspec.structs.replace(b.task, statistics=replace(old, hold_out=0.3))
    with pytest.raises(RunFolderError, match="another task .*hold_out=0.3"):
        b.restart()
