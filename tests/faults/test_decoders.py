"""Every decoder on what is not meant for it: its own error and nothing else; benchmarks/fuzz.py does more."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import task as tasks

FILE = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz():
    before = sys.path[0]
    spec = importlib.util.spec_from_file_location("fuzz_benchmark", FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[0] = before
    return module


MESSAGES = ["State", "Hello", "Plan", "Contribution", "Receipt", "Get"]
NAMES = [*MESSAGES, "topic", "safetensors", "manifest", "bundle zip", "task", "url", "graph"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_are_refused_in_the_decoder_s_own_words(fuzz, name):
    [target] = [one for one in fuzz.targets() if one.name == name]
    came = fuzz.fuzz(target, 1000, seed=1)
    assert came.failed == 0, came.first
    assert came.refused > 500


def test_no_decoder_is_left_out(fuzz):
    assert {target.name for target in fuzz.targets()} == set(NAMES)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_random_bytes_are_no_task(data):
    with pytest.raises(TaskError):
        tasks.decode(data)


def test_a_failure_is_found_and_told(fuzz):
    def weak(data):
        if data == b"sound":
            return
        if data.startswith(b"\x00"):
            raise IndexError("beyond the end")
        raise ValueError

    target = fuzz.Target("weak", weak, (ValueError,), (b"sound",))
    came = fuzz.fuzz(target, 3000, seed=0)
    assert came.failed > 0
    assert "IndexError: beyond the end" in came.first
