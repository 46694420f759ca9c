"""Class statistics of a site's devices: above they come to what the devices would have sent themselves."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.aggregator.hierarchy import forwarding
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Hello, State, encode
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds.registry import make
from device_runtime.strategies.statistics import class_statistics, closed_form, held_out, kind_statistics
from device_runtime.strategies.statistics.class_statistics import MOMENTS, RIGHT, ROWS, SPREAD, Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums, read_rows

FULL = KindSettings(name="full", settings={"epochs": 1, "lr": 0.05, "batch": 16})
FEW_SHOT = KindSettings(name="few-shot", settings={"epochs": 1, "join_base": True})
SCALARS = KindSettings(name="zeroth-order", settings={})
MEANS = KindSettings(name="class-means", settings={"head": "trained", "smallest_count": 1})
PARTS = {"a": slice(0, 90), "b": slice(90, 150), "c": slice(150, 200), "d": slice(200, 240)}


@pytest.fixture
def sends(bundle, digits):
    """What a device with its part of the digits sends of a kind, from the base of the open round above."""
    model = OnnxModel(bundle)

    def update(h, device, kind, changes=None, rare=()):
        rounds = h.service.rounds
        number = h.service.state.round
        model.load(rounds.weights(number))
        strategy = next(entry.strategy for entry in h.task.kinds if entry.name == kind)
        if strategy.statistics is not None:
            strategy = kind_statistics.with_class_statistics(
                strategy, replace(strategy.statistics, **(changes or {}))
            )
        data = LocalData(digits.x[PARTS[device]], digits.y[PARTS[device]])
        sent = kind_statistics.train(
            strategy,
            model,
            data,
            Run(rounds.seed(number), device, clock=lambda: 0.0, upload_at=1.0, round=number, rare=rare),
        )
        return kind, sent.tensors, sent.num_examples

    return update


@pytest.fixture
def forwarded(monkeypatch):
    """The statistics that go up, each time that an update is made."""
    results, encoded = [], forwarding.encoded_statistics

    def spy(*arguments):
        results.append(encoded(*arguments))
        return results[-1]

    monkeypatch.setattr(forwarding, "encoded_statistics", spy)
    return results


def pool(h, bundle):
    """What the aggregator above has pooled so far."""
    store = h.service.rounds.store
    memory = store.rounds.start(h.service.state.round).carried.memory[closed_form.MEMORY]
    return closed_form.StatisticsPool.of(
        tensors.decode(store.models.get(memory)),
        len(bundle.manifest.labels),
        ClassStatistics().projection(bundle.manifest.head.features),
    )


def through_a_site(h, sends, kinds):
    """One round: device d sends to the aggregator above, the others to the site."""
    updates = {device: sends(h, device, kind) for device, kind in kinds.items()}
    for device, (kind, update, examples) in updates.items():
        if device == "d":
            h.contribute_above(device, kind, update, examples)
        else:
            receipt = h.contribute(device, kind, update, examples)
            assert receipt.status == "accepted", receipt.reason
    return h.wait(1.0)


def directly(h, sends, kinds):
    """One round of the same devices, all of the aggregator above."""
    for device in kinds:
        hello = Hello(boot=1, num_examples=100, profile="pi", memory_bytes=2**29, engine="onnx")
        for leaf, content in (("state", State(boot=1, online=True)), ("hello", hello)):
            h.service.handle(Received(topics.up(device, leaf), encode(content)))
    h.wait(1.0)
    for device, kind in kinds.items():
        h.contribute_above(device, *sends(h, device, kind))
    h.service.close_round()
    return h


def assert_same(left, other, step):
    """To one more rounding of means and moments, and of counts to whole numbers.

    Coarse means give scatter below 0 in some directions, which its bounds cut: a tenth of their step shows.
    """
    np.testing.assert_allclose(left.sums.counts, other.sums.counts, rtol=0, atol=1)
    np.testing.assert_array_equal(left.moment_sums.counts, other.moment_sums.counts)
    for own, theirs in ((left.sums, other.sums), (left.moment_sums, other.moment_sums)):
        means, expected = (moments_of.sums / moments_of.counts[:, None] for moments_of in (own, theirs))
        assert (
            np.abs(means - expected).max(axis=1) <= 1.1 * step * np.abs(expected).max(axis=1) + 2e-3
        ).all()
    moment_step = 1.1 * 2.0**-11 + (0.1 * step if step > 2.0**-11 else 0.0)
    assert np.abs(left.moments - other.moments).max() <= moment_step * np.abs(other.moments).max()


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "step"), [("float16", 2.0**-11), ("int8", 1 / 254)])
def test_the_pool_above_is_that_of_all_devices_to_rounding(levels, bundle, sends, numbers, step):
    """Of three kinds at the site."""
    task = {
        "head": "closed-form", "rounds": 2, "min_contributions": 2,
        "statistics": ClassStatistics(numbers=numbers),
    }  # fmt: skip
    kinds = {"a": "full", "b": "few-shot", "c": "zeroth-order", "d": "full"}
    h = levels(FULL, FEW_SHOT, SCALARS, **task)
    h.go().join(*"abc")
    assert "statistics" in {name for kind in h.edge.site_host.site.task.kinds for name in kind.settings}
    through_a_site(h, sends, kinds)
    assert h.counted == [(1, "d", "full", 40), (1, "site", "full", 200)]
    flat = directly(levels(FULL, FEW_SHOT, SCALARS, **{**task, "min_contributions": 9}), sends, kinds)
    assert len(flat.counted) == 4
    merged, expected = pool(h, bundle), pool(flat, bundle)
    assert_same(merged.statistics, expected.statistics, step)
    assert merged.samples == expected.samples
    assert expected.weight - 10 < merged.weight <= expected.weight
    assert 0 < merged.statistics.moment_sums.counts.sum() < merged.statistics.sums.counts.sum()


def test_where_all_of_a_site_s_devices_send_second_moments_nothing_is_said_of_whose_they_are(
    levels, sends, forwarded
):
    h = levels(FULL, head="closed-form", rounds=2, statistics=ClassStatistics(hold_out=0))
    h.go().join("a", "b")
    through_a_site(h, sends, {"a": "full", "b": "full"})
    assert forwarded
    assert all(update.keys() == {ROWS, MOMENTS, SPREAD} for update in forwarded)


def test_a_site_forwards_the_statistics_of_one_round_not_those_before(levels, bundle, sends, forwarded):
    h = levels(FULL, head="closed-form", rounds=3)
    h.go().join("a", "b")
    counts = []
    for number in (1, 2):
        assert h.offer.round == number
        through_a_site(h, sends, {"a": "full", "b": "full"})
        counts.append(read_rows(forwarded[-1][ROWS], 10, 64).counts)
    np.testing.assert_array_equal(*counts)
    total = pool(h, bundle)
    assert (total.rounds, total.samples) == (2, counts[0].sum())


def test_in_rounds_of_scalars_alone_the_statistics_go_up_beside_the_scalars(levels, bundle, sends):
    request = ClassStatistics(smallest_count=1)
    h = levels(SCALARS, head="closed-form", rounds=3, statistics=request)
    h.go().join("a", "b")
    through_a_site(h, sends, {"a": "zeroth-order", "b": "zeroth-order"})
    assert h.counted == [(1, "site", "zeroth-order", 150)]
    total = pool(h, bundle).statistics
    assert total.sums.counts.sum() == pytest.approx(
        150, abs=10
    )  # measured were 80; each count is rounded down
    assert total.moment_sums.counts.sum() == 80
    assert h.service.rounds.store.rounds.closed(1)[0].note == ""
    assert h.offer.base.at == 1  # its devices are told the step, and fetch no checkpoint


def test_classes_of_which_class_means_bring_too_few_samples_stay_at_the_site(levels, bundle, sends):
    h = levels(FULL, MEANS, head="closed-form", rounds=2, statistics=ClassStatistics(smallest_count=8))
    h.go().join("a", "c")
    through_a_site(h, sends, {"a": "full", "c": "class-means"})
    assert h.counted == [(1, "site", "full", 140)]
    total = pool(h, bundle).statistics
    assert (total.sums.counts >= total.moment_sums.counts).all()
    assert total.sums.counts[total.sums.counts > 0].min() >= 8


def test_a_device_of_a_site_that_lies_is_refused_there(levels, sends):
    h = levels(FULL, head="closed-form", rounds=2)
    h.go().join("a", "b")
    kind, update, examples = sends(h, "a", "full")
    wrong = {**update, ROWS: update[ROWS].copy()}
    wrong[ROWS][0, 3] = 9  # of the count, 256 each
    receipt = h.contribute("a", kind, wrong, examples)
    assert receipt.status == "refused"
    assert "class counts sum to" in receipt.reason


def test_devices_that_send_none_are_merged_as_ever(levels, bundle, sends, forwarded):
    h = levels(FULL, head="closed-form", rounds=2)
    h.go().join("a")
    kind, update, examples = sends(h, "a", "full")
    h.contribute("a", kind, class_statistics.split_statistics(update)[0], examples)
    h.wait(1.0)
    assert h.counted == [(1, "site", "full", 90)]
    assert forwarded[-1] == {}
    assert pool(h, bundle).rounds == 0


@pytest.mark.slow
@pytest.mark.parametrize("merged", [False, True])
def test_killed_before_or_after_merging_it_forwards_the_same(levels, bundle, sends, merged):
    kinds = {"a": "full", "b": "few-shot"}

    def played(kill):
        h = levels(FULL, FEW_SHOT, head="closed-form", rounds=2)
        h.go().join("a", "b")
        updates = {device: sends(h, device, kind) for device, kind in kinds.items()}
        h.above.up = not (kill and merged)
        h.contribute("a", *updates["a"])
        if kill and not merged:
            h.kill()
            h.go().join("a", "b")
        h.contribute("b", *updates["b"])
        if kill and merged:
            h.edge.site_host.step(0.001)
            assert h.edge.site_host.site.phase(h.edge.site_host.site.source) == "merged"
            h.kill()
        h.wait(3.0)
        assert h.counted == [(1, "site", "full", 150)]
        store = h.service.rounds.store
        return store.rounds.start(2).base.sha, store.rounds.start(2).carried.memory

    assert played(kill=True) == played(kill=False)


def sums(counts, means):
    return ClassSums(np.array(means, float) * np.array(counts)[:, None], np.array(counts))


@pytest.mark.parametrize("numbers", ["float16", "int8"])
def test_squares_that_rounding_has_made_smaller_than_the_means_allow_are_sent_as_they_must_be(numbers):
    """Two devices whose features are all the same, and were rounded so."""
    sums_ = sums([60, 40], [[1.0, 0.7], [1.0, 0.3]])
    short = Statistics(sums_, sums_, np.array([[99.0, 54.0], [54.0, 32.9]]))
    full = kind_statistics.with_class_statistics(make("full"), ClassStatistics(numbers=numbers))
    sent = forwarding.encoded_statistics(short, full, 100)
    assert class_statistics.rejection_reason(sent, 100, 2, (2, 2)) == ""
    assert class_statistics.decode(sent, (2, 2)).moments.diagonal() == pytest.approx([100, 33], rel=1e-3)


def test_what_the_one_above_would_refuse_is_left_out_and_said(caplog):
    sums_ = sums([6, 4], [[1.0, 0.0], [1.0, 0.0]])
    odd = Statistics(sums_, sums_, np.array([[10.0, 9.0], [9.0, 0.0]]))
    full = kind_statistics.with_class_statistics(make("full"), ClassStatistics())
    assert forwarding.encoded_statistics(odd, full, 10) == {}
    assert "the aggregator above would refuse them: the moment of features 0 and 1 is 0.8999" in caplog.text
    assert forwarding.encoded_statistics(odd, make("full"), 10) == {}


@pytest.mark.parametrize("rich", [FULL, SCALARS])
def test_class_means_alone_go_up_as_class_means_and_leave_the_base_above_as_it_is(
    levels, bundle, sends, rich
):
    h = levels(rich, MEANS, head="closed-form", rounds=2)
    h.go().join("a", "b")
    before = h.service.rounds.weights(1)
    through_a_site(h, sends, {"a": "class-means", "b": "class-means"})
    assert h.counted == [(1, "site", "class-means", 150)]
    after = h.service.rounds.weights(2)
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    total = pool(h, bundle).statistics
    assert total.sums.counts.sum() == pytest.approx(150, abs=10)
    assert 0 < total.moment_sums.counts.sum() <= 80


def test_scalars_and_class_means_of_a_site_go_up_together(levels, bundle, sends):
    h = levels(SCALARS, MEANS, head="closed-form", rounds=2)
    h.go().join("a", "b")
    through_a_site(h, sends, {"a": "zeroth-order", "b": "class-means"})
    assert h.counted == [(1, "site", "zeroth-order", 150)]
    assert pool(h, bundle).statistics.sums.counts.sum() == pytest.approx(150, abs=10)


def test_a_site_passes_on_which_classes_are_rare_and_what_one_class_of_a_device_counts(levels, bundle, sends):
    """Class 7 of device a, class 5 of b; each measures 40 of its samples, and sends no second moments."""
    h = levels(SCALARS, MEANS, head="closed-form", rounds=3)
    h.go().join("a", "b")
    few = {"moments": False, "most_classes": 1}
    updates = {
        device: sends(h, device, "class-means", few, rare) for device, rare in (("a", (7,)), ("b", (5,)))
    }
    for device, (kind, update, examples) in updates.items():
        assert h.contribute(device, kind, update, examples).status == "accepted"
    h.wait(1.0)
    assert h.counted == [(1, "site", "class-means", 150)]
    counts = pool(h, bundle).statistics.sums.counts
    for label, device, samples in ((7, "a", 90), (5, "b", 60)):
        measured = np.frombuffer(updates[device][1][ROWS][0, 2:6].tobytes(), "<u4")[0]
        assert counts[label] == pytest.approx(measured * samples / 40, abs=1)
    assert np.flatnonzero(counts).tolist() == [5, 7]
    assert h.service.offers.offer(2, 1.0, 1.0).rare == (0, 1, 2, 3, 4, 6, 8, 9)
    h.wait(1.0)
    assert h.edge.site_host.site.source.rare == (0, 1, 2, 3, 4, 6, 8, 9)
    assert h.edge.site_host.site._service.offers.offer(2, 1.0, 1.0).rare == (0, 1, 2, 3, 4, 6, 8, 9)


def test_more_samples_measured_than_counted_are_sent_as_no_more():
    """As of entropy subsets, which measure all samples and count as those selected."""
    sums_ = sums([60, 40], [[1.0, 0.7], [1.0, 0.3]])
    moments = np.array([[100.0, 54.0], [54.0, 40.0]])
    full = kind_statistics.with_class_statistics(make("full"), ClassStatistics())
    sent = forwarding.encoded_statistics(Statistics(sums_, sums_, moments), full, 33)
    assert class_statistics.rejection_reason(sent, 33, 2, (2, 2)) == ""
    read = class_statistics.decode(sent, (2, 2))
    assert read.sums.counts.tolist() == read.moment_sums.counts.tolist() == [19, 13]
    np.testing.assert_allclose(read.moments / 32, moments / 100, rtol=1e-2)


def test_moments_that_overflow_are_not_sent_and_said(caplog):
    sums_ = sums([60, 40], [[1.0, 0.7], [1.0, 0.3]])
    full = kind_statistics.with_class_statistics(make("full"), ClassStatistics())
    assert forwarding.encoded_statistics(Statistics(sums_, sums_, np.full((2, 2), 1e45)), full, 100) == {}
    assert "class statistics of the site are not sent" in caplog.text


def test_a_site_forwards_the_sum_of_what_its_devices_have_counted(levels, bundle, sends, forwarded):
    """In the second round, to which the head in closed form came; the class means of one count too."""
    h = levels(FULL, MEANS, head="closed-form", rounds=3, statistics=ClassStatistics(hold_out=0.2))
    h.go().join("a", "c")
    through_a_site(h, sends, {"a": "full", "c": "full"})
    assert forwarded[-1][RIGHT].shape == (0, 3)
    assert h.edge.site_host.site is not None and h.offer.aside is not None
    first, other = ({RIGHT: np.array([counts], np.int32)} for counts in ([18, 2, 9], [10, 1, 5]))
    for device, kind, right in (("a", "full", first), ("c", "class-means", other)):
        _, update, examples = sends(h, device, kind)
        receipt = h.contribute(device, kind, {**update, **right}, examples)
        assert receipt.status == "accepted", receipt.reason
    h.wait(1.0)
    assert forwarded[-1][RIGHT].tolist() == [[28, 3, 14]]
    assert pool(h, bundle).statistics.right.tolist() == [28, 3, 14]
    assert "28 held-out samples 3 right" in h.service.rounds.store.rounds.closed(2)[0].note


def test_a_site_of_class_means_alone_forwards_them_whichever_head_its_devices_find_better(
    levels, bundle, sends, forwarded
):
    h = levels(FULL, MEANS, head="closed-form", rounds=3, statistics=ClassStatistics(hold_out=0.2))
    h.go().join("a", "b")
    for number in (1, 2):
        _, update, examples = sends(h, "a", "class-means")
        right = {RIGHT: np.array([[18, 2, 9]], np.int32)}
        assert h.contribute("a", "class-means", {**update, **right}, examples).status == "accepted"
        h.contribute("b", *sends(h, "b", "class-means"))
        h.wait(1.0)
        assert h.counted[-1] == (number, "site", "class-means", 72 + 48)
    assert forwarded[-1][RIGHT].tolist() == [[18, 2, 9]]


def test_more_held_out_samples_than_the_one_above_believes_are_sent_as_no_more():
    """As of entropy subsets, which hold out of all samples and count as those selected."""
    sums_ = sums([60, 40], [[1.0, 0.7], [1.0, 0.3]])
    full = kind_statistics.with_class_statistics(make("full"), ClassStatistics(hold_out=0.2))
    moments = np.array([[100.0, 54.0], [54.0, 40.0]])
    sent = forwarding.encoded_statistics(
        Statistics(sums_, sums_, moments, np.array([25.0, 10, 20])), full, 39
    )
    assert sent[RIGHT].tolist() == [[11, 4, 8]]
    assert held_out.rejection_reason(sent[RIGHT], 0.2, 39) == ""
