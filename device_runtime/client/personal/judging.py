"""How good a model is on the samples that were kept out of training, as it is served and with an own head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.head import SoftmaxHead
from device_runtime.models.training.softmax import Evaluation, accuracy_and_loss
from device_runtime.strategies.few_shot import FewShot
from device_runtime.strategies.training.device_half import LocalData, Run


@dataclass(frozen=True)
class Judgement:
    """`own_head` is of the head that was trained here, `head` are its tensors where it is the better one."""

    served: Evaluation
    own_head: Evaluation | None = None
    head: Tensors | None = None


@dataclass(frozen=True)
class OwnHead:
    """How a head is trained on: by the few-shot rule, from the served one; the draws are those of `seed`."""

    seed: int
    device: str
    clock: Callable[[], float]


def judged(model: DeviceModel, training: LocalData, held: LocalData, own: OwnHead | None) -> Judgement:
    """The model as it is loaded, on what was held out; with `own` also with a head trained on `training`.

    A head is better with more of the held-out samples right, or as many at a lower loss. Raises ModelError,
    and what the model's watch raises.
    """
    passed = model.forward(held.x)
    served = accuracy_and_loss(passed.logits, held.y)
    if own is None or not len(held) or len(set(training.y.tolist())) < 2:
        return Judgement(served)
    trained = FewShot().train(model, training, Run(own.seed, own.device, own.clock, deadline=inf)).tensors
    logits = SoftmaxHead(model.manifest, trained).logits(passed.features)
    found = accuracy_and_loss(logits, held.y)
    better = (found.eval_acc, -found.eval_loss) > (served.eval_acc, -served.eval_loss)
    return Judgement(served, found, trained if better else None)
