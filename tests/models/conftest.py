from pathlib import Path

import pytest

from device_runtime.models.bundles.bundle import Bundle, shipped_folder


@pytest.fixture(scope="session")
def digits() -> Bundle:
    return Bundle.open(shipped_folder("digits-wrn-10-1"))


@pytest.fixture
def copied(digits: Bundle, tmp_path: Path) -> Path:
    """A folder with a copy of the shipped bundle, to be damaged."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in digits.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
