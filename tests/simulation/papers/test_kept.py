"""Runs that are kept in the repository."""

import gzip
import os
from dataclasses import replace
from math import nan
from pathlib import Path

import msgspec
import pytest

from benchmarks.papers import catalogue, exporting, kept, resolving
from benchmarks.papers.outcome import read
from benchmarks.papers.places import DataFolder, shared
from benchmarks.papers.resolving import Resources
from benchmarks.papers.runs import WantedTable, cells, jobs, plans, total
from device_runtime.simulation.compare.figures import FinishedRun
from device_runtime.simulation.compare.run_folder import (
    RecordWriter,
    RunInfo,
    RunName,
    fingerprint,
)
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.history.metrics import tally
from device_runtime.simulation.scenarios.scenario import of_policy

WHERE = Resources(DataFolder(None), shared())
NAME = RunName("fedncm+ft", 1)
KEY = "0123456789abcdef"


@pytest.fixture
def stamped(round_line, ask):
    lines = (
        round_line(round=1, eval_acc=0.5, closed_s=10.0, eval_acc_by_class=(0.25, nan)),
        round_line(round=2, eval_acc=nan, closed_s=20.0, energy_j=123456.78),
    )
    asks = tally([ask(device="a"), ask(device="b", fate="late"), ask(device="c", fate="sat out", kind="")])
    info = RunInfo(policy=NAME.policy, seed=1, sha256="here", finished=True, params_sent={"full": 7})
    return kept.StampedRun(FinishedRun(NAME, info, lines, asks), ("abc1234", "def5678+"), "2026-11-26")


def test_a_kept_run_read_again_has_the_same_values(stamped, tmp_path):
    path = kept.place(tmp_path / "table", NAME, KEY)
    kept.write(path, stamped, KEY)
    again = kept.read(path, NAME, KEY)
    assert (again.commits, again.date) == (stamped.commits, stamped.date)
    assert again.run.tally == replace(stamped.run.tally, sat_out={}, stragglers={})
    assert again.run.info == msgspec.structs.replace(stamped.run.info, sha256=KEY)
    assert again.run.rounds[1].energy_j == 123457.0  # 6 significant digits
    exact = replace(stamped.run.rounds[1], energy_j=123457.0)
    assert repr(again.run.rounds) == repr((stamped.run.rounds[0], exact))  # repr: nan is nan


def test_equal_runs_are_equal_bytes_and_small(stamped, tmp_path, round_line):
    lines = tuple(round_line(round=number, eval_acc_by_class=(1 / 3,) * 10) for number in range(1, 21))
    long = replace(stamped, run=replace(stamped.run, rounds=lines))
    for name in ("a", "b"):
        kept.write(tmp_path / name, long, KEY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_size < 10_000


def test_a_run_that_is_not_kept_is_none(tmp_path):
    assert kept.read(tmp_path / "nothing.jsonl.gz", NAME, KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-9],
        lambda whole: b"not gzip",
        lambda whole: gzip.compress(gzip.decompress(whole).splitlines()[0]),  # no rounds
        lambda whole: gzip.compress(gzip.decompress(whole).replace(b"eval_acc", b"eval_bcc")),
        lambda whole: gzip.compress(gzip.decompress(whole).replace(KEY.encode(), b"another")),
        lambda whole: whole[:40] + bytes([whole[40] ^ 255]) + whole[41:],
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(stamped, tmp_path, damage):
    path = tmp_path / "run.jsonl.gz"
    kept.write(path, stamped, KEY)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SimulationError, match=r"run\.jsonl\.gz is damaged"):
        kept.read(path, NAME, KEY)


@pytest.fixture
def finish(round_line, ask):
    """Finishes a cell's run in its folder."""

    def write(cell, seed):
        folder = cell.plan.of(cell.name(seed))
        folder.mkdir(parents=True, exist_ok=True)
        with RecordWriter(folder / "rounds.jsonl") as lines:
            lines.add(round_line(eval_acc=0.5 + seed / 10))
        with RecordWriter(folder / "asks.jsonl") as asks:
            asks.add(ask())
        sha256 = fingerprint(of_policy(cell.plan.scenario, cell.policy), seed)
        info = RunInfo(policy=cell.policy, seed=seed, sha256=sha256, finished=True)
        (folder / "run.json").write_bytes(msgspec.json.encode(info))
        os.utime(folder / "run.json", (1_790_000_000, 1_790_000_000))

    return write


@pytest.fixture
def wanted_table(table, tmp_path):
    return WantedTable(table, "cpu", 2, tmp_path / "runs", store=tmp_path / "kept")


def test_a_kept_run_is_not_run_again_and_is_shown_without_its_folder(wanted_table, finish, tmp_path):
    before = cells(wanted_table, WHERE)
    kept.note_commit(before[0].plan.of(before[0].name(1)), "abc1234")
    finish(before[0], 1)
    before[0].keep(1)
    assert [file.name[:7] for file in (tmp_path / "kept").iterdir()] == ["drop-1-"]
    elsewhere = replace(wanted_table, folder=tmp_path / "another")
    every = cells(elsewhere, WHERE)
    assert "drop in even-1" not in [str(name) for name in jobs(every, 2)]
    assert len(jobs(every, 2)) == total(every, 2) - 1 == 9
    outcome = read(elsewhere, every)
    assert outcome.values["drop", "even"][1] == 0.6
    assert (outcome.date, outcome.commits) == ("2026-09-21", ("abc1234",))


