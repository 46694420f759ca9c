"""Sound: decodes RIFF WAVE, resamples it, and computes log-mel features, in numpy.

Reads PCM of 8, 16, 24 and 32 bits and float of 32 and 64 bits, with up to 16 channels. Both the training data
of a shipped speech bundle and a device's own recordings get their features here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .units import Refused

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KINDS = {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}
LEAST_RATE, LARGEST_RATE = 4_000, 384_000  # Hz
MOST_CHANNELS = 16
LOUDEST = 1e9  # in units of 16-bit PCM; no recording is as loud
UNKNOWN_LENGTH = 0xFFFFFFFF  # the length in a file that was written into a pipe


@dataclass(frozen=True)
class Sound:
    """A decoded WAVE file; `data` has whole frames, each with one value of each channel."""

    data: bytes
    kind: int  # PCM or FLOAT
    channels: int
    rate: int  # Hz
    bits: int  # of a value

    @property
    def frames(self) -> int:
        return len(self.data) // (self.channels * self.bits // 8)

    @property
    def form(self) -> str:
        kind = "float" if self.kind == FLOAT else "bits"
        return f"sound {self.rate} Hz, {self.channels} channel{'s'[: self.channels > 1]}, {self.bits} {kind}"

    def samples(self, count: int | None = None) -> NDArray[np.float32]:
        """The mean of the channels, (n,), in units of 16-bit PCM: -32768 to 32767; only the first `count`."""
        size = self.channels * self.bits // 8
        part = self.data if count is None else self.data[: count * size]
        values = _values(part, self.kind, self.bits).reshape(-1, self.channels)
        mixed = values[:, 0] if self.channels == 1 else values.mean(axis=1, dtype=np.float64)
        if not (np.abs(mixed, dtype=np.float64) <= LOUDEST).all():
            raise Refused("values are not finite", "sound")
        return mixed.astype(np.float32)

    def raw(self, spec: InputSpec) -> NDArray[np.uint8]:
        """Log-mel features (1, *shape) of the beginning, resampled to 16 kHz and padded with silence.

        Raises Refused if the input is not (frames, 40) or (1, frames, 40).
        """
        if not is_sound(spec):
            raise Refused(f"the task's input is no log-mel of {BANDS} bands", f"it is {spec.shape}")
        count = samples_of(spec.shape[-2])
        samples = self.samples(samples_needed(count, self.rate, RATE))
        clip = fit_length(resampled(samples, self.rate, RATE, count), count)
        return log_mel(clip[None]).reshape(1, *spec.shape)


def is_sound(spec: InputSpec) -> bool:
    """Whether the input has the shape of log-mel features: frames of 40 bands, perhaps with one channel."""
    shape = spec.shape if len(spec.shape) == 3 else (1, *spec.shape)
    return spec.vocabulary is None and len(shape) == 3 and (shape[0], shape[2]) == (1, BANDS)


def decode(data: bytes) -> Sound:
    """Decodes RIFF WAVE. Raises Refused if it is no sound, ends too early or is of an unsupported kind."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise Refused("a damaged sound", "no RIFF WAVE file, or only its beginning")
    form: bytes | None = None
    place = 12
    while place + 8 <= len(data):
        name, (size,) = data[place : place + 4], struct.unpack_from("<I", data, place + 4)
        if name == b"fmt ":
            form = data[place + 8 : place + 8 + size]
        elif name == b"data":
            return _sound(form, data[place + 8 :], size)
        place += 8 + size + size % 2
    raise Refused("a file that ends too early", "WAVE without samples")


