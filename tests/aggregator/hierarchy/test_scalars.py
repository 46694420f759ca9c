"""Rounds of scalars alone at a site: its devices are told steps, as those of the aggregator above are."""

from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.hierarchy import site_host as ground
from device_runtime.aggregator.hierarchy.forwarding import steps_between
from device_runtime.aggregator.hierarchy.site import leads
from device_runtime.aggregator.hierarchy.site_host import SiteRules
from device_runtime.aggregator.rounds import run as run_module
from device_runtime.aggregator.storage import bases
from device_runtime.aggregator.storage.run_files import SEEDS, GivenRound, GivenRoundStore
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.messages import Base, Blob, Offer
from device_runtime.broker.wire.messages import Step as LogStep
from device_runtime.strategies.directions import directions

KIND = "zeroth-order"


def scalars(seed):
    return {"g": np.random.default_rng(seed).normal(size=2).astype(np.float32)}


def site(levels):
    """What the site has on its disk."""
    return levels.edge.site_host.site._service.rounds


def same_model(levels):
    """Whether the site distributes, bit for bit, what the aggregator above does; from its disk."""
    number, here = levels.offer.round, site(levels)
    here.store.latest = None  # what it remembers is not what a later life has
    weights, expected = here.weights(number), levels.service.rounds.weights(number)
    return all(np.array_equal(weights[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_devices_of_a_site_are_told_steps_and_fetch_no_checkpoint(levels):
    h = levels(KIND, rounds=6, min_contributions=2)
    h.go().join("a", "b")
    for number in range(1, 6):
        assert h.offer.round == number
        assert same_model(h)
        for name in "ab":
            assert h.contribute(name, KIND, scalars(number), 30).status == "accepted"
        h.go().contribute_above("direct", KIND, scalars(-number % 99), 30)
        h.wait(1.0)
    assert h.offer.round == 6
    assert h.offer.base.at == 5
    above = h.service.rounds.store.rounds.start(6).base
    assert h.offer.base.sha == above.sha[:4]
    assert h.offer.seed == h.service.rounds.seed(6)
    assert {site(h).store.rounds.start(n).base.checkpoint for n in range(1, 7)} == {
        site(h).store.rounds.start(1).base.checkpoint
    }
    assert [length for length in h.lengths if length < 40] == h.lengths[-4:]  # the second says how steps are


@pytest.mark.slow
def test_a_site_that_was_killed_or_has_missed_rounds_goes_on_by_steps(levels):
    h = levels(KIND, rounds=9)
    h.go().join("a")
    h.contribute("a", KIND, scalars(1), 30)
    h.go()
    h.kill()
    h.go().join("a")
    assert (h.offer.round, h.offer.base.at) == (2, 1)
    assert same_model(h)
    h.above.up = False
    for number in (2, 3, 4):
        h.contribute_above("direct", KIND, scalars(number), 30)
        h.service.close_round()
    h.kill()
    h.go().join("a")
    assert (h.offer.round, h.offer.base.at) == (5, 4)
    assert same_model(h)
    begun = site(h).store.rounds.start(1).base
    assert (h.offer.base.line, h.offer.base.checkpoint) == (begun.line, begun.checkpoint)
    assert h.contribute("a", KIND, scalars(5), 30).status == "accepted"
    h.wait(3.0)
    assert h.counted[-1] == (5, "site", KIND, 30)
    assert same_model(h)


@pytest.mark.slow
def test_a_site_goes_on_when_a_segment_of_its_log_is_full_and_what_was_before_it_is_pruned(
    levels, monkeypatch
):
    """The tail of an offer, and the log, need the steps to what the last round was given with."""
    monkeypatch.setattr(ground, "Task", partial(Task, keep_versions=1))
    for module in (bases, run_module, steps):
        monkeypatch.setattr(module, "SEGMENT", 6)
    for module in (run_module, steps):
        monkeypatch.setattr(module, "TAIL", 4)
    h = levels(KIND, rounds=12)
    h.go().join("a")
    for number in range(1, 11):
        assert (h.offer.round, h.offer.base.at) == (number, number - 1)
        assert h.contribute("a", KIND, scalars(number), 30).status == "accepted"
        h.wait(1.0)
    assert h.offer.round == 11
    assert same_model(h)
    assert not site(h).store.step_history.has(11, 6)


@pytest.mark.parametrize("tail", [32, 1])
def test_a_site_that_was_away_while_the_run_went_back_twice_to_one_model_takes_no_step_of_another_branch(
    levels, monkeypatch, tail
):
    """The lines that begin there have one name; the second is further than the site was on the first. With a
    tail of one step the offer does not say what was there before it.
    """
    for module in (run_module, steps):
        monkeypatch.setattr(module, "TAIL", tail)
    h = levels(KIND, rounds=20)
    h.go().join("a")
    h.contribute("a", KIND, scalars(1), 30)
    h.wait(1.0)
    h.service._run.go_back(1)
    for number in (2, 3, 4):  # the first of them is given up
        assert h.contribute("a", KIND, scalars(number), 30).status == "accepted"
        h.wait(1.0)
    store = h.service.rounds.store
    assert (h.offer.round, store.rounds.start(5).base.at) == (5, 2)
    h.above.up = False
    h.service._run.go_back(1)
    for number in (5, 6, 7, 8):
        assert h.service.state.round == number
        h.contribute_above("direct", KIND, scalars(number), 30)
        h.service.close_round()
    assert (store.rounds.start(9).base.line, store.rounds.start(9).base.at) == (
        store.rounds.start(5).base.line,
        3,
    )
    h.kill()
    h.go().join("a")
    assert h.offer.round == 9
    assert same_model(h)
    assert h.contribute("a", KIND, scalars(9), 30).status == "accepted"
    h.wait(3.0)
    assert h.counted[-1] == (9, "site", KIND, 30)
    assert same_model(h)


def test_late_scalars_count_where_weights_are_forwarded_along_the_directions_of_their_round(levels):
    h = levels("full", KIND, rounds=4, rules=SiteRules(late="count"))
    h.go().join("a", "b")
    h.contribute("a", KIND, scalars(1), 30)
    h.leave("b")
    h.join("b", "c")
    assert h.offer.round == 2
    assert h.contribute("b", KIND, scalars(2), 10, round=1).status == "accepted"
    h.sit_out("b")
    assert h.contribute("c", KIND, scalars(3), 10).status == "accepted"
    h.above.up = False
    h.leave("a")
    seeds = [h.service.rounds.seed(number) for number in (1, 2)]
    assert [step.seed for step in site(h).store.step_history.last(3, 2)] == seeds
    h.kill()
    h.go()
    assert h.counted[-1] == (2, "site", "full", 20)


def test_late_scalars_of_rounds_of_scalars_alone_do_not_count(levels):
    h = levels(KIND, rounds=4, rules=SiteRules(late="count"))
    h.go().join("a", "b")
    h.contribute("a", KIND, scalars(1), 30)
    h.leave("b")
    h.join("b")
    assert h.contribute("b", KIND, scalars(2), 10, round=1).status == "late"


def offer(at, line=b"linelinE", tail=()):
    blob = Blob(bytes(32), 1)
    return Offer(
        task="t", run="r", round=at + 1, seed=0, deadline_s=1.0, remaining_s=1.0, bundle=blob, kinds=(),
        base=Base((blob,), bytes(32), line, steps=at, at=at, tail=steps.pack(tail, 5)),
    )  # fmt: skip


TAIL = [LogStep(n, "g", steps.round_seed(5, n), "all", 0.1, 1.0, (0.5,)) for n in range(1, 7)]
ONE, OTHER = TAIL[:3], TAIL[3:]
"""Of two lines that begin with the same model."""


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, offer(3, tail=ONE), None),
        (offer(0), offer(3, tail=ONE), tuple(ONE)),
        (offer(1, tail=ONE[:1]), offer(3, tail=ONE), tuple(ONE[1:])),
        (offer(3, tail=ONE), offer(3, tail=ONE), ()),
        (offer(0), offer(4, tail=ONE), None),
        (offer(4, tail=ONE), offer(3, tail=ONE), None),
        (offer(2, line=b"another."), offer(3, tail=ONE), None),
        (offer(1, tail=ONE[:1]), offer(3, tail=OTHER), None),
        (offer(3, tail=ONE), offer(3, tail=OTHER), None),
    ],
)
def test_steps_lead_from_one_offer_to_another_on_the_same_line_where_it_has_them_all(before, now, expected):
    def never(steps):
        raise AssertionError("the offers say it themselves")

    assert steps_between(before, now, never) == expected


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (offer(2, tail=ONE[:2]), offer(3, tail=ONE[2:])),
        (offer(2), offer(3, tail=ONE)),
    ],
)
@pytest.mark.parametrize("lead", [True, False])
def test_where_offers_have_no_step_in_common_it_is_tried_whether_steps_lead_there(before, now, lead):
    questions = []
    lead_steps = steps_between(before, now, lambda steps: questions.append(steps) or lead)
    assert lead_steps == ((ONE[2],) if lead else None)
    assert questions == [(ONE[2],)]


