"""The machine does in each step what the recorded traces say; the tests of the browser do the same."""

import json
from pathlib import Path

import msgspec
import pytest

from device_runtime.client import events
from device_runtime.client.events import REASONS, DeviceEvent
from device_runtime.client.machine import step
from device_runtime.client.state import DeviceState

FOLDER = Path(__file__).parents[2] / "web" / "vectors" / "client"
TRACES = {
    f"{path.stem}: {what}": trace
    for path in sorted(FOLDER.glob("*.json"))
    for what, trace in json.loads(path.read_text("utf-8")).items()
}


def plain(value):
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("what", TRACES)
def test_each_step_of_a_trace_gives_its_commands_and_its_state(what):
    start, *steps = TRACES[what]
    state, expected = msgspec.convert(start, DeviceState), start
    assert plain(state) == start
    for event, commands, changes in steps:
        kind = getattr(events, event["type"])
        state, given = step(state, msgspec.convert(event, kind))
        expected = {**expected, **changes}
        assert (plain(given), plain(state)) == (commands, expected), event


def test_the_traces_have_every_event_and_every_reason():
    steps = [one for _, *steps in TRACES.values() for one in steps]
    kinds = {kind.__name__ for kind in vars(events).values() if isinstance(kind, type)}
    of_events = {name for name in kinds if issubclass(getattr(events, name), DeviceEvent)} - {"DeviceEvent"}
    assert {event["type"] for event, _, _ in steps} == of_events
    ends = [one["reason"] for _, commands, _ in steps for one in commands if one["type"] == "RoundEnded"]
    assert set(ends) == set(REASONS)
