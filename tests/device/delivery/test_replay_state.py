"""Where a device stands, over the end of the process that had it in memory."""

import numpy as np
import pytest

from device_runtime.broker.wire.messages import Base
from device_runtime.device.delivery.cache import ReplayState, ReplayStates

LINE, OTHER = b"8 bytes.", b"others.."
WEIGHTS = {"w": np.arange(3, dtype=np.float32)}


@pytest.fixture
def stands(tmp_path):
    return ReplayStates(tmp_path / "stand")


def base(at, line=LINE):
    return Base(checkpoint=(), sha=b"\0" * 32, line=line, at=at)


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "stand").iterdir())


def test_what_was_put_down_is_found_for_bases_of_its_line_from_there_on(stands):
    stands.put(ReplayState(LINE, 5, WEIGHTS))
    for at in (5, 9):
        stand = stands.get(base(at))
        assert (stand.line, stand.at) == (LINE, 5)
        assert np.array_equal(stand.weights["w"], WEIGHTS["w"])
    assert stands.get(base(4)) is None
    assert stands.get(base(9, OTHER)) is None


def test_one_is_kept_and_none_after_it_has_led_to_nothing(stands, tmp_path):
    stands.put(ReplayState(LINE, 5, WEIGHTS))
    stands.put(ReplayState(OTHER, 7, WEIGHTS))
    assert files(tmp_path) == [f"{OTHER.hex()}.7.safetensors"]
    stands.drop()
    assert files(tmp_path) == []


def test_one_that_is_damaged_is_as_if_it_were_not_there(stands, tmp_path, caplog):
    stands.put(ReplayState(LINE, 5, WEIGHTS))
    (tmp_path / "stand" / f"{LINE.hex()}.5.safetensors").write_bytes(b"damaged")
    assert stands.get(base(5)) is None
    assert "the replay state cannot be read" in caplog.text


def test_a_disk_that_refuses_is_warned_of(stands, tmp_path, caplog):
    (tmp_path / "stand").write_bytes(b"in the way")
    stands.put(ReplayState(LINE, 5, WEIGHTS))
    assert "the replay state cannot be saved" in caplog.text
    assert stands.get(base(5)) is None
