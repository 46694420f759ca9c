"""Predictions of the personal model that a device keeps, and its export to ONNX."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import single
from device_runtime.models.data.cells import TextCell
from device_runtime.models.data.reading import inputs
from device_runtime.models.data.units import Refused
from device_runtime.models.engines.onnx_nodes import graph_with_weights as whole_graph
from device_runtime.models.engines.onnx_nodes import metadata_of
from device_runtime.models.errors import DataError, TensorError
from device_runtime.models.training.evaluation import predicted_values, reconstruction_errors, sigmoid
from device_runtime.models.training.heads import log_softmax
from device_runtime.user_account import expanded

from .kept import PersonalModel, PersonalModelStore, RoundEvaluation

SHOWN = 60
"""Most characters of a text that are shown in its place."""


@dataclass(frozen=True)
class Guess:
    """A label of the task, and its probability by the model, 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """Guesses for one sample, the most probable first; or what a model of another loss says.

    `number` counts the samples of a file, from 0. For a text without a file, `file` is its beginning; for
    an array it is "array".
    values: the predicted values by column, in original units.
    error: how far the sample is from its reconstruction; above `threshold` it is an anomaly (None: unknown).
    """

    file: str
    number: int
    guesses: tuple[Guess, ...]
    values: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    threshold: float | None = None

    @property
    def label(self) -> str:
        """The most probable label; empty where the model predicts something else."""
        return self.guesses[0].label if self.guesses else ""

    @property
    def is_anomaly(self) -> bool | None:
        """Whether the error is above the threshold; None if either is not known."""
        if self.error is None or self.threshold is None:
            return None
        return self.error > self.threshold


class Personal:
    """The model that a device keeps: of its last round, with its own head if that is better.

    >>> Personal.open("~/.local/state/device-runtime/kitchen-pi").predict("photo.png")[0].label
    """

    def __init__(self, personal: PersonalModel, engine: EngineSettings | None = None) -> None:
        """Nothing is loaded until the first prediction."""
        self.manifest, self.record = personal.bundle.manifest, personal.record
        self._personal, self._engine = personal, engine or EngineSettings()

    @classmethod
    def open(cls, folder: Path | str, engine: EngineSettings | None = None) -> Personal:
        """The model of the device with this folder. Raises NothingKept."""
        return cls(PersonalModelStore(expanded(folder)).read(), engine)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.manifest.labels

    @property
    def judged(self) -> RoundEvaluation | None:
        """Figures on the samples held out here; None if it is not judged yet."""
        rounds = self.record.rounds
        return rounds[-1] if rounds and rounds[-1].round == self.record.round else None

    def probabilities(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """raw (n, *input), before the bundle's preparation -> (n, labels). Raises ModelError.

        Raises DataError for a model that predicts no labels.
        """
        target = self.manifest.target
        if target.compared not in ("classes", "flags"):
            raise DataError(f"{self.manifest.name} predicts no labels: its loss is {target.description}")
        return self._probabilities(self._model.logits(self.manifest.input.prepare(raw)))

    def _probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.manifest.target.compared == "flags":
            return sigmoid(logits)
        probabilities: NDArray[np.float32] = np.exp(log_softmax(logits))
        return probabilities

    def predict(self, file: Path | str | NDArray[Any], top: int = 3) -> list[Prediction]:
        """The `top` labels for each sample of a file, or of an array of raw inputs (n, *input).

        A file is a picture, a sound, a text, a .npy or .npz file (x), a table (with or without labels) or
        `sqlite:FILE?QUERY`. Raises DataError for a file that is none of these, or does not fit this task.
        """
        if isinstance(file, np.ndarray):
            samples = file
            return self._answer("array", lambda: samples, top)
        if os.path.isdir(file):  # noqa: PTH112 (Path's raises for a query that is too long for a name)
            raise DataError(f"{file} is a folder: name its files, as in photos/*.png")
        texts = self._personal.bundle.texts
        spec, target = self.manifest.input, self.manifest.target
        return self._answer(str(file), lambda: inputs(file, spec, self.labels, texts, target), top)

    def read(self, text: str, top: int = 3) -> list[Prediction]:
        """The `top` labels of a text. Raises DataError if the task's input is not text."""

        def ids() -> NDArray[Any]:
            return single.raw(TextCell(text), self.manifest.input, self._personal.bundle.texts)

        return self._answer(text if len(text) <= SHOWN else f"{text[: SHOWN - 2]}..", ids, top)

    def _answer(self, name: str, inputs: Callable[[], NDArray[Any]], top: int) -> list[Prediction]:
        try:
            x = self.manifest.input.prepare(inputs())
            outputs = self._model.logits(x)
            if not np.isfinite(outputs).all():
                raise Refused("what it holds, or the model, is not finite")
        except (Refused, TensorError) as error:
            raise DataError(f"{name}: {error}") from None
        target = self.manifest.target
        if target.compared == "values":
            rows = predicted_values(target, outputs).tolist()
            cells = [dict(zip(target.columns, row, strict=True)) for row in rows]
            return [Prediction(name, number, (), values) for number, values in enumerate(cells)]
        if target.compared == "input":
            threshold = self.judged.threshold if self.judged else None
            errors = reconstruction_errors(target, outputs, x).tolist()
            return [Prediction(name, number, (), {}, e, threshold) for number, e in enumerate(errors)]
        table = self._probabilities(outputs)
        return [Prediction(name, number, _guesses(row, self.labels, top)) for number, row in enumerate(table)]

    def export_onnx(self, path: Path | str) -> None:
        """Write one ONNX file with the weights inside: prepared x to logits.

        Its metadata say how to prepare x. Raises ModelError, DataError if the disk fails.
        """
        data = whole_graph(self._personal.bundle, self._personal.weights, self._metadata())
        try:
            replace_file(Path(path), data, mode=0o666)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None

    @cached_property
    def _model(self) -> Any:
        model = open_model(self._personal.bundle, self._engine)
        model.load(self._personal.weights)
        return model

    def _metadata(self) -> dict[str, str]:
        record, judged = self.record, self.judged
        return {
            **metadata_of(self.manifest),
            "task": record.task,
            "round": str(record.round - 1),  # the round that made it
            "own_head": json.dumps(bool(record.head)),
            "judged": msgspec.json.encode(judged).decode() if judged else "",
        }


def _guesses(row: NDArray[np.float32], labels: Sequence[str], top: int) -> tuple[Guess, ...]:
    best = np.argsort(-row, kind="stable")[:top]
    return tuple(Guess(labels[number], float(row[number])) for number in best.tolist())
