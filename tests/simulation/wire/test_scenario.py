"""The fast simulator against the wire: the same decisions, participants and weights."""

import numpy as np
import pytest

from device_runtime.aggregator.machine.run_events import PlanReported, RoundOpened
from device_runtime.simulation.demo.fleet import MIXED
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import Scenario
from tests.simulation.wire.run import WireCourse, members, perform

KINDS = [
    {"name": k.name, "settings": dict(k.settings), "from_round": k.from_round}
    for k in MIXED
    if k.name != "width-slice"
]
"""Reasons of a sixth kind would make plans longer, which take time behind the narrow uplink alone."""
SEED = 5
SHARES = {"phone-high": 0.25, "pi-5": 0.25, "jetson-nano": 0.25, "pi-zero-2w": 0.125}
BROAD = 1e5
"""Bytes per second, over which a device's plan and the envelopes of messages take no time worth counting."""


class Noted(NullObserver):
    def __init__(self):
        self.asks, self.lines = [], []

    def asked(self, ask):
        self.asks.append(ask)

    def closed(self, line):
        self.lines.append(line)


def scenario(tmp_path, devices=8, sigma=0.0, latency_s=0.0, **task):
    """Boards that differ, with log-normal speeds and bandwidths; nothing is drawn anew in each round.

    Groups are drawn in the order of their names, hence the numbers. The last one is behind a narrow uplink.
    Links are scaled so that the model weighs on none.
    """
    speed, link = {"sigma": sigma}, {"sigma": sigma, "latency_s": latency_s}
    groups = {
        f"{number}-{name}": {"profile": name, "share": share, "speed": speed}
        for number, (name, share) in enumerate(SHARES.items())
    }
    groups = {name: {**group, "link": {**link, "down_bytes_per_s": 2e7}} for name, group in groups.items()}
    narrow = {**link, "up_bytes_per_s": 500.0, "down_bytes_per_s": 2e7}
    groups["buoy"] = {"profile": "jetson-nano", "share": 0.125, "speed": speed, "link": narrow}
    tables = {
        "devices": devices,
        "slow": 100.0,
        "eval_every": 0,
        "fleet": {"name": "boards", "groups": groups},
        "data": {"samples_per_client": 35},
        "task": {
            "rounds": 3,
            "round_deadline_s": 3.0,
            "wait_for": "all",
            "kinds": KINDS,
            "statistics": {"hold_out": 0},
            **task,
        },
    }
    path = tmp_path / "scenario.toml"
    path.write_text('fleet = "uniform"\n')
    loaded = scenarios.load(path, tables)
    assert isinstance(loaded, Scenario)
    return loaded


def both(setting):
    """(fast: noted, weights), (wire: finished) of one scenario."""
    prepared, noted = prepare(setting, SEED), Noted()
    served = simulate(prepared, observer=noted)
    return noted, served, perform(prepared, WireCourse(SEED, until_s=10_000))


def check_equal(noted, served, finished):
    fast = {(ask.round, ask.device): ask.kind for ask in noted.asks if ask.fate == "counted"}
    assert fast == {(record.round, record.device): record.kind for _, record in finished.contributions}
    losses = {(ask.round, ask.device): ask.train_loss for ask in noted.asks}
    for _, record in finished.contributions:
        assert losses[record.round, record.device] == pytest.approx(record.train_loss, abs=1e-6, nan_ok=True)
    assert served.keys() == finished.weights.keys()
    for name, values in served.items():
        np.testing.assert_allclose(values, finished.weights[name], rtol=0, atol=1e-6)
    return set(fast.values())


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    setting = scenario(tmp_path_factory.mktemp("eight"), wait_for="all")
    return setting, *both(setting)


def test_the_fast_simulator_and_the_wire_agree_on_kinds_participants_and_weights(eight):
    _, noted, served, finished = eight
    kinds = check_equal(noted, served, finished)
    assert kinds == {"full", "entropy-subset", "few-shot", "class-means"}
    assert [line.participants for line in noted.lines] == [8, 8, 8]


def test_they_agree_on_who_rests(tmp_path):
    noted, served, finished = both(scenario(tmp_path, rest="on"))
    check_equal(noted, served, finished)
    rested = {(ask.round, ask.device) for ask in noted.asks if ask.fate == "rested"}
    plans = [what for _, what in finished.events if isinstance(what, PlanReported)]
    assert {
        (p.round, p.device) for p in plans if p.reasons[:1] and p.reasons[0].startswith("rests")
    } == rested
    assert rested, "nobody rests"
    assert sum(ask.energy_j for ask in noted.asks if ask.fate == "rested") == 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "multi-krum"])
def test_they_agree_under_a_rule_that_screens_updates(tmp_path, rule):
    noted, served, finished = both(scenario(tmp_path, robust=rule, rounds=2))
    assert len(check_equal(noted, served, finished)) == 4


@pytest.mark.slow
def test_they_agree_where_devices_hold_samples_out(tmp_path):
    """The head in closed form comes to them beside the base of rounds 2 and 3."""
    noted, served, finished = both(scenario(tmp_path, statistics={"hold_out": 0.2}))
    assert len(check_equal(noted, served, finished)) == 4


@pytest.mark.slow
def test_they_agree_when_the_model_moves_by_zeroth_order_steps_alone(tmp_path):
    noted, served, finished = both(scenario(tmp_path, kinds=[{"name": "zeroth-order"}], rounds=4))
    assert check_equal(noted, served, finished) == {"zeroth-order"}


def test_an_update_arrives_on_the_wire_when_the_fast_simulator_says(eight):
    """From round 2 on: on the wire nobody fetches anything in the first. Training a head and second
    moments, which are no graphs, are predicted but take no time on the wire: 1.6% of a few-shot update here.
    """
    setting, noted, _, finished = eight
    bandwidth = {member.name: member.profile.bandwidth.up for member in members(prepare(setting, SEED))}
    opened = {what.round: at for at, what in finished.events if isinstance(what, RoundOpened)}
    arrived = {(r.round, r.device): at - opened[r.round] for at, r in finished.contributions}
    compared = [ask for ask in noted.asks if ask.round > 1 and bandwidth[ask.device] > BROAD]
    assert len(compared) == 14
    for ask in compared:
        off = 0.02 if ask.kind == "few-shot" else 0.015
        assert arrived[ask.round, ask.device] == pytest.approx(ask.ended_s - ask.asked_s, rel=off)


@pytest.mark.slow
def test_they_agree_for_forty_devices_none_of_which_is_like_another(tmp_path):
    setting = scenario(tmp_path, 40, 0.5, rounds=4)
    assert len(check_equal(*both(setting))) == 4


@pytest.mark.slow
def test_latency_turns_no_more_than_a_few_decisions_in_a_hundred(tmp_path):
    """On the wire an update over 64 KiB is asked for before it is sent, which is not predicted; a device for
    which a kind only just fits, or only just does not, decides otherwise.
    """
    noted, _, finished = both(scenario(tmp_path, 40, 0.5, 0.05, rounds=4))
    fast = {(ask.round, ask.device): ask.kind for ask in noted.asks if ask.fate == "counted"}
    wire = {(record.round, record.device): record.kind for _, record in finished.contributions}
    assert fast.keys() == wire.keys()
    assert len(fast) > 0.95 * 4 * 40
    assert sum(fast[key] != kind for key, kind in wire.items()) <= 4
