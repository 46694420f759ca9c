"""An aggregator, an edge and the edge's devices, on one clock: what is merged twice is as if merged once."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.hierarchy.site_host import SiteRules
from device_runtime.aggregator.storage.run_files import GivenRoundStore
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Connected, Received
from device_runtime.broker.wire.messages import Contribution, Hello, Plan, Step, encode
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.strategies.directions.replaying import ScalarMoment, relative, unit
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

LATE = {"late": "count", "max_staleness": 2}


def moved(bundle, seed):
    """Random full updates near the bundle's weights, running statistics too."""
    rng = np.random.default_rng(seed)
    weights = bundle.weights()
    update = {}
    for spec in FedAvg().expected(bundle.manifest):
        noise = (
            np.abs(rng.normal(size=spec.shape)) if "running_var" in spec.name else rng.normal(size=spec.shape)
        )
        update[spec.name] = (weights[spec.name] + 0.1 * noise).astype(spec.dtype)
    return update


def flat(updates, weights):
    """FedAvg (McMahan et al. 2017, algorithm 1), in float64."""
    total = sum(weights)
    return {
        name: sum(n * u[name].astype(np.float64) for u, n in zip(updates, weights, strict=True)) / total
        for name in updates[0]
    }


def test_two_levels_of_full_updates_are_one_fedavg_to_the_rounding_of_a_float(levels, bundle):
    h = levels("full", rounds=1, min_contributions=2)
    h.go().join("a", "b")
    updates, sizes = [moved(bundle, seed) for seed in range(3)], [31, 7, 64]
    assert h.contribute("a", "full", updates[0], sizes[0]).status == "accepted"
    assert h.contribute("b", "full", updates[1], sizes[1]).status == "accepted"
    h.go()
    assert h.counted == [(1, "site", "full", 38)]
    rounds = h.service.rounds
    h.contribute_above("direct", "full", updates[2], sizes[2])
    h.wait(1.0)
    assert h.service.state.phase == "done"
    merged, expected = rounds.weights(2), flat(updates, sizes)
    for name, value in expected.items():
        error = np.abs(merged[name].astype(np.float64) - value).max()
        assert error <= 2 * np.finfo(np.float32).eps * np.abs(value).max(), name


def test_what_the_devices_of_a_site_cost_and_lost_is_told_above(levels, bundle):
    h = levels("full", rounds=1)
    h.go().join("a", "b")
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.contribute("b", "full", moved(bundle, 2), 10)
    h.go()
    [record] = h.service.rounds.store.contributions.records(1)
    assert (record.train_loss, record.train_time_s, record.energy_j) == (0.5, 3.0, 4.0)
    assert record.peak_memory_bytes == 1024 * 1024
    assert record.why == "of 2 devices: 2 full"


def test_an_edge_is_ready_when_enough_of_its_devices_are_and_no_longer(levels):
    h = levels("full", rules=SiteRules(min_devices=2))
    h.go().join("a", samples=30)
    assert {hello.num_examples for hello in h.said_above("hello", Hello)} == {0}
    assert h.service.state.round == 0
    h.join("b", samples=12)
    assert h.said_above("hello", Hello)[-1].num_examples == 42
    assert h.service.state.round == 1
    h.leave("b")
    assert h.said_above("hello", Hello)[-1].num_examples == 0


def test_strangers_without_end_are_not_remembered_for_the_next_site(levels, monkeypatch):
    monkeypatch.setattr("device_runtime.aggregator.hierarchy.site_host.MOST_DEVICES", 3)
    h = levels("full", rules=SiteRules(min_devices=2))
    h.go().join("a", "b")
    h.join(*(f"stranger-{number}" for number in range(20)))
    assert len(h.edge.site_host._present) == 3
    assert {"a", "b"} <= set(h.edge.site_host._present)


def test_a_hello_that_is_too_long_is_not_remembered_for_the_next_site(levels):
    h = levels("full", rules=SiteRules(min_devices=2))
    h.go().join("a")
    hello = h.edge.site_host._present["a"]["hello"]
    h.edge.site_host._take(replace(hello, topic=hello.topic.replace("/a/", "/b/"), payload=bytes(3000)))
    assert set(h.edge.site_host._present) == {"a"}


