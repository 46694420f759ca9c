"""Reads speech: the unpacked folders of Speech Commands, or the arrays of a .npz.

The folders (Warden 2018, arXiv:1804.03209) hold WAV clips and two lists. Clips are
WORD/SPEAKER_nohash_N.wav. testing_list.txt names the clips for evaluation; those of validation_list.txt are
not used; all others are for training. No speaker is in two of the three.

A .npz has log-mel uint8 (n, 61, 40), or 16-bit waveforms (n, samples) with sample_rate. Arrays: x_train,
y_train, speaker_train, the same for test, class_names; speaker_ids names the speakers, "" is no speaker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.data import sound as wav
from device_runtime.models.data.sound import RATE, fit_length, log_mel
from device_runtime.models.data.units import Refused
from device_runtime.simulation.errors import DataSetError
from device_runtime.simulation.partition.methods import NOBODY

from .arrays import Arrays, integers, names
from .arrays import read as read_arrays
from .dataset import DataSet
from .files import SkippedFiles, cached, existing, listing_key, read, with_progress
from .spec import DataSpec

UNKNOWN, SILENCE = "_unknown_", "_silence_"
NOISE = "_background_noise_"
TWELVE = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", UNKNOWN, SILENCE)
"""Ten words, and a tenth as many clips of other words and of silence, as in TensorFlow's example."""

EXTRA_SHARE = 0.1
TEST_PART = 0.2  # the last part of each noise file, so that no evaluated silence was trained on
CHOICE = 14  # seed of the draws: the same clips in every run, so that their cached features are used

Clip = NDArray[np.int16]


@dataclass(frozen=True)
class Recording:
    """A clip, the number of its class, and its speaker."""

    path: Path
    label: int
    speaker: str


def load(spec: DataSpec, seed: int) -> DataSet:
    """Loads log-mel features uint8 (n, 1, 61, 40) with speakers as groups; silence has no speaker.

    `words` are the classes: words of the data, _unknown_ (drawn from all other words), _silence_ (drawn from
    the background noise). Broken clips are skipped and counted. Features are kept in the user's cache.
    Raises DataSetError.
    """
    root = existing(spec)
    labels = spec.words or TWELVE
    parts = []
    for number, recordings in enumerate(_divided(root)):
        rng = np.random.default_rng([CHOICE, number])
        chosen = _chosen(recordings, labels, rng)
        silent = max(1, round(EXTRA_SHARE * len(chosen))) if SILENCE in labels else 0
        parts.append(_features(chosen, root, _Silence(labels, silent, bool(number))))
    train, test = parts
    names = sorted(set(train["speaker"].tolist()) - {""})
    numbers = {"": NOBODY, **{name: number for number, name in enumerate(names)}}
    groups = np.array([numbers[name] for name in train["speaker"].tolist()], np.int64)
    y, test_y = (np.asarray(part["y"], np.int64) for part in (train, test))
    return DataSet(train["x"], y, test["x"], test_y, labels, groups)


def _divided(root: Path) -> tuple[list[Path], list[Path]]:
    """The clips for training and for evaluation, by the two lists."""
    tests, validation = (
        set(read(root / f"{name}_list.txt").decode("utf-8", "replace").split())
        for name in ("testing", "validation")
    )
    clips = [path for path in sorted(root.glob("*/*.wav")) if path.parent.name != NOISE]
    if not clips:
        raise DataSetError(f"{root} has no WORD/*.wav")
    entries = [(path, f"{path.parent.name}/{path.name}") for path in clips]
    train = [path for path, name in entries if name not in tests and name not in validation]
    return train, [path for path, name in entries if name in tests]


def _chosen(clips: Iterable[Path], labels: tuple[str, ...], rng: np.random.Generator) -> list[Recording]:
    """The clips of the words, then a tenth as many unknown ones."""
    numbers = {name: number for number, name in enumerate(labels)}
    clips = tuple(clips)
    word_clips = [path for path in clips if path.parent.name in numbers]
    if missing := set(labels) - {UNKNOWN, SILENCE} - {path.parent.name for path in word_clips}:
        raise DataSetError(f"no clips of {', '.join(sorted(missing))} in one of the parts")
    chosen = [_recording(path, numbers[path.parent.name]) for path in word_clips]
    if UNKNOWN in numbers:
        others = [path for path in clips if path.parent.name not in numbers]
        if not others:
            raise DataSetError(f"no clips of words other than {', '.join(labels)}, for {UNKNOWN}")
        count = min(len(others), max(1, round(EXTRA_SHARE * len(word_clips))))
        drawn = np.sort(rng.choice(len(others), count, replace=False)).tolist()
        chosen += [_recording(others[i], numbers[UNKNOWN]) for i in drawn]
    return chosen


def _recording(path: Path, label: int) -> Recording:
    return Recording(path, label, path.name.partition("_nohash_")[0])


@dataclass(frozen=True)
class _Silence:
    """The number of clips of silence to cut, and whether from the test part of the noise files."""

    labels: tuple[str, ...]
    count: int
    test: bool


