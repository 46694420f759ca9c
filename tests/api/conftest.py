"""What tests of the public API share: a folder and a cache of their own, real digits, a small simulation."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import device_runtime as dr
from device_runtime.simulation.data import files


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """The working folder, and the cache of data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "folder", lambda: tmp_path / "cache")
    return tmp_path


@pytest.fixture(scope="session")
def handwritten():
    """Raw samples x uint8 (300, 1, 8, 8) and labels y (300,)."""
    digits = load_digits()
    return digits.images[:300, None].astype(np.uint8), digits.target[:300]


@pytest.fixture(scope="module")
def small():
    """Two policies that train little, one seed, two rounds of ten phones; in this process."""
    return dr.simulate(
        "digits",
        fleet="phones",
        policies=["few-shot", "class-means"],
        devices=10,
        rounds=2,
        callbacks=[dr.Callback()],
        progress=False,
    )
