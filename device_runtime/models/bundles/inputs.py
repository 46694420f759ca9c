"""The input of a model: values of a shape and scale, windows of recordings, token ids, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError
from device_runtime.models.text.file import Form, Tokenizer

# The largest figures of a manifest: beyond them it is damaged or an attack, and computing would overflow.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
LARGEST = 1 << 31
Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Shape = tuple[Size, ...]
HIGHEST_RATE = 1e6
Rate = Annotated[float, msgspec.Meta(gt=0, le=HIGHEST_RATE)]  # hertz


class ManifestRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the parts of `manifest.json`: immutable, and unknown fields are an error."""


class File(ManifestRecord, frozen=True):
    """A file of the bundle."""

    file: str
    sha256: str
    bytes: Count


class TextInput(ManifestRecord, frozen=True):
    """How a text becomes token ids: tokenized, put between fixed ids, padded at the end.

    A text that is too long loses its end, never the fixed ids. `template` shows the fixed ids to people, as
    in "{text} It was{mask} ."; if `words` are given, the model predicts each label as one of them.
    """

    form: Form
    tokenizer: File
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int
    template: str = "{text}"
    words: tuple[str, ...] = ()

    def description(self, length: int) -> str:
        """A description for people, for an input of `length` tokens."""
        template = f", read as {self.template!r}" if self.template != "{text}" else ""
        words = f", answered by {', '.join(map(repr, self.words))}" if self.words else ""
        return f"texts as {length} tokens ({self.form}){template}{words}"


class WindowInput(ManifestRecord, frozen=True):
    """How a recording, a table with a row for each time step, is cut into windows of the input's length.

    step: time steps from the beginning of a window to that of the next.
    columns: names of the table's columns that are the channels, in this order; empty: all columns but those
    of the labels or targets.
    horizon: where targets are numbers, a window's are those of the row so many time steps behind its last.
    rate: time steps a second in the recordings that the model was trained with; unset: not known.
    """

    step: Size
    columns: tuple[str, ...] = ()
    horizon: Size | msgspec.UnsetType = msgspec.UNSET
    rate: Rate | msgspec.UnsetType = msgspec.UNSET

    @property
    def ahead(self) -> int:
        """Time steps from the last one of a window to the one whose numbers are its targets."""
        return 0 if self.horizon is msgspec.UNSET else self.horizon

    def description(self, length: int) -> str:
        """A description for people, for windows of `length` time steps."""
        of = f" of the columns {', '.join(self.columns)}" if self.columns else ""
        ahead = f", targets {self.ahead} steps ahead" if self.ahead else ""
        rate = f", {self.rate:g} time steps a second" if isinstance(self.rate, (int, float)) else ""
        return f"windows of {length} time steps{of}, one every {self.step}{ahead}{rate}"