def test_the_site_offers_the_base_the_seed_and_the_kinds_of_the_round_above_with_less_time(levels):
    h = levels("full", "zeroth-order")
    h.go().join("a")
    above = h.service.offers.offer(1, 100.0, 100.0)
    assert (h.offer.round, h.offer.seed, h.offer.base, h.offer.bundle) == (
        1,
        above.seed,
        above.base,
        above.bundle,
    )
    assert h.offer.kinds == above.kinds
    assert 85.0 < h.offer.remaining_s <= 90.0


def test_scalars_along_the_directions_of_the_round_above_move_what_the_site_forwards(levels, bundle):
    h = levels("full", "zeroth-order", rounds=1)
    h.go().join("a")
    h.contribute("a", "zeroth-order", {"g": np.array([0.5, -0.25], np.float32)}, 40)
    h.go()
    assert h.counted == [(1, "site", "full", 40)]
    changed = h.service.rounds.weights(2)
    assert any(not np.array_equal(changed[n], v) for n, v in bundle.weights().items())


def scalars(seed, num_z):
    return {"g": np.random.default_rng(seed).normal(size=num_z).astype(np.float32)}


@pytest.mark.parametrize("sizing", ["absolute", "relative"])
def test_scalars_through_a_site_are_one_mean_of_all_to_the_rounding_of_a_float(levels, bundle, sizing):
    """Two devices of a site and one above, for two rounds."""
    settings = {"num_z": 4, "sizing": sizing}
    kind = KindSettings(name="zeroth-order", settings=settings)
    h = levels(kind, rounds=2, min_contributions=2)
    h.go().join("a", "b")
    sizes, moment = (31, 7, 64), ScalarMoment()
    length = unit(bundle.weights(), bundle.manifest.specs("all"), sizing)
    for number in (1, 2):
        sent = [scalars(10 * number + place, 4) for place in range(3)]
        for name, update, size in zip("ab", sent, sizes, strict=False):
            here = {"g": update["g"] / np.float32(length)}  # what it measures over as many times the length
            assert h.contribute(name, kind.name, here, size).status == "accepted"
        h.go().contribute_above("direct", kind.name, sent[2], sizes[2])
        h.wait(1.0)
        expected = flat(sent, sizes)["g"]
        moment = moment.after(float(np.square(expected).mean()), kind.strategy.beta)
        if sizing == "relative":
            expected = relative(expected, moment.usual)
        step = _log(h)[-1]
        assert step.round == number
        off = np.abs(np.subtract(step.scalars, expected)).max()
        assert off <= 2 * np.finfo(np.float32).eps * np.abs(expected).max()
    assert h.counted == [
        (number, device, kind.name, size)
        for number in (1, 2)
        for device, size in (("direct", 64), ("site", 38))
    ]
    forwarded = h.said_above("contribution", Contribution)
    assert all(len(encode(message)) < 300 for message in forwarded), "weights went up"


def test_a_device_of_a_site_measures_what_it_would_measure_for_the_one_above(bundle):
    """Relative lengths are a power of two of absolute ones: the scalars are the same but for that."""
    rng, zeroth_order = np.random.default_rng(0), ZerothOrder(sizing="relative")
    data = LocalData(
        rng.normal(size=(20, *bundle.manifest.input.shape)).astype(np.float32), rng.integers(10, size=20)
    )
    here, factor = zeroth_order.at_site(bundle.weights(), bundle.manifest)
    assert (here.sizing, here.eps != zeroth_order.eps) == ("absolute", True)
    model, run = OnnxModel(bundle), Run(7, "a", lambda: 0.0, 1.0)
    above, below = (kind.train(model, data, run).tensors["g"] for kind in (zeroth_order, here))
    np.testing.assert_array_equal(below * np.float32(factor), above)


def _log(levels):
    """The steps that the aggregator above has taken."""
    rows = levels.service.rounds.store._db.rows("SELECT step FROM steps ORDER BY round, position")
    return [msgspec.msgpack.decode(row["step"], type=Step) for row in rows]


def test_an_edge_that_is_killed_goes_on_with_what_its_site_has_acknowledged(levels, bundle):
    h = levels("full", rounds=2)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    run = h.offer.run
    h.kill()
    h.go().join("a", "b")
    assert (h.offer.run, h.offer.round) == (run, 1)
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "duplicate"
    h.wait(2.0)
    assert h.counted == []
    assert h.contribute("b", "full", moved(bundle, 2), 10).status == "accepted"
    h.go()
    assert h.counted == [(1, "site", "full", 40)]


