"""Networks that are trained on other data first."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.papers import exporting, pretraining, resolving
from benchmarks.papers.places import BundleEntry, DataEntry, DataFolder, Pretrain, SharedTables
from device_runtime.models.bundles.bundle import Bundle

LINEAR = "linear --set inputs=64 --set classes={classes} --tunable all"
DIGITS = "--input 1,8,8 --scale 0.0625 --labels 0,1,2,3,4,5,6,7,8,9"
FIRST = Pretrain(bundle="plain", data="digits", rounds=2, settings={"epochs": 1, "lr": 0.1})
SHARED = SharedTables(
    data={
        "digits": DataEntry(title="digits", classes=10, source="digits", export=DIGITS),
        "letters": DataEntry(title="letters", classes=10, source="digits", cpu="digits", export=DIGITS),
    },
    bundles={
        "plain": BundleEntry(export=LINEAR),
        "learnt": BundleEntry(export=LINEAR, pretrain=FIRST),
    },
)
NOWHERE = DataFolder(None)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setattr(exporting, "folder", lambda: tmp_path / "bundles")
    monkeypatch.setattr(pretraining, "folder", lambda: tmp_path / "pretrained")


def test_weights_are_those_of_training_on_all_of_the_data_in_one_place(capsys):
    path = pretraining.weights(FIRST, SHARED, NOWHERE)
    lines = capsys.readouterr().err.splitlines()
    rounds = [line for line in lines if line.startswith("training plain on digits")]
    assert [line.split(",")[0].split(": ")[1] for line in rounds] == ["round 1 of 2", "round 2 of 2"]
    assert float(rounds[-1].rpartition(" ")[2]) > 0.7  # softmax regression; a guess is right in a tenth
    fresh = Bundle.open(pretraining.scenario(FIRST, SHARED, NOWHERE).task.bundle).weights()
    learnt = load_file(path)
    assert learnt.keys() == fresh.keys()
    assert all(np.abs(learnt[name] - fresh[name]).max() > 0 for name in fresh)


def test_it_is_done_once(monkeypatch):
    path = pretraining.weights(FIRST, SHARED, NOWHERE)
    monkeypatch.setattr(pretraining, "perform", None)
    assert pretraining.weights(FIRST, SHARED, NOWHERE) == path


@pytest.mark.slow
def test_other_settings_are_other_weights():
    other = Pretrain(bundle="plain", data="digits", rounds=1)
    first = pretraining.weights(FIRST, SHARED, NOWHERE)
    assert pretraining.weights(other, SHARED, NOWHERE).parent != first.parent


def test_a_table_s_bundle_begins_with_them(changed):
    table = changed(setting={"bundle": "learnt", "devices": 4, "task": {"rounds": 1}})
    where = resolving.Resources(NOWHERE, SHARED)
    setting = resolving.scenario(table, "cpu", (table.columns[0], table.rows[0]), where)
    learnt = load_file(pretraining.weights(FIRST, SHARED, NOWHERE))
    stored = Bundle.open(setting.task.bundle).weights()
    assert all((stored[name] == learnt[name]).all() for name in learnt)
    assert setting.engine == "torch"


def test_weights_of_a_file_cannot_be_trained_first_too():
    with pytest.raises(ValueError, match="weights and pretrain are both given"):
        BundleEntry(export=LINEAR, weights="there.npz", pretrain=FIRST)


def test_other_data_may_stand_for_it_at_each_small_scale():
    assert SHARED.entry("letters", "cpu").title == "digits"
    assert SHARED.entry("letters", "smoke").title == "letters"
    assert SHARED.entry("letters", "full").title == "letters"
