"""One device asked again and again: what it has learnt, what is left in its battery."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.clock.devices import FleetState
from device_runtime.simulation.clock.timeline import AskConditions, RoundDraws
from device_runtime.simulation.data.loading import Clients
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

KINDS = (ClassMeans(),)
MINE = 40


def lone_device(bundle, **settings) -> FleetState:
    """A fleet of one Pi 5 with 40 samples, much slowed: about 40 * 3.2 MFLOP at a thousandth of its speed."""
    group = {"profile": "pi-5", "share": 1.0, "speed": {"factor": 0.001}, **settings}
    fleet = fleets.read({"name": "one", "groups": {"all": group}}).draw(1, 0)
    y = np.arange(MINE) % 10
    clients = Clients.of(np.zeros((MINE, 1, 8, 8), np.float32), y, [np.arange(MINE)])
    return FleetState(fleet, clients, {"": bundle.manifest})


def conditions(now: float = 0.0, **other) -> AskConditions:
    return AskConditions(now=now, closes_at=now + 1e6, down_bytes=lambda _: 0, kinds=KINDS, **other)


def test_a_device_learns_how_slow_it_is_and_forgets_it_when_its_process_dies(bundle):
    """Twice as slow as predicted: 0.7 * 1 + 0.3 * 2, then 0.7 * 1.3 + 0.3 * 2."""
    devices = lone_device(bundle)
    for expected in (1.3, 1.51):
        devices.ask(0, conditions(draws=RoundDraws(slowdown=2.0)))
        assert devices.known(0).corrections == {"class-means": pytest.approx(expected)}
    devices.ask(0, conditions(draws=RoundDraws(slowdown=2.0, crash=0.5)))
    assert devices.known(0).corrections == {}


def test_a_device_at_work_is_not_ready_until_it_is_back(bundle):
    devices = lone_device(bundle)
    line = devices.ask(0, conditions(draws=RoundDraws(crash=0.5, away_s=7.0)))
    assert line.back_at == line.ends_at + 7.0
    assert not devices.ready(0, line.back_at - 0.1)
    assert devices.ready(0, line.back_at)


def test_what_was_spent_is_charged_again_at_so_many_watts(bundle):
    """At 1 W it is half full again after as many seconds as joules were spent."""
    battery = {"wh": 1.0, "start": 0.5, "minimum": 0.5, "charge_w": 1.0}
    devices = lone_device(bundle, battery=battery)
    line = devices.ask(0, conditions())
    assert line.fate is None
    assert line.energy_j > line.ends_at  # or it would be full before it is done
    assert not devices.ready(0, line.energy_j - 0.1)
    assert devices.ready(0, line.energy_j + 0.1)


def test_a_battery_that_is_empty_and_not_charged_is_never_asked_again(bundle):
    devices = lone_device(bundle, battery={"wh": 1e-4})
    line = devices.ask(0, conditions())
    assert line.fate == "crashed"
    assert line.energy_j == pytest.approx(0.36)
    assert not devices.ready(0, 1e9)


def test_a_battery_charges_only_while_the_device_is_there(bundle):
    """There for an hour a day, at 0.5 W: 1800 J a day; 2700 J of 3600 after half of the second hour."""
    battery = {"wh": 1.0, "start": 0.0, "minimum": 0.75, "charge_w": 0.5}
    devices = lone_device(bundle, battery=battery, windows=[{"start_h": 0, "length_h": 1}])
    second = 86_400.0 + 1800.0
    assert not devices.ready(0, second - 2.0)
    assert devices.ready(0, second + 1.0)


def test_a_device_without_samples_sits_out_and_has_spent_its_download(bundle):
    fleet = fleets.read({"name": "one", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}).draw(1, 0)
    none = Clients.of(np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64), [np.arange(0)])
    devices = FleetState(fleet, none, {"": bundle.manifest})
    line = devices.ask(0, AskConditions(now=0.0, closes_at=60.0, down_bytes=lambda _: 1000, kinds=KINDS))
    assert (line.fate, line.bytes_down, line.bytes_up, line.flops) == ("sat out", 1000, 0, 0.0)
    assert line.outcome.reasons == ("class-means has no local data",)


def test_scalars_after_the_first_that_were_accepted_are_charged_what_few_bytes_take(bundle):
    """190 bytes, then 45 until the aggregator may not know any more what they are like."""
    devices = lone_device(bundle)
    scalars = ZerothOrder()

    def up(kind=scalars, closes_at=1e6, **draws):
        again = replace(conditions(draws=RoundDraws(**draws)), kinds=(kind,), closes_at=closes_at)
        return devices.ask(0, again).bytes_up

    assert [up(), up(), up()] == [190, 45, 45]
    assert [up(ZerothOrder(num_z=4)), up(ZerothOrder(num_z=4)), up()] == [198, 53, 190]
    assert up(ClassMeans()) == up(ClassMeans()) > 190
    assert [up(), up()] == [190, 45]
    devices.ask(0, replace(conditions(draws=RoundDraws(crash=0.5, away_s=7.0)), kinds=(scalars,)))
    assert [up(), up()] == [190, 45]


@pytest.mark.parametrize("battery", [None, {"wh": 1.0}])
def test_a_device_is_new_until_it_is_asked_though_its_charge_was_looked_at(bundle, battery):
    devices = lone_device(bundle, **({"battery": battery} if battery else {}))
    assert devices.ready(0, 0.0)
    assert devices.is_new(0)
    devices.ask(0, conditions())
    assert not devices.is_new(0)
