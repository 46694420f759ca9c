"""What kinds keep on a device, whenever its process ends."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.device.delivery.cache import StrategyStateStore
from device_runtime.strategies.kinds.class_means import ClassMeans


def memory_of(value):
    return {"w": np.full(3, value, np.float32)}


def read(memories, run, kind, number):
    memory = memories.get(run, kind, number)
    return float(memory["w"][0]) if memory else None


@pytest.fixture
def memories(tmp_path):
    return StrategyStateStore(tmp_path / "memory")


def test_a_kind_is_given_what_it_kept_last_before_the_round(memories):
    memories.put("r", "full", 2, memory_of(2))
    memories.put("r", "full", 10, memory_of(10))
    memories.put("r", "peft", 10, memory_of(-1))
    values = [read(memories, "r", "full", number) for number in (1, 2, 3, 10, 11)]
    assert values == [None, None, 2, 2, 10]
    assert read(memories, "r", "peft", 11) == -1


def test_no_more_is_kept_of_a_kind_than_the_last_two(memories, tmp_path):
    for number in (1, 9, 10, 11, 11):
        memories.put("../r", "full", number, memory_of(number))
    assert [read(memories, "../r", "full", number) for number in (10, 11, 12)] == [None, 10, 11]
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 2


def test_the_first_of_a_run_ends_those_of_another(memories, tmp_path):
    memories.put("r", "full", 1, memory_of(1))
    memories.put("s", "full", 1, memory_of(2))
    assert [read(memories, run, "full", 2) for run in "rs"] == [None, 2]
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1


def test_what_is_damaged_is_nothing_and_said(memories, tmp_path, caplog):
    memories.put("r", "full", 1, memory_of(1))
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(path.read_bytes()[:-5])
    assert read(memories, "r", "full", 2) is None
    assert "full" in caplog.text


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_device_killed_as_it_keeps_an_update_loses_no_memory_and_trains_from_no_later_one(
    stage, monkeypatch, where
):
    """In round 2, before the update is on disk: it is trained again, from what round 1 kept; or after."""
    values, train = [], ClassMeans.train

    def remembering(kind, model, data, run):
        values.append(float(run.memory["w"][0]) if run.memory else 0.0)
        return replace(train(kind, model, data, run), memory=memory_of(values[-1] + 1))

    monkeypatch.setattr(ClassMeans, "train", remembering)
    stage.link.announce(stage.offer(1))
    stage.go()
    with monkeypatch.context() as dying:
        add = stage.agent.runner.outbox.add

        def die(message):
            if where == "after":
                add(message)
            raise Killed

        dying.setattr(stage.agent.runner.outbox, "add", die)
        stage.link.announce(stage.offer(2))
        with pytest.raises(Killed):
            stage.go()
    stage.start(boot=2)
    for number in (2, 3):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert values == ([0, 1, 1, 2] if where == "before" else [0, 1, 2])
