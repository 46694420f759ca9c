"""Links so slow, or so bad, that whatever is said too often or at the wrong moment shows."""

import msgspec
import pytest

from device_runtime.aggregator.machine.run_events import DeviceSeen, RoundExtended, RoundOpened
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import topics
from device_runtime.profiles import Bandwidth
from tests.simulation.wire.run import AggregatorKilled, LinkLost, WireCourse, run_on_wire

KINDS = ("full", "entropy-subset", "few-shot", "zeroth-order")


def task(*kinds, **changes):
    chosen = tuple(KindSettings(name=kind) for kind in kinds)
    return Task(
        **{"bundle": "digits-wrn-10-1", "rounds": 3, "round_deadline_s": 5000.0, "kinds": chosen, **changes}
    )


def sizes_of(finished, leaf):
    """What arrived at the broker on this topic of the only device's, or below it."""
    return [p for p in finished.log if p.up and p.topic.startswith(topics.up("alone", leaf))]


@pytest.mark.parametrize(("kind", "uplink", "blocks"), [("few-shot", 50.0, 0), ("full", 5000.0, 5)])
def test_a_link_that_takes_a_minute_for_an_update_carries_it_once(one_member, kind, uplink, blocks):
    member = one_member("pi-5", bandwidth=Bandwidth(uplink, 1e6))
    finished = run_on_wire(task(kind), [member], WireCourse(until_s=1000))
    assert len(sizes_of(finished, "contribution")) == 3
    assert len(sizes_of(finished, "block")) == 3 * blocks
    for number, record in enumerate(finished.rounds, start=1):
        sent = sum(c.bytes_up for _, c in finished.contributions if c.round == number)
        assert record.duration_s == pytest.approx(sent / uplink, rel=0.02)
        assert record.duration_s > 50


def test_a_device_that_was_there_before_the_aggregator_loses_no_time(one_member):
    """It hears of the lobby, for which nothing comes unasked, and asks at once."""
    away = AggregatorKilled(0.0, 10.0)
    finished = run_on_wire(task("class-means", rounds=1), [one_member("pi-5")], WireCourse(faults=(away,)))
    down = [p.at_s for p in finished.log if p.client == "alone" and not p.up]
    opened = next(at for at, what in finished.events if isinstance(what, RoundOpened))
    assert min(down) >= 10.0
    assert opened - min(down) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("deadline_s", [0.8, 1.0, 1.3, 2.0])
def test_an_update_does_not_come_late_because_of_the_words_about_it(one_member, deadline_s):
    """At 300 B/s the whole plan would take 0.8 s and the update 0.6 s; words go where there is time."""
    member = one_member("jetson-nano", bandwidth=Bandwidth(300.0, 1e6))
    finished = run_on_wire(
        task(*KINDS, round_deadline_s=deadline_s, min_contributions=1, head="trained"),
        [member],
        WireCourse(until_s=100),
    )
    assert [record.kind for _, record in finished.contributions] == ["zeroth-order"] * 3
    assert not any(isinstance(what, RoundExtended) for _, what in finished.events)
    assert all(record.duration_s < deadline_s for record in finished.rounds)
    reasons = {record.why for _, record in finished.contributions}
    if deadline_s >= 1.3:
        assert all(why.startswith("full needs") for why in reasons)


@pytest.mark.slow
def test_a_device_whose_link_fails_for_a_moment_while_it_computes_is_waited_for(mixed, members):
    """The broker has spoken its will; it is here again long before it has computed: its link says so."""
    pair = [member for member in members if member.name in ("phone-a", "jetson")]
    one_round = msgspec.structs.replace(mixed, rounds=1, min_devices=2, min_contributions=1)
    calm = run_on_wire(one_round, pair, WireCourse(1, until_s=100))
    (first_s, first), (last_s, last) = calm.contributions
    assert (first.device, last.device) == ("phone-a", "jetson")
    begins_s = first_s - 0.5 * first.train_time_s
    loss = LinkLost(begins_s, begins_s + 0.1, "jetson")
    finished = run_on_wire(one_round, pair, WireCourse(1, (loss,), keepalive_s=0.02, until_s=100))
    moments = [at for at, what in finished.events if what == DeviceSeen("jetson", False)]
    assert loss.at_s < moments[0] < loss.back_at < first_s < last_s - 0.1
    assert [(at, record.device) for at, record in finished.contributions] == [
        (pytest.approx(first_s), "phone-a"), (pytest.approx(last_s, abs=0.001), "jetson")
    ]  # fmt: skip
