"""What a device does for itself once a round's work is sent: keep the served model, and judge it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import isfinite

from device_runtime.broker.wire.messages import Offer
from device_runtime.client.errors import DeviceError, Stopped
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ModelError
from device_runtime.models.training.softmax import Evaluation

from .judging import Judgement
from .kept import Judged, Keeper, begun_with

log = logging.getLogger(__name__)


def keep(keeper: Keeper, offer: Offer, bundle: Bundle, weights: Tensors) -> None:
    """The served model of a round. A disk that fails costs a warning: the round goes on."""
    try:
        keeper.keep(offer, bundle, weights)
    except (OSError, ModelError) as error:
        log.warning("%s cannot be kept: %s", begun_with(offer.round), error)


def judge(keeper: Keeper, number: int, judged: Callable[[], Judgement]) -> None:
    """The model that round `number` began with, as `judged` finds it; told and written down. A failure costs
    a warning.
    """
    try:
        found = judged()
        told = Judged(number, _finite(found.served), _finite(found.own_head), found.head is not None)
        keeper.judge(told, found.head)
    except Stopped:
        log.info("%s is not judged: the device stops", begun_with(number))
        return
    except (OSError, ModelError, DeviceError) as error:
        log.warning("%s was not judged: %s", begun_with(number), error)
        return
    log.info("%s is right in %s", begun_with(number), _said(found))


def _finite(found: Evaluation | None) -> Evaluation | None:
    """Figures that are no numbers are not written down."""
    return found if found is not None and isfinite(found.eval_loss) else None


def _said(found: Judgement) -> str:
    text = _figures(found.served)
    if found.own_head is not None:
        text += f"; with an own head in {_figures(found.own_head)}, "
        text += "which is used" if found.head is not None else "which is not used"
    return text


def _figures(found: Evaluation) -> str:
    right = f"{found.eval_acc:.1%} of {found.num_examples} samples held out here"
    return f"{right} (eval_loss {found.eval_loss:.3f})"
