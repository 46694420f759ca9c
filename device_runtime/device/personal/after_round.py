"""Keeps the base of a round after its work, and evaluates it on samples held out of training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite, nan

from device_runtime.broker.wire.messages import Offer
from device_runtime.device.errors import DeviceError, WorkStopped
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError
from device_runtime.models.training.evaluation import anomaly_threshold, evaluate
from device_runtime.models.training.heads import Evaluation, SoftmaxHead, accuracy_and_loss
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds.few_shot import FewShot

from .kept import PersonalModelStore, RoundEvaluation, begun_with

log = logging.getLogger(__name__)


def keep(keeper: PersonalModelStore, offer: Offer, bundle: Bundle, weights: Tensors) -> None:
    """Keep the base of a round. If the disk fails, log a warning: the round goes on."""
    try:
        keeper.keep(offer, bundle, weights)
    except (OSError, ModelError) as error:
        log.warning("%s cannot be kept: %s", begun_with(offer.round), error)


def judge(
    keeper: PersonalModelStore, number: int, evaluate_model: Callable[[], PersonalEvaluation], head: str = ""
) -> None:
    """Judge the model that round `number` began with, by `evaluate_model`; log and save the figures.

    `head`: words for its head, where the aggregator may serve another. A failure is logged as a warning.
    """
    try:
        evaluation = evaluate_model()
        figures = RoundEvaluation(
            number,
            _finite(evaluation.served),
            _finite(evaluation.own_head),
            evaluation.head is not None,
            evaluation.threshold if isfinite(evaluation.threshold) else None,
        )
        keeper.judge(figures, evaluation.head)
    except WorkStopped:
        log.info("%s is not judged: the device stops", begun_with(number))
        return
    except (OSError, ModelError, DeviceError) as error:
        log.warning("%s was not judged: %s", begun_with(number), error)
        return
    log.info("%s%s %s", begun_with(number), head, _sentence(evaluation))


def _finite(evaluation: Evaluation | None) -> Evaluation | None:
    """The figures; None if they are not finite, as these are not saved."""
    return evaluation if evaluation is not None and isfinite(evaluation.eval_loss) else None


def _sentence(evaluation: PersonalEvaluation) -> str:
    text = _figures(evaluation.served)
    if evaluation.own_head is not None:
        text += f"; with an own head it {_figures(evaluation.own_head)}, "
        text += "which is used" if evaluation.head is not None else "which is not used"
    return text


def _figures(evaluation: Evaluation) -> str:
    verb = "is right in" if evaluation.metric == ACCURACY else "has"
    return f"{verb} {evaluation.description} here (eval_loss {evaluation.eval_loss:.3f})"


@dataclass(frozen=True)
class PersonalEvaluation:
    """Figures of a model on held-out samples: as served, and with an own head if one was trained.

    `head` are the tensors of the own head, if it is the better one. `threshold`: the reconstruction error
    above which a sample is an anomaly, by all samples of the device; NaN for models that do not reconstruct.
    """

    served: Evaluation
    own_head: Evaluation | None = None
    head: Tensors | None = None
    threshold: float = nan


@dataclass(frozen=True)
class OwnHead:
    """Settings to train an own head, by the few-shot rule from the served one; `seed` seeds its draws."""

    seed: int
    device: str
    clock: Callable[[], float]


def personal_evaluation(
    model: DeviceModel, training: LocalData, test: LocalData, own: OwnHead | None
) -> PersonalEvaluation:
    """Evaluate the loaded model on `test`; with `own` also with a head trained on `training`.

    The own head is better if it gets more held-out samples right, or as many at a lower loss; where the loss
    is not cross-entropy there is none. Raises ModelError, and what the model's watch raises.
    """
    if not model.manifest.target.is_cross_entropy:
        parts = [(side.x, side.y) for side in (training, test)]
        reconstructs = model.manifest.target.compared == "input"
        served, threshold = evaluate(model, test.x, test.y), nan
        if reconstructs:  # the threshold is by all samples, not by those held out
            threshold = anomaly_threshold(model, *parts)
            served = replace(served, metrics={**served.metrics, "threshold": threshold})
        return PersonalEvaluation(served, threshold=threshold)
    passed, weights = model.forward(test.x), model.manifest.target.class_weights
    served = accuracy_and_loss(passed.logits, test.y, weights)
    if own is None or not len(test) or len(set(training.y.tolist())) < 2:
        return PersonalEvaluation(served)
    trained = FewShot().train(model, training, Run(own.seed, own.device, own.clock, upload_at=inf)).tensors
    logits = SoftmaxHead(model.manifest, trained).logits(passed.features)
    own_head = accuracy_and_loss(logits, test.y, weights)
    better = (own_head.eval_acc, -own_head.eval_loss) > (served.eval_acc, -served.eval_loss)
    return PersonalEvaluation(served, own_head, trained if better else None)
