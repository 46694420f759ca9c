"""The presence of a simulated fleet, beside maps and sets that have every device."""

import pytest

from device_runtime.aggregator.machine.state import Presence
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.rounds.presence import FleetPresence, ReadyFleet

FLEET = fleets.load("boards").draw(5, 0)
NAMES = [FLEET.name(device) for device in range(5)]
GONE = Presence(1, online=False)


def test_every_device_is_online_until_something_else_is_heard():
    before = FleetPresence(FLEET)
    after = before.insert(NAMES[3], GONE)
    assert dict(before) == dict.fromkeys(NAMES, Presence(0, online=True))
    assert dict(after) == {**dict(before), NAMES[3]: GONE}
    assert after.get(NAMES[3]) == after[NAMES[3]] == GONE
    assert dict(after.insert(NAMES[3], Presence(0, online=True))) == dict(before)


def test_a_simulated_device_is_never_forgotten():
    with pytest.raises(NotImplementedError, match=f"{NAMES[0]} cannot be forgotten"):
        FleetPresence(FLEET).discard(NAMES[0])


def test_all_devices_are_ready_but_those_that_left():
    every = ReadyFleet(FLEET)
    some = every.discard(NAMES[1]).discard(NAMES[4]).discard(NAMES[1])
    assert (list(every), len(every)) == (NAMES, 5)
    assert (list(some), len(some)) == ([NAMES[0], NAMES[2], NAMES[3]], 3)
    assert NAMES[1] not in some
    assert set(some.insert(NAMES[1]).insert(NAMES[0])) == {*NAMES[:4]}
    none = some
    for name in NAMES:
        none = none.discard(name)
    assert not none
