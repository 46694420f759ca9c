import numpy as np
import pytest

from device_runtime.models.data.sound import log_mel
from device_runtime.simulation.data import DataSpec, divide, load
from device_runtime.simulation.errors import DataSetError


def stored(path, x, **more):
    arrays = {
        "x_train": x,
        "y_train": np.array([0, 1, 1], np.uint8),
        "speaker_train": np.array([2, 0, 1], np.int16),
        "x_test": x[:1],
        "y_test": np.array([1], np.uint8),
        "class_names": np.array(["yes", "_silence_"]),
        "speaker_ids": np.array(["", "anna", "ben"]),
        **more,
    }
    np.savez(path, **arrays)
    return DataSpec(source="speech-npz", path=str(path))


def test_features_get_a_channel_and_nobody_is_no_speaker(tmp_path):
    x = np.arange(3 * 61 * 40, dtype=np.uint8).reshape(3, 61, 40)
    data = load(stored(tmp_path / "d.npz", x), 0)
    assert np.array_equal(data.train_x, x[:, None])
    assert data.groups.tolist() == [2, -1, 1]
    assert data.labels == ("yes", "_silence_")


def test_waveforms_become_features(tmp_path):
    x = np.random.default_rng(0).integers(-3000, 3000, (3, 8000)).astype(np.int16)
    data = load(stored(tmp_path / "d.npz", x, sample_rate=np.int64(8000)), 0)
    assert data.train_x.shape == (3, 1, 61, 40)
    assert np.array_equal(data.train_x[:, 0], log_mel(x, 8000))


def test_other_forms_are_refused(tmp_path):
    with pytest.raises(DataSetError, match=r"x_train is int16 \(3, 8000\), expected .* with sample_rate"):
        load(stored(tmp_path / "d.npz", np.zeros((3, 8000), np.int16)), 0)
    np.savez(tmp_path / "d.npz", x=np.zeros(3))
    with pytest.raises(DataSetError, match="has no x_train, y_train, x_test, y_test; it has x"):
        load(DataSpec(source="speech-npz", path=str(tmp_path / "d.npz")), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("speech_commands12_logmel_u8.npz", 3840, 1050), ("speech_commands12_8k_small.npz", 1020, 240)],
)
def test_real_speech_has_its_shapes_and_no_speaker_on_both_sides(shared, name, train, test):
    path = shared(name)
    spec = DataSpec(source="speech-npz", path=path, partition="natural")
    data = load(spec, 0)
    assert (data.train_x.shape, data.test_x.shape) == ((train, 1, 61, 40), (test, 1, 61, 40))
    assert (len(data.labels), data.train_x.dtype) == (12, np.uint8)
    assert (data.groups[data.train_y == 11] == -1).all()  # silence
    with np.load(path) as raw:
        assert not set(data.groups[data.groups >= 0].tolist()) & set(raw["speaker_test"].tolist())
    parts = divide(data, spec, 30, 0)
    speakers = [set(data.groups[part].tolist()) - {-1} for part in parts]
    assert sum(map(len, speakers)) == len(set().union(*speakers))
    assert sorted(np.concatenate(parts).tolist()) == list(range(train))