def test_seeds_of_earlier_rounds_outlive_the_process_and_are_bounded(tmp_path):
    base = Base((Blob(bytes(32), 1),), bytes(32))
    outside = GivenRoundStore(tmp_path)
    for number in range(2, 2 * SEEDS + 2, 2):
        outside.keep(GivenRound(number, 1000 + number, 9.0, base, CarriedBlobs(), b""))
        outside.keep(GivenRound(number, 1000 + number, 5.0, base, CarriedBlobs(), b""))
    outside.keep(GivenRound(1000, 7, 9.0, base, CarriedBlobs(), b""))
    again = GivenRoundStore(tmp_path)
    assert (again.seed(1000), again.seed(2 * SEEDS), again.seed(2)) == (7, 1000 + 2 * SEEDS, 1002)
    again.keep(GivenRound(1001, 8, 9.0, base, CarriedBlobs(), b""))
    for number in (2, 999):
        with pytest.raises(KeyError):
            again.seed(number)


@pytest.mark.parametrize(
    "change", [{}, {"generator": "of a later version"}, {"scalars": ()}, {"tunable": "?"}]
)
def test_steps_that_cannot_be_taken_lead_to_no_base(levels, change):
    h = levels(KIND, rounds=3)
    h.go().join("a")
    rounds = site(h)
    round_ = SimpleNamespace(base=rounds.weights(1))
    assert leads(rounds, 1, round_, ())
    wrong = {"generator": directions.GENERATOR, "tunable": "all"} | change
    assert not leads(rounds, 1, round_, (msgspec.structs.replace(TAIL[0], **wrong),))
