"""Log-mel features of speech, in numpy: 61 frames of 40 bands for one second, as uint8.

Frames of 32 ms every 16 ms (at 16 kHz 512 and 256 samples; no padding: the last frame ends within the clip),
periodic Hann window, power of the Fourier transform, 40 triangular filters of height 1 whose corners are
evenly spaced from 20 to 7600 Hz on the mel scale 2595 log10(1 + f/700). The value is 2 (10 log10(P) + 80) for
samples of -1 to 1, rounded and clipped to 0..255: half decibels above -80 dB.

At another rate frames last as long, powers are scaled as if they were of 16 kHz, and the filters end at 95%
of half the rate: at 8 kHz 3800 Hz.

What a bundle of speech was trained on, and what a device makes of its own recordings, is made here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 16_000  # Hz
FRAME_S, HOP_S = 0.032, 0.016
BANDS = 40
LOWEST_HZ, HIGHEST_HZ = 20.0, 7600.0
FLOOR = 1e-8  # of the power, -80 dB
STEPS_PER_DB = 2.0

Floats = NDArray[np.float64]


def samples_of(frames: int) -> int:
    """The samples at 16 kHz that so many frames take: the first whole frame, then one hop for each other."""
    return round(FRAME_S * RATE) + (frames - 1) * round(HOP_S * RATE)


def one_clip(samples: NDArray[Any], length: int) -> NDArray[Any]:
    """Cut off, or filled up with zeros behind, at `length`; of the same dtype, a new array."""
    clip = np.zeros(length, samples.dtype)
    clip[: len(samples)] = samples[:length]
    return clip


def log_mel(clips: NDArray[Any], rate: int = RATE) -> NDArray[np.uint8]:
    """clips (n, samples), values of 16 bits in any real dtype -> (n, frames, 40): 61 frames a second."""
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
    corners = _hertz(np.linspace(_mel(LOWEST_HZ), _mel(highest), BANDS + 2))
    frequencies = np.arange(frame // 2 + 1) * (rate / frame)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0.0, np.minimum(rising, falling))


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def _hertz(mel: Floats) -> Floats:
    found: Floats = 700 * (10 ** (mel / 2595) - 1)
    return found
