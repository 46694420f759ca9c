"""Records in files: what is written is read back, but for what a killed process left."""

from math import isnan, nan

import pytest

from device_runtime.simulation.compare.run_folder import RecordWriter, read
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.history.records import SimulatedRound


def written(folder, *lines):
    with RecordWriter(folder / "rounds.jsonl") as files:
        for line in lines:
            files.add(line)
    return folder / "rounds.jsonl"


def test_what_was_written_is_read_back(tmp_path, round_line):
    lines = [round_line(), round_line(round=2, closed_s=20.5)]
    assert list(read(written(tmp_path, *lines), SimulatedRound)) == lines


def test_nan_is_null(tmp_path, round_line):
    path = written(tmp_path, round_line(eval_acc=nan, eval_acc_by_class=(0.5, nan)))
    assert '"eval_acc":null' in path.read_text()
    [back] = read(path, SimulatedRound)
    assert isnan(back.eval_acc)
    assert back.eval_acc_by_class[0] == 0.5
    assert isnan(back.eval_acc_by_class[1])


def test_the_unfinished_last_line_of_a_killed_run_is_passed_over(tmp_path, round_line):
    path = written(tmp_path, round_line(), round_line(round=2))
    path.write_bytes(path.read_bytes()[:-10])
    assert [line.round for line in read(path, SimulatedRound)] == [1]


def test_any_other_damage_is_named_with_file_and_line(tmp_path, round_line):
    path = written(tmp_path, round_line(), round_line(round=2))
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":;'))
    with pytest.raises(SimulationError, match=r"rounds\.jsonl, line 2"):
        list(read(path, SimulatedRound))


def test_a_line_of_another_version_is_named(tmp_path):
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(SimulationError, match="line 1: not a line of this version"):
        list(read(tmp_path / "rounds.jsonl", SimulatedRound))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SimulationError, match=r"cannot read .*rounds\.jsonl"):
        list(read(tmp_path / "rounds.jsonl", SimulatedRound))


def test_lines_may_be_added_to_what_is_there(tmp_path, round_line):
    path = written(tmp_path, round_line())
    with RecordWriter(path, more=True) as files:
        files.add(round_line(round=2))
    assert [line.round for line in read(path, SimulatedRound)] == [1, 2]
