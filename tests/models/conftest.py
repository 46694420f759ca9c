from pathlib import Path
from shutil import copytree

import pytest

from device_runtime.models.bundles.bundle import Bundle, shipped_folder


@pytest.fixture(scope="session")
def digits() -> Bundle:
    return Bundle.open(shipped_folder("digits-wrn-10-1"))


@pytest.fixture
def copied(digits: Bundle, tmp_path: Path) -> Path:
    """A folder with a copy of the shipped bundle, to be damaged."""
    return Path(copytree(digits.path, tmp_path / "copy"))