def test_another_run_above_does_not_delete_a_site_with_contributions_to_forward(levels, bundle, caplog):
    h = levels("full", rounds=2)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    source = h.edge.site_host.site.source
    other = msgspec.structs.replace(source, run="another")
    for offer in (other, source):
        h.edge.agent.inbox.put(Received(topics.down("site", "task"), encode(offer)))
        h.go()
    assert "1 contributions of its open round were not forwarded" in caplog.text
    h.join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "duplicate"
    assert h.contribute("b", "full", moved(bundle, 2), 10).status == "accepted"
    h.wait(2.0)
    assert h.counted == [(1, "site", "full", 40)]


def test_another_run_above_deletes_a_site_that_has_nothing_to_forward(levels, bundle):
    h = levels("full", rounds=2)
    h.go().join("a", "b")
    before = h.edge.site_host._at
    other = msgspec.structs.replace(h.edge.site_host.site.source, run="another")
    h.edge.agent.inbox.put(Received(topics.down("site", "task"), encode(other)))
    h.go()
    assert h.edge.site_host._at != before
    assert not before.exists()


@pytest.mark.slow
@pytest.mark.parametrize("left", [None, b""], ids=["never written", "lost in a power cut"])
def test_an_edge_goes_on_without_the_file_that_is_for_people(levels, bundle, left):
    h = levels("full", rounds=2)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    [description] = (h.folder / "site" / "site").glob("*/*/task.json")
    description.unlink() if left is None else description.write_bytes(left)
    h.kill()
    h.go().join("a", "b")
    assert h.contribute("b", "full", moved(bundle, 2), 10).status == "accepted"
    h.wait(2.0)
    assert h.counted == [(1, "site", "full", 40)]


def test_an_edge_goes_on_in_the_folder_that_an_older_version_named(levels, bundle):
    h = levels("full", rounds=2)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.kill()
    [description] = (h.folder / "site" / "site").glob("*/*/task.json")
    settings = msgspec.json.decode(description.read_bytes())
    del settings["title"], settings["about"], settings["ask"]
    description.write_bytes(msgspec.json.encode(settings))
    description.parent.rename(description.parent.with_name("named-before"))
    h.go().join("a", "b")
    assert h.contribute("b", "full", moved(bundle, 2), 10).status == "accepted"
    h.wait(2.0)
    assert h.counted == [(1, "site", "full", 40)]


def test_an_edge_that_comes_back_when_time_is_nearly_over_forwards_what_its_site_has(levels, bundle):
    h = levels("full", rounds=2, round_deadline_s=1.0)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.now += 0.8
    h.kill()
    h.go()
    assert h.counted == [(1, "site", "full", 30)]


@pytest.mark.slow
def test_killed_between_merging_and_sending_it_forwards_the_same_once(levels, bundle):
    h = levels("full", rounds=2)
    h.go().join("a")
    h.above.up = False
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.edge.site_host.step(0.001)  # the site has merged, the agent has not had its turn
    assert h.edge.site_host.site.phase(h.edge.site_host.site.source) == "merged"
    h.kill()
    h.go()
    assert h.counted == [(1, "site", "full", 30)]
    h.kill()
    h.go().join("a")
    assert h.counted == [(1, "site", "full", 30)]
    assert h.offer.round == 2


def test_what_is_finished_while_the_link_above_is_down_waits_in_the_outbox_through_a_kill(levels, bundle):
    h = levels("full", rounds=2)
    h.go().join("a")
    h.above.up = False
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.go()
    assert h.counted == []
    assert len(list((h.folder / "site" / "outbox").glob("*.msg"))) == 1
    h.above.up = True
    h.edge.agent.inbox.put(Connected(first=False))
    h.go()
    assert h.counted == [(1, "site", "full", 30)]


def test_what_a_site_has_when_the_round_above_is_over_comes_late_and_counts_where_late_counts(levels, bundle):
    h = levels("full", rounds=3, min_devices=1, **LATE)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.service.close_round()
    h.go()
    assert h.counted == [(1, "site", "full", 30)]
    assert h.service.rounds.store.session.saved().round == 2
    assert h.offer.round == 2