def _features(chosen: list[Recording], root: Path, silence: _Silence) -> dict[str, NDArray[Any]]:
    noise = sorted((root / NOISE).glob("*.wav")) if silence.count else []
    if silence.count and not noise:
        raise DataSetError(f"{root} has no {NOISE}/*.wav, for {SILENCE}")
    key = listing_key([*(r.path for r in chosen), *noise], "speech-commands", silence)
    return cached(key, lambda: _computed(chosen, noise, silence))


def _computed(chosen: list[Recording], noise: list[Path], silence: _Silence) -> dict[str, NDArray[Any]]:
    x, good, skipped = [], [], SkippedFiles("clips")
    for recording in with_progress(chosen, "test clips" if silence.test else "train clips"):
        try:
            x.append(log_mel(one_second(clip(recording.path))[None])[0])
        except (Refused, OSError, ValueError) as error:
            skipped.add(f"{recording.path.parent.name}/{recording.path.name}", error)
            continue
        good.append(recording)
    skipped.report(len(chosen))
    y, speakers = [r.label for r in good], [r.speaker for r in good]
    if silence.count:
        x += list(log_mel(_cuts(noise, silence)))
        y += [silence.labels.index(SILENCE)] * silence.count
        speakers += [""] * silence.count
    return {"x": np.stack(x)[:, None], "y": np.array(y, np.int64), "speaker": np.array(speakers)}


def clip(path: Path) -> Clip:
    """Reads a clip of 16-bit mono samples at 16 kHz. Raises Refused, OSError, ValueError."""
    sound = wav.decode(path.read_bytes())
    form = (sound.channels, sound.bits, sound.rate)
    if form != (1, 16, RATE):
        raise ValueError(f"{form[0]} channels of {form[1]} bits at {form[2]} Hz, expected 1, 16, {RATE}")
    return sound.samples().astype(np.int16)


def one_second(samples: Clip) -> Clip:
    """Cuts a clip to one second, or pads it with zeros at its end."""
    return fit_length(samples, RATE)


def _cuts(noise: list[Path], silence: _Silence) -> Clip:
    """Cuts seconds of noise at random places, with a random volume of 0 to 1, (count, 16000)."""
    rng = np.random.default_rng([CHOICE, 2 + silence.test])
    usable = [part for path in noise if len(part := _part(path, silence.test)) >= RATE]
    if not usable:
        raise DataSetError(f"{noise[0].parent} has no file that is long enough for a second of {SILENCE}")
    cuts = np.empty((silence.count, RATE), np.int16)
    for number in range(silence.count):
        samples = usable[rng.integers(len(usable))]
        begin = rng.integers(len(samples) - RATE + 1)
        cuts[number] = samples[begin : begin + RATE] * rng.random()
    return cuts


def _part(path: Path, test: bool) -> Clip:
    try:
        samples = clip(path)
    except (Refused, OSError, ValueError) as error:
        raise DataSetError(f"{path} is not the noise expected: {error}") from None
    border = round((1 - TEST_PART) * len(samples))
    return samples[border:] if test else samples[:border]


NEEDED = ("x_train", "y_train", "x_test", "y_test")
PART = 256  # clips that are converted at once


def load_arrays(spec: DataSpec, seed: int) -> DataSet:
    """Loads log-mel features uint8 (n, 1, frames, 40) with speakers as groups. Raises DataSetError."""
    path = existing(spec)
    arrays = read_arrays(path)
    if missing := [name for name in NEEDED if name not in arrays]:
        raise DataSetError(f"{path} has no {', '.join(missing)}; it has {', '.join(arrays)}")
    y, test_y = (integers(arrays[name], path, name) for name in ("y_train", "y_test"))
    x, test_x = (_features_of_arrays(arrays, name, path) for name in ("x_train", "x_test"))
    return DataSet(x, y, test_x, test_y, names(arrays, (y, test_y)), _speakers(arrays, path))


def _features_of_arrays(arrays: Arrays, name: str, path: Path) -> NDArray[Any]:
    x = arrays[name]
    if x.ndim == 3 and x.dtype == np.uint8:
        return x[:, None]
    if x.ndim != 2 or x.dtype != np.int16 or "sample_rate" not in arrays:
        raise DataSetError(
            f"{path}: {name} is {x.dtype} {x.shape}, expected uint8 (n, frames, bands) or int16 (n, samples) "
            "with sample_rate"
        )
    rate = int(arrays["sample_rate"])
    parts = [log_mel(x[begin : begin + PART], rate) for begin in range(0, max(len(x), 1), PART)]
    return np.concatenate(parts)[:, None]


def _speakers(arrays: Arrays, path: Path) -> NDArray[np.int64] | None:
    if "speaker_train" not in arrays:
        return None
    speakers = integers(arrays["speaker_train"], path, "speaker_train")
    if "speaker_ids" in arrays:
        nobody = np.flatnonzero(arrays["speaker_ids"] == "")
        speakers[np.isin(speakers, nobody)] = NOBODY
    return speakers
