"""The machine does in each step what the recorded traces say; the tests of the browser do the same."""

import json
import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType

import msgspec
import pytest

from device_runtime.device.machine import events, offer_rules, turn
from device_runtime.device.machine import step as machine
from device_runtime.device.machine.events import REASONS, DeviceEvent
from device_runtime.device.machine.state import DeviceState
from device_runtime.device.machine.step import step

FOLDER = Path(__file__).parents[3] / "web" / "vectors" / "client"
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
        state, result = step(state, msgspec.convert(event, kind))
        expected = {**expected, **changes}
        assert (plain(result), plain(state)) == (commands, expected), event


def test_the_traces_have_every_event_and_every_reason():
    steps = [entry for _, *steps in TRACES.values() for entry in steps]
    kinds = {kind.__name__ for kind in vars(events).values() if isinstance(kind, type)}
    of_events = {name for name in kinds if issubclass(getattr(events, name), DeviceEvent)} - {"DeviceEvent"}
    assert {event["type"] for event, _, _ in steps} == of_events
    ends = [
        command["reason"]
        for _, commands, _ in steps
        for command in commands
        if command["type"] == "RoundEnded"
    ]
    assert set(ends) == set(REASONS)


def lines(code):
    """Each line of the functions in a module, but the first of each."""
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        numbers = (
            {line for _, _, line in inner.co_lines() if line} if inner.co_flags & CO_OPTIMIZED else set()
        )
        yield from ((inner.co_filename, line) for line in numbers - {inner.co_firstlineno})
        yield from lines(inner)


def test_the_traces_reach_every_line_of_the_machine():
    """So no line of a machine in another language can be wrong unseen."""
    paths = [module.__file__ for module in (machine, offer_rules, turn)]
    all_lines = {
        line for path in paths for line in lines(compile(Path(path).read_text("utf-8"), path, "exec"))
    }
    reached = set()

    def look(frame, _what, _value):
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return look if frame.f_code.co_filename in paths else None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        for start, *steps in TRACES.values():
            state = msgspec.convert(start, DeviceState)
            for event, _, _ in steps:
                state, _ = step(state, msgspec.convert(event, getattr(events, event["type"])))
    finally:
        sys.settrace(before)
    assert sorted(all_lines - reached) == []