def _sound(form: bytes | None, data: bytes, size: int) -> Sound:
    if form is None or len(form) < 16:
        raise Refused("a damaged sound", "WAVE without its format")
    kind, channels, rate, _, wide, bits = struct.unpack_from("<HHIIHH", form)
    if kind == EXTENSIBLE and len(form) >= 26:
        (kind,) = struct.unpack_from("<H", form, 24)
    if (kind, bits) not in KINDS or not 0 < channels <= MOST_CHANNELS:
        raise Refused("unsupported sound format", f"WAVE format {kind}, {bits} bits, {channels} channels")
    if not LEAST_RATE <= rate <= LARGEST_RATE:
        raise Refused("unsupported sound format", f"{rate} Hz, expected {LEAST_RATE} to {LARGEST_RATE}")
    if size != UNKNOWN_LENGTH and len(data) < size:
        raise Refused("a file that ends too early", f"WAVE with {len(data)} of {size} bytes")
    frame = channels * bits // 8
    if wide != frame:
        raise Refused("unsupported sound format", f"WAVE of {bits} bits, {channels} channels in {wide} bytes")
    sound = Sound(data[: min(size, len(data)) // frame * frame], kind, channels, rate, bits)
    if not sound.frames:
        raise Refused("a sound without samples", f"{rate} Hz")
    return sound


def _values(data: bytes, kind: int, bits: int) -> NDArray[Any]:
    """The values (n,) in units of 16-bit PCM."""
    if kind == FLOAT:
        return np.frombuffer(data, f"<f{bits // 8}") * 32768.0
    if bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) * 256
    if bits == 24:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        padded = np.zeros((len(parts), 4), np.uint8)
        padded[:, 1:] = parts
        return padded.view("<i4")[:, 0] / 65536.0
    return np.frombuffer(data, "<i2") if bits == 16 else np.frombuffer(data, "<i4") / 65536.0


# Resampling by a windowed sinc.

ZEROS = 16
"""Zero crossings of the sinc on each side, under a Hann window."""
SHARE = 0.95
"""The cut-off as a fraction of the lower of the two Nyquist frequencies."""
BLOCK = 2048


def resampled(samples: NDArray[np.float32], rate: int, new_rate: int, count: int) -> NDArray[np.float32]:
    """Resamples (n,) from `rate` to `new_rate`: the first `count` samples, or fewer if the sound is shorter.

    The sound is taken to be zero before and after.
    """
    count = min(count, -(-len(samples) * new_rate // rate))
    if rate == new_rate:
        return samples[:count]
    width = SHARE * min(1.0, new_rate / rate)  # the cut-off as a fraction of the samples' Nyquist frequency
    reach = int(np.ceil(ZEROS / width))
    padded = np.pad(samples.astype(np.float64), reach + 1)
    steps = np.arange(-reach, reach + 1)
    clip = np.empty(count, np.float32)
    for begin in range(0, count, BLOCK):
        times = np.arange(begin, min(begin + BLOCK, count)) * rate  # in units of 1 / new_rate
        nearest = (times + new_rate // 2) // new_rate
        phases, which = np.unique(times - nearest * new_rate, return_inverse=True)  # few for a simple ratio
        away = (phases / new_rate)[:, None] - steps
        window = np.cos(np.pi / 2 * np.clip(away / (reach + 1), -1, 1)) ** 2
        weights = width * np.sinc(width * away) * window
        neighbours = padded[np.minimum(nearest[:, None] + steps + reach + 1, len(padded) - 1)]
        clip[begin : begin + BLOCK] = np.einsum("ij,ij->i", weights[which], neighbours)
    return clip


def samples_needed(count: int, rate: int, new_rate: int) -> int:
    """The number of samples at `rate` on which the first `count` samples at `new_rate` depend."""
    if rate == new_rate:
        return count
    reach = int(np.ceil(ZEROS / (SHARE * min(1.0, new_rate / rate))))
    return -(-count * rate // new_rate) + reach + 2


# Log-mel features of speech.

RATE = 16_000  # Hz
FRAME_S, HOP_S = 0.032, 0.016
BANDS = 40
LOWEST_HZ, HIGHEST_HZ = 20.0, 7600.0
FLOOR = 1e-8  # of the power, -80 dB
STEPS_PER_DB = 2.0

Floats = NDArray[np.float64]


def samples_of(frames: int) -> int:
    """The samples at 16 kHz that `frames` frames take: one whole frame, and a hop for each other one."""
    return round(FRAME_S * RATE) + (frames - 1) * round(HOP_S * RATE)


def fit_length(samples: NDArray[Any], length: int) -> NDArray[Any]:
    """The samples cut or padded with zeros at the end to `length`; a new array of the same dtype."""
    clip = np.zeros(length, samples.dtype)
    clip[: len(samples)] = samples[:length]
    return clip


def log_mel(clips: NDArray[Any], rate: int = RATE) -> NDArray[np.uint8]:
    """Log-mel features uint8 (n, frames, 40) of clips (n, samples); 61 frames for one second.

    clips: in units of 16-bit PCM, any real dtype. Frames of 32 ms every 16 ms (512 and 256 samples at 16
    kHz), without padding: the last frame ends within the clip. Periodic Hann window, power P of the Fourier
    transform, 40 triangular filters of height 1, whose corners are evenly spaced from 20 to 7600 Hz on the
    mel scale 2595 log10(1 + f/700). The value is 2 (10 log10(P) + 80), for samples scaled to -1..1, rounded
    and clipped to 0..255: half decibels above -80 dB.

    At another rate, frames last as long, powers are scaled to those at 16 kHz, and the filters end at most at
    95% of half the rate: 3800 Hz at 8 kHz.
    """
    frame, hop = round(FRAME_S * rate), round(HOP_S * rate)
    windows = np.lib.stride_tricks.sliding_window_view(clips, frame, axis=1)[:, ::hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    spectra = np.fft.rfft(windows * (hann * (FRAME_S * RATE / frame / 32768)))
    powers = (spectra.real**2 + spectra.imag**2) @ filters(frame, rate).T
    levels = STEPS_PER_DB * (10 * np.log10(np.maximum(powers, FLOOR)) + 80)
    features: NDArray[np.uint8] = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return features


def filters(frame: int, rate: int) -> Floats:
    """The weight of each frequency of the transform in each band, (40, frame // 2 + 1)."""
    highest = min(HIGHEST_HZ, 0.95 * rate / 2)
    mels = np.linspace(_mel(LOWEST_HZ), _mel(highest), BANDS + 2)
    corners: Floats = 700 * (10 ** (mels / 2595) - 1)
    frequencies = np.arange(frame // 2 + 1) * (rate / frame)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0.0, np.minimum(rising, falling))


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))