class InputSpec(ManifestRecord, frozen=True):
    """The input of the graphs: (n, *shape), channels first, after `prepare`.

    float32 values, or int64 token ids from 0 to vocabulary - 1. Raises ValueError unless mean and std have
    one value or one per channel; scale, mean and std are finite in float32, scale and std not 0; only ids
    have a vocabulary; the fixed ids of texts are in the vocabulary and leave room for a text; and windows are
    float32 (channels, length), with as many columns as channels.
    """

    shape: Annotated[Shape, msgspec.Meta(min_length=1)]  # without the batch
    scale: float = 1.0  # multiplies the raw values, before mean and std
    mean: tuple[float, ...] = (0.0,)  # one per channel, or one for all
    std: tuple[float, ...] = (1.0,)
    dtype: Literal["float32", "int64"] = "float32"
    vocabulary: Size | None = None
    text: TextInput | msgspec.UnsetType = msgspec.UNSET  # where the ids are those of a text
    window: WindowInput | msgspec.UnsetType = msgspec.UNSET  # where samples are cut from recordings

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, *self.shape[:1]):
                raise ValueError(
                    f"input {self.shape} has {len(values)} values of {name}, not 1 or one per channel"
                )
        with np.errstate(over="ignore"):
            scale, *others = (float(np.float32(value)) for value in (self.scale, *self.std, *self.mean))
        if not all(isfinite(value) for value in (scale, *others)):
            raise ValueError("scale, mean or std of the input is not finite in float32")
        if not scale or not all(others[: len(self.std)]):
            raise ValueError("scale or std of the input is 0 in float32, which leaves nothing of it")
        if (self.dtype == "int64") != (self.vocabulary is not None):
            raise ValueError(f"input of {self.dtype} has vocabulary {self.vocabulary}: int64 alone has one")
        if isinstance(self.text, TextInput):
            self._check_text(self.text)
        if isinstance(self.window, WindowInput):
            if len(self.shape) != 2 or self.vocabulary is not None:
                raise ValueError(f"input is {self.dtype} {self.shape}, expected windows (channels, length)")
            count, names = self.shape[0], self.window.columns
            if names and (len(names) != count or len(set(names)) != count):
                raise ValueError(f"columns are {', '.join(names)}, expected {count} different ones")

    def _check_text(self, text: TextInput) -> None:
        fixed = (*text.before, *text.after, text.padding)
        if self.vocabulary is None or not all(0 <= number < self.vocabulary for number in fixed):
            raise ValueError(f"ids {fixed} around a text are not all of the vocabulary {self.vocabulary}")
        if len(self.shape) != 1 or len(fixed) > self.shape[0]:
            raise ValueError(
                f"input {self.shape} has no room for a text in addition to {len(fixed) - 1} fixed tokens"
            )

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in which prepared samples are kept: float32, or the narrowest that holds all ids.

        Engines take these ids too, and give the graphs int64 (`as_graphs_take`).
        """
        return np.dtype(self.dtype) if self.vocabulary is None else np.min_scalar_type(self.vocabulary - 1)

    def as_graphs_take(self, x: NDArray[Any]) -> NDArray[Any]:
        """Prepared samples in the dtype of the graphs' input, contiguous; as they are if they have it."""
        return np.ascontiguousarray(x, self.dtype)

    @property
    def usual_range(self) -> tuple[float, float] | None:
        """The least and the largest raw value that samples normally have; None if not known.

        0 to `white` if there is one; else ten standard deviations to each side of the mean.
        """
        if self.vocabulary is not None or (self.scale, self.mean, self.std) == (1.0, (0.0,), (1.0,)):
            return None
        if white := self.white:
            return 0.0, white
        ends = [(m + side * abs(s)) / self.scale for m, s in self._channels for side in (-10, 10)]
        return min(ends), max(ends)

    @property
    def white(self) -> float | None:
        """The whole number that `scale` maps to 1, such as 255 for 1/255; None if there is none.

        None for a mean of 1 or more, too: scaled values then go beyond 1, because the input is from -1 to 1
        or `scale` also divides by std.
        """
        if not 0 < self.scale < 1 or max(self.mean) >= 1:
            return None
        steps = 1 / self.scale
        return float(round(steps)) if abs(steps - round(steps)) < 1e-3 * steps else None

    @property
    def _channels(self) -> list[tuple[float, float]]:
        """Mean and std of each channel."""
        count = max(len(self.mean), len(self.std))
        means, stds = (values * (count // len(values)) for values in (self.mean, self.std))
        return list(zip(means, stds, strict=True))

    def prepare(self, raw: NDArray[Any]) -> NDArray[Any]:
        """(raw * scale - mean) / std as float32, or the ids as int64, of shape (n, *shape), a new array.

        raw: shape (n, *shape), any real dtype, for ids integers; the axis of a single channel may be left
        out. Raises TensorError for another shape, or for wrong ids.
        """
        shapes = [self.shape, self.shape[1:]] if self.shape[:1] == (1,) else [self.shape]
        if raw.ndim == 0 or raw.shape[1:] not in shapes:
            shape = ", ".join(str(n) for n in self.shape)
            raise TensorError(f"input is {raw.shape}, expected (n, {shape})")
        raw = raw.reshape((raw.shape[0], *self.shape))
        return self._ids(raw) if self.vocabulary is not None else self._scaled(raw)

    def _scaled(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        channels = (-1, *(1 for _ in self.shape[1:]))
        x = raw.astype(np.float32)
        x *= np.float32(self.scale)
        x -= np.asarray(self.mean, np.float32).reshape(channels)
        x /= np.asarray(self.std, np.float32).reshape(channels)
        return x

    def _ids(self, raw: NDArray[Any]) -> NDArray[np.int64]:
        if raw.dtype.kind not in "iu":
            raise TensorError(f"input is {raw.dtype}, expected integer token ids")
        self.check_ids(raw)
        return raw.astype(np.int64)

    def check_ids(self, ids: NDArray[Any]) -> None:
        """Raises TensorError for an id outside the vocabulary; without a vocabulary, anything passes."""
        if self.vocabulary is None or ids.size == 0:
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise TensorError(f"input holds token id {wrong}, expected 0 to {self.vocabulary - 1}")


LONGEST = 1 << 16
"""Characters of a text that are read; they more than fill the input of any network here."""


@dataclass(frozen=True)
class Texts:
    """Makes inputs of texts. length: tokens of an input, including the fixed ones around a text."""

    spec: TextInput
    tokenizer: Tokenizer
    length: int

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Token ids (n, length): the fixed ones before, the text cut to fit, the fixed ones after, padding.

        Whitespace around a text is removed.
        """
        rows = np.full((len(texts), self.length), self.spec.padding, np.int64)
        room = self.length - len(self.spec.before) - len(self.spec.after)
        for row, text in zip(rows, texts, strict=True):
            tokens = (
                *self.spec.before,
                *islice(self.tokenizer.ids(text.strip()[:LONGEST]), room),
                *self.spec.after,
            )
            row[: len(tokens)] = tokens
        return rows
