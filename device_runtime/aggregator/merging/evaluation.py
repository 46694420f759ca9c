"""Evaluates models on the task's evaluation data, and summarises a round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.machine.run_events import ContributionRecord, RoundRecord
from device_runtime.aggregator.storage.contributions import DeviceTraffic
from device_runtime.aggregator.storage.store import ModelEvaluation
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.evaluation import evaluate
from device_runtime.models.training.heads import Evaluation
from device_runtime.models.training.metrics import FurtherMetrics, MetricError

from .merge_round import samples

log = logging.getLogger(__name__)


class Evaluator:
    """Evaluates a bundle on the task's data; without data every figure is nan."""

    def __init__(self, bundle: Bundle, data: str | None, metrics: Sequence[str] = ()) -> None:
        """`data` is written as a device's `--data`. metrics: further ones (`FurtherMetrics`).

        Raises TaskError for data or metrics that do not fit the bundle.
        """
        try:
            self._metrics = FurtherMetrics(metrics, bundle.manifest.target)
        except MetricError as error:
            raise TaskError(str(error)) from None
        if tables := self._metrics.tables:
            raise TaskError(f"metric {tables[0]} is a table, which rounds do not have")
        if metrics and not data:
            log.warning("metrics (%s) has no effect without eval_data", ", ".join(metrics))
        self._model = open_model(bundle) if data else None
        self._metric = bundle.manifest.target.metric
        if data:
            self._data = samples(data, bundle, "evaluation data")

    def evaluate(self, weights: Tensors) -> Evaluation:
        """The metrics and loss of the bundle with these weights."""
        if self._model is None:
            return Evaluation(nan, nan, 0)
        self._model.load(weights)
        evaluation = evaluate(self._model, self._data.x, self._data.y)
        more = self._metrics.of(self._model, self._data.x, self._data.y)
        return replace(evaluation, metrics={**evaluation.metrics, **more})

    def figures(self, served: Tensors, base: Tensors) -> ModelEvaluation:
        """Evaluates a round's served model and next base."""
        of_served, of_base = self.evaluate(served), self.evaluate(base)
        return ModelEvaluation(
            of_served.eval_acc, of_served.eval_loss, of_base.eval_acc, self._metric, of_served.metrics
        )


def reason_to_serve_trained_head(served_acc: float, base_acc: float) -> str:
    """The reason to serve the next base, with its trained head; empty where it is not better.

    The accuracies are of the served model and of the next base, nan where they were not evaluated.
    """
    if not base_acc > served_acc:
        return ""
    return (
        f"eval_acc {served_acc:.3f} with the closed-form head, {base_acc:.3f} with the "
        "trained one, which is served"
    )


def mean_loss(losses: Iterable[tuple[float, int]]) -> float:
    """The mean of the finite training losses, weighted by samples; nan if there is none."""
    pairs = [(loss, samples) for loss, samples in losses if isfinite(loss)]
    samples = sum(samples for _, samples in pairs)
    return sum(loss * samples for loss, samples in pairs) / samples if samples else nan


def summarise(
    figures: ModelEvaluation,
    contributions: Sequence[ContributionRecord],
    traffic: Mapping[str, DeviceTraffic],
    lasted: tuple[int, float],
) -> RoundRecord:
    """The record of a round; `lasted` is its number and its duration in seconds."""
    number, duration_s = lasted
    return RoundRecord(
        round=number,
        train_loss=mean_loss((c.train_loss, c.num_examples) for c in contributions),
        participants=len({c.device for c in contributions}),
        energy_j=sum(c.energy_j for c in contributions),
        train_time_s=sum(c.train_time_s for c in contributions),
        bytes_up=sum(moved.up for moved in traffic.values()),
        bytes_down=sum(moved.down for moved in traffic.values()),
        duration_s=duration_s,
        **vars(figures),
    )
