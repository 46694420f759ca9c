"""Bundles that tables need."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import exporting
from benchmarks.papers.exporting import BundleSamples
from benchmarks.papers.places import BundleEntry, DataEntry, DataFolder, Form, SharedTables
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.errors import ExportError
from device_runtime.simulation.errors import DataSetError

ENTRY = DataEntry(title="dots", classes=2, export="--input {pixels} --labels no,yes")
SAMPLES = BundleSamples(ENTRY, Form(file="dots.npz", source="npz", pixels=6))
LINEAR = "linear --set inputs=6 --set classes={classes} --tunable all --tunable head"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(exporting, "folder", lambda: tmp_path / "bundles")
    return tmp_path / "bundles"


def bundle_of(name="dots-linear", where=None, **entry):
    shared = SharedTables(data={}, bundles={"dots-linear": BundleEntry(**{"export": LINEAR, **entry})})
    return exporting.bundle(name, shared, SAMPLES, where or DataFolder(None))


def test_a_bundle_is_exported_once_for_the_samples_and_kept(cache, monkeypatch):
    path = bundle_of()
    manifest = Bundle.open(path).manifest
    assert (manifest.name, manifest.labels, manifest.input.shape) == ("dots-linear", ("no", "yes"), (6,))
    assert [Path(path)] == list(cache.iterdir())
    monkeypatch.setattr(exporting, "_export", None)
    assert bundle_of() == path


def test_a_family_may_have_several_models_of_one_size(cache):
    base, first, two = bundle_of(), bundle_of("dots-linear#1"), bundle_of("dots-linear#2")
    named = {Bundle.open(path).manifest.name: Bundle.open(path).weights() for path in (base, first, two)}
    assert list(named) == ["dots-linear", "dots-linear-1", "dots-linear-2"]
    assert bundle_of("dots-linear#2") == two
    assert sorted(map(str, cache.iterdir())) == sorted([base, first, two])


@pytest.mark.slow
def test_other_words_are_another_bundle(cache):
    assert bundle_of() != bundle_of(export=f"{LINEAR} --seed 1")
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_bundle_is_exported_again():
    path = Path(bundle_of())
    (path / "weights.safetensors").write_bytes(b"")
    assert bundle_of() == str(path)
    assert Bundle.open(path).weights()


@pytest.mark.slow
def test_weights_come_from_the_data_folder_and_are_part_of_its_key(tmp_path):
    with pytest.raises(DataSetError, match=r"no dots\.npz without a data folder"):
        bundle_of(weights="dots.npz")
    names = {spec.name: spec.shape for spec in Bundle.open(bundle_of()).manifest.stored()}
    np.savez(tmp_path / "dots.npz", **{name: np.ones(shape, np.float32) for name, shape in names.items()})
    path = bundle_of(where=DataFolder(tmp_path), weights="dots.npz")
    assert all((tensor == 1).all() for tensor in Bundle.open(path).weights().values())
    np.savez(tmp_path / "dots.npz", **{name: np.zeros(shape, np.float32) for name, shape in names.items()})
    assert bundle_of(where=DataFolder(tmp_path), weights="dots.npz") != path


def test_what_cannot_be_exported_leaves_nothing(cache):
    with pytest.raises(ExportError):
        bundle_of(export=f"{LINEAR} --set colour=1")
    assert not list(cache.iterdir())


def test_a_shipped_bundle_keeps_its_name():
    assert bundle_of("digits-wrn-10-1") == "digits-wrn-10-1"