def test_a_cell_of_which_all_runs_are_kept_needs_no_bundles(wanted_table, finish, monkeypatch):
    for cell in cells(wanted_table, WHERE):
        for seed in (0, 1):
            finish(cell, seed)
            cell.keep(seed)

    def never(*_):
        raise AssertionError("a scenario was made")

    monkeypatch.setattr(resolving, "scenario", never)
    every = cells(wanted_table, WHERE)
    assert not jobs(every, 2)
    assert not plans(every)


def test_a_run_whose_setting_changed_is_run_again(wanted_table, changed, finish):
    for cell in cells(wanted_table, WHERE):
        finish(cell, 0)
        cell.keep(0)
    setting = {"bundle": "digits-wrn-10-1", "devices": 4, "task": {"rounds": 2, "min_contributions": 3}}
    other = replace(wanted_table, table=changed(setting=setting))
    assert len(jobs(cells(wanted_table, WHERE), 1)) == 0
    assert len(jobs(cells(other, WHERE), 1)) == 5


def test_a_folder_keeps_its_name_when_some_of_its_runs_are_kept(wanted_table, finish):
    """Else a run that was stopped would begin again."""
    before = {plan.folder for plan in plans(cells(wanted_table, WHERE))}
    for cell in cells(wanted_table, WHERE)[:1]:
        for seed in (0, 1):
            finish(cell, seed)
            cell.keep(seed)
    after = {plan.folder for plan in plans(cells(wanted_table, WHERE))}
    assert after == before


def test_only_named_columns_and_rows_are_run(wanted_table):
    some = replace(wanted_table, columns=("even", "efficiency"), rows=("few-shot",))
    assert [str(name) for name in jobs(cells(some, WHERE), 1)] == [
        "few-shot in even-0",
        "few-shot in uneven-0",
    ]
    assert not jobs(cells(replace(wanted_table, only_kept=True), WHERE), 1)
    with pytest.raises(ScenarioError, match="has no column 'odd'; at scale cpu it has even, uneven"):
        replace(wanted_table, columns=("odd",))
    with pytest.raises(ScenarioError, match="has no row 'slow'; at scale cpu it has drop, few-shot, long"):
        replace(wanted_table, rows=("slow",))


def test_scale_smoke_keeps_nothing(wanted_table):
    assert replace(wanted_table, scale="smoke", columns=()).kept_folder is None


def test_a_run_notes_every_commit_that_resumed_it(tmp_path):
    kept.note_commit(tmp_path, "abc1234")
    (tmp_path / "checkpoint.safetensors").touch()  # it was stopped
    kept.note_commit(tmp_path, "def5678+")
    kept.note_commit(tmp_path, "def5678+")
    assert kept.commits_of(tmp_path) == ("abc1234", "def5678+")
    (tmp_path / "checkpoint.safetensors").unlink()  # it begins again
    kept.note_commit(tmp_path, "")
    assert kept.commits_of(tmp_path) == ()


def keys(name, where):
    table = catalogue.load(name)
    keys_ = {}
    for scale in ("cpu", "full"):
        for cell in cells(
            WantedTable(table, scale, 1, Path("runs"), store=Path("none"), only_kept=True), where
        ):
            keys_[scale, cell.column.id, cell.row.name] = cell.key(0)
    return keys_


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue.names())
def test_another_home_and_data_folder_give_the_same_keys(name, tmp_path, monkeypatch):
    """Also without any data: then the only form of a data set is the one that is meant."""
    places = []
    for home in ("one", "two"):
        data = tmp_path / home / "data"
        for entry in shared().data.values():
            for form in entry.forms:
                (data / form.file).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(exporting, "folder", lambda home=home: tmp_path / home / "bundles")
        places.append(keys(name, Resources(DataFolder(data), shared())))
    assert places[0] == places[1]
    cuda = Resources(DataFolder(tmp_path / "one" / "data"), shared(), "cuda")
    assert keys(name, cuda) == places[0]
    assert len(set(places[0].values())) > 1


def test_every_kept_run_is_of_a_table():
    """Others are of earlier settings, and nothing shows them."""
    places = {
        kept.place(kept.FOLDER, cell.name(seed), cell.key(seed))
        for table in map(catalogue.load, catalogue.names())
        for scale in ("cpu", "full")
        for cell in cells(
            WantedTable(table, scale, 1, Path("runs"), store=kept.FOLDER, only_kept=True), WHERE
        )
        for seed in range(5)
    }
    assert set(kept.FOLDER.glob("*.gz")) - places == set()


def test_tables_share_equal_runs():
    first, other = (keys(f"paper:{name}", WHERE) for name in ("003-t1", "003-t4"))
    assert first["full", "acc", "bias"] == other["full", "without", "bias"]
    assert first["full", "acc", "bias"] not in (other["full", "with", "bias"], first["full", "acc", "head"])


def test_the_key_names_the_bundle_by_how_it_is_made():
    entry = shared().data["cifar10-five"]
    samples = exporting.BundleSamples(entry, entry.forms[0])
    once = exporting.identity("wrn-16-1-bn-trained", shared(), samples)
    bundles = shared().bundles
    longer = msgspec.structs.replace(bundles["wrn-16-1-bn-trained"].pretrain, rounds=13)
    other = {
        **bundles,
        "wrn-16-1-bn-trained": msgspec.structs.replace(bundles["wrn-16-1-bn-trained"], pretrain=longer),
    }
    assert once.startswith("wrn-16-1-bn-trained-")
    assert (
        exporting.identity("wrn-16-1-bn-trained", msgspec.structs.replace(shared(), bundles=other), samples)
        != once
    )
    assert exporting.identity("digits-wrn-10-1", shared(), samples) == "digits-wrn-10-1"
