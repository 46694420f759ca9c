import logging
import wave

import numpy as np
import pytest

from device_runtime.models.data.sound import log_mel
from device_runtime.simulation.data import DataSpec, load
from device_runtime.simulation.data import speech as module
from device_runtime.simulation.errors import DataSetError

OTHERS = ("bed", "cat")


def write(path, samples, rate=16000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def noise(seed, samples=16000):
    return np.random.default_rng(seed).integers(-1000, 1000, samples).astype(np.int16)


@pytest.fixture
def root(tmp_path):
    """Of each of 12 words: anna and ben for training, eve for validation, tom for evaluation."""
    root, tests, validation = tmp_path / "speech", [], []
    for number, word in enumerate((*module.TWELVE[:10], *OTHERS)):
        for other, speaker in enumerate(("anna", "ben", "eve", "tom")):
            name = f"{word}/{speaker}_nohash_0.wav"
            write(root / name, noise(10 * number + other))
            {"eve": validation, "tom": tests}.get(speaker, []).append(name)
    write(root / "_background_noise_" / "tap.wav", noise(999, 160_000))
    (root / "testing_list.txt").write_text("\n".join(tests) + "\n")
    (root / "validation_list.txt").write_text("\n".join(validation) + "\n")
    return root


def spec(root, **fields):
    return DataSpec(source="speech-commands", path=str(root), **fields)


def test_twelve_classes_by_the_lists(root):
    data = load(spec(root), 0)
    # ten words of two speakers; a tenth of these 20 unknown; a tenth of these 22 silent, rounded
    assert np.bincount(data.train_y).tolist() == [2] * 10 + [2, 2]
    assert np.bincount(data.test_y).tolist() == [1] * 10 + [1, 1]
    assert (data.train_x.shape, data.train_x.dtype) == ((24, 1, 61, 40), np.uint8)
    assert data.labels == module.TWELVE


def test_features_are_those_of_the_clip_and_speakers_are_groups(root):
    data = load(spec(root, words=("yes", "no")), 0)
    assert np.array_equal(data.train_x[0, 0], log_mel(noise(10)[None])[0])  # no/anna: words are sorted
    assert data.train_y.tolist() == [1, 1, 0, 0]
    assert data.groups.tolist() == [0, 1, 0, 1]
    assert np.array_equal(data.test_x[1, 0], log_mel(noise(3)[None])[0])  # yes/tom


def test_silence_is_of_nobody_and_softer_than_its_noise(root):
    data = load(spec(root), 0)
    silent = data.train_y == 11
    assert (data.groups[silent] == -1).all()
    assert (data.groups[~silent] >= 0).all()
    assert data.train_x[silent].mean() < log_mel(noise(999)[None]).mean()


def test_a_short_clip_is_filled_with_zeros_and_a_long_one_cut():
    samples = np.arange(1, 16011, dtype=np.int16)
    assert module.one_second(samples).tolist() == list(range(1, 16001))
    assert module.one_second(samples[:3])[:5].tolist() == [1, 2, 3, 0, 0]


def test_broken_clips_are_left_out_and_counted(root, caplog):
    (root / "yes" / "anna_nohash_0.wav").write_bytes(b"RIFF")
    write(root / "no" / "ben_nohash_0.wav", noise(1), rate=8000)
    (root / "up" / "ben_nohash_0.wav").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        data = load(spec(root, words=("yes", "no", "up")), 0)
    assert np.bincount(data.train_y).tolist() == [1, 1, 1]
    assert "skipped 3 of 6 clips" in caplog.text
    assert "16 bits at 8000 Hz, expected 1, 16, 16000" in caplog.text


def test_features_are_computed_once(root, monkeypatch):
    first = load(spec(root), 0)
    monkeypatch.setattr(module, "_computed", lambda *arguments: pytest.fail("computed again"))
    again = load(spec(root), 7)
    assert np.array_equal(first.train_x, again.train_x)
    assert np.array_equal(first.groups, again.groups)


def test_what_is_missing_is_said(root, tmp_path):
    with pytest.raises(DataSetError, match="no clips of banana"):
        load(spec(root, words=("yes", "banana")), 0)
    with pytest.raises(DataSetError, match=r"testing_list\.txt cannot be read"):
        load(spec(tmp_path), 0)
    (root / "_background_noise_" / "tap.wav").unlink()
    with pytest.raises(DataSetError, match=r"has no _background_noise_/\*\.wav, for _silence_"):
        load(spec(root), 0)
