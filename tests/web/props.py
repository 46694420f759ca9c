"""What Chromium takes for its microphone and camera, and how near what is heard comes to what was said."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.data.sound import RATE, log_mel, resampled, samples_of

FRAMES, BANDS = 61, 40
FAST_HZ = 48_000
"""What a browser records at."""
SIDE = 256
"""Pixels of what the camera sees."""


class Props:
    """Files that are read anew each time that microphone or camera is switched on; `flags` name them."""

    def __init__(self, folder: Path) -> None:
        self._wav, self._film = folder / "microphone.wav", folder / "camera.y4m"
        self.say(np.zeros(FAST_HZ), FAST_HZ)
        self.show(np.zeros((16, 16, 3), np.uint8))
        self.flags = (
            f"--use-file-for-fake-audio-capture={self._wav}%noloop",
            f"--use-file-for-fake-video-capture={self._film}",
        )

    def say(self, samples: NDArray[Any], rate: int) -> None:
        """Samples (n,), -32768 to 32767."""
        with wave.open(str(self._wav), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(np.asarray(samples).astype("<i2").tobytes())

    def show(self, picture: NDArray[np.uint8]) -> None:
        """A picture (h, w, 3), enlarged and shown for ever: BT.601, 16 to 235."""
        times = SIDE // len(picture)
        red, green, blue = np.kron(picture, np.ones((times, times, 1))).transpose(2, 0, 1) / 255
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        planes = [16 + 219 * luma]
        planes += [
            128 + 224 * (colour - luma)[::2, ::2] / far for colour, far in ((blue, 1.772), (red, 1.402))
        ]
        frame = b"FRAME\n" + b"".join(np.rint(plane).astype(np.uint8).tobytes() for plane in planes)
        self._film.write_bytes(f"YUV4MPEG2 W{SIDE} H{SIDE} F20:1 Ip A1:1 C420\n".encode() + 4 * frame)


def record(page: Any) -> None:
    """Until it has heard what it waits for."""
    page.get_by_role("button", name="Record").click()
    page.wait_for_selector("#pad button:disabled")
    page.wait_for_selector("#pad button:enabled")


def nearest(features: NDArray[Any], samples: NDArray[Any], rate: int) -> tuple[float, NDArray[Any]]:
    """Where in a sound features (61, 40) were made, in s, and how far each is from Python's own there."""
    count = samples_of(FRAMES)
    sound = resampled(samples.astype(np.float32), rate, RATE, len(samples) * RATE // rate)

    def far(first: int) -> NDArray[Any]:
        return np.abs(log_mel(sound[None, first : first + count])[0].astype(int) - features)

    coarse = min(range(0, len(sound) - count, 160), key=lambda first: far(first).mean())
    around = range(max(0, coarse - 160), min(len(sound) - count, coarse + 160), 4)
    first = min(around, key=lambda first: far(first).mean())
    return first / RATE, far(first)