@pytest.mark.slow
@pytest.mark.parametrize(("late", "status"), [("discard", "late"), ("count", "accepted")])
def test_a_device_that_comes_after_the_site_s_round_is_told_so(levels, bundle, late, status):
    h = levels("full", rounds=3, rules=SiteRules(late=late))
    h.go().join("a", "b")
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.leave("b")
    h.go().join("b")
    assert h.offer.round == 2
    assert h.contribute("b", "full", moved(bundle, 2), 10, round=1).status == status


def test_a_site_whose_devices_all_sit_out_sits_out_with_the_first_one_s_reason(levels):
    h = levels("full", rounds=1)
    h.go().join("a", "b")
    h.sit_out("a").sit_out("b")
    h.wait(1.5)
    plan = h.said_above("plan", Plan)[-1]
    assert plan.kind == ""
    assert plan.reasons == (
        "no device of the site takes part: 2 sitting out, a as full needs 9.0 s of 2.0 s (compute)",
    )
    assert h.counted == []


def test_a_site_of_which_nobody_answers_sits_out_and_goes_on_when_the_round_above_is_extended(levels, bundle):
    h = levels("full", rounds=1)
    h.go().join("a")
    h.wait(91.0)
    plan = h.said_above("plan", Plan)[-1]
    assert (plan.kind, plan.reasons) == ("", ("none of the 1 devices of the site has answered in time",))
    h.wait(10.0)  # the round above has nothing either, and is extended
    assert h.offer.round == 1
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.go()
    assert h.counted == [(1, "site", "full", 30)]


def test_of_fewer_than_it_needs_a_site_forwards_nothing(levels, bundle):
    h = levels("full", rounds=1, rules=SiteRules(min_contributions=2))
    h.go().join("a", "b")
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.wait(91.0)
    assert h.said_above("plan", Plan)[-1].reasons == ("1 of 2 contributions of the site came in time",)
    assert h.counted == []


def test_what_came_in_time_is_forwarded_also_where_the_site_s_disk_was_slow(levels, bundle, monkeypatch):
    h = levels("full", rounds=1)
    real = GivenRoundStore.keep

    def slow(self, inputs):
        h.now += 0.3  # the site's own deadline is counted from here
        real(self, inputs)

    monkeypatch.setattr(GivenRoundStore, "keep", slow)
    h.go().join("a", "b")
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.now = 190.1  # the tenth that is kept free has begun
    h.go()
    assert [plan.kind for plan in h.said_above("plan", Plan)] == ["full"]
    assert h.counted == [(1, "site", "full", 30)]


def test_a_round_that_asks_for_no_full_updates_is_sat_out_and_the_next_is_not(levels, bundle):
    kinds = (KindSettings(name="few-shot", until_round=1), KindSettings(name="full", from_round=2))
    h = levels(*kinds, rounds=2)
    h.go().join("a")
    [reason] = h.said_above("plan", Plan)[-1].reasons
    assert reason.startswith("round 1 asks for few-shot, and a site forwards full updates or scalars")
    h.service.close_round()
    h.go()
    assert h.contribute("a", "full", moved(bundle, 1), 30).status == "accepted"
    h.go()
    assert h.counted == [(2, "site", "full", 30)]


def test_when_all_is_over_above_the_site_s_devices_are_told(levels, bundle):
    h = levels("full", rounds=1)
    h.go().join("a")
    h.contribute("a", "full", moved(bundle, 1), 30)
    h.go()
    assert h.offer.done
    h.wait(3.0)
    assert h.edge.finished
    assert set(h.below.retained.values()) == {b""}


@pytest.mark.slow
def test_killed_again_and_again_after_any_number_of_steps_it_counts_each_round_once(levels, bundle):
    h = levels("full", rounds=4)

    def steps(count):
        for _ in range(count):
            h.edge.step(0.001)
            h.service.tick()

    def train():
        if h.below.retained and h.offer.round > 0 and not h.offer.done:
            h.contribute("a", "full", moved(bundle, h.offer.round), 30)

    for life in range(40):
        h.kill()
        h.announce("a")
        steps(life % 9)
        train()
        h.now += 0.4
        steps(life % 4)
    for _ in range(12):
        if h.service.state.phase == "done":
            break
        h.join("a")
        train()
        h.wait(2.0)
    assert h.service.state.phase == "done"
    assert h.counted == [(number, "site", "full", 30) for number in range(1, 5)]
