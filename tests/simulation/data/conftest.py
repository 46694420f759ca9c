"""A cache of its own for each test, and where real data may lie."""

from pathlib import Path

import pytest

from device_runtime.simulation.data import files

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(files, "folder", lambda: folder)
    return folder


@pytest.fixture
def shared():
    """The path of a real data file; the test skips where it is absent."""

    def path(name):
        if not (SHARED / name).exists():
            pytest.skip(f"{SHARED / name} is not here")
        return str(SHARED / name)

    return path
