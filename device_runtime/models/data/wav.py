"""Sound in RIFF WAVE: PCM of 8, 16, 24 and 32 bits, float of 32 and 64, any number of channels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .log_mel import BANDS, RATE, log_mel, one_clip, samples_of
from .refusal import Refused
from .resampling import needed, resampled

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KINDS = {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}
LEAST_RATE, LARGEST_RATE = 4_000, 384_000  # Hz
MOST_CHANNELS = 16
LOUDEST = 1e9  # in the unit of 16 bits; nothing that was recorded is
UNKNOWN_LENGTH = 0xFFFFFFFF  # of what was written into a pipe


@dataclass(frozen=True)
class Sound:
    """`data` has whole frames: for each moment one value of each channel."""

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
        """The mean of the channels, (n,), in the unit of 16 bits: -32768 to 32767; the first `count`."""
        size = self.channels * self.bits // 8
        part = self.data if count is None else self.data[: count * size]
        values = _values(part, self.kind, self.bits).reshape(-1, self.channels)
        mixed = values[:, 0] if self.channels == 1 else values.mean(axis=1, dtype=np.float64)
        if not (np.abs(mixed, dtype=np.float64) <= LOUDEST).all():
            raise Refused("values are not finite", "sound")
        return mixed.astype(np.float32)

    def raw(self, given: InputSpec) -> NDArray[np.uint8]:
        """Log-mel features (1, *shape) of the beginning, brought to 16 kHz, filled up with silence.

        Raises Refused where the input is not (1, frames, 40).
        """
        if not is_sound(given):
            raise Refused(f"the task's input is no log-mel of {BANDS} bands", f"it is {given.shape}")
        count = samples_of(given.shape[-2])
        samples = self.samples(needed(count, self.rate, RATE))
        clip = one_clip(resampled(samples, self.rate, RATE, count), count)
        return log_mel(clip[None]).reshape(1, *given.shape)


def is_sound(given: InputSpec) -> bool:
    """Whether the input is frames of 40 bands, with or without an axis of one channel."""
    shape = given.shape if len(given.shape) == 3 else (1, *given.shape)
    return given.vocabulary is None and len(shape) == 3 and (shape[0], shape[2]) == (1, BANDS)


def decode(data: bytes) -> Sound:
    """Raises Refused for what is no sound, ends too early or is of another kind."""
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
        raise Refused("a sound that is not read", f"WAVE format {kind}, {bits} bits, {channels} channels")
    if not LEAST_RATE <= rate <= LARGEST_RATE:
        raise Refused("a sound that is not read", f"{rate} Hz, expected {LEAST_RATE} to {LARGEST_RATE}")
    if size != UNKNOWN_LENGTH and len(data) < size:
        raise Refused("a file that ends too early", f"WAVE with {len(data)} of {size} bytes")
    frame = channels * bits // 8
    if wide != frame:
        raise Refused("a sound that is not read", f"WAVE of {bits} bits, {channels} channels in {wide} bytes")
    sound = Sound(data[: min(size, len(data)) // frame * frame], kind, channels, rate, bits)
    if not sound.frames:
        raise Refused("a sound without samples", f"{rate} Hz")
    return sound


def _values(data: bytes, kind: int, bits: int) -> NDArray[Any]:
    """(n,) in the unit of 16 bits."""
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
