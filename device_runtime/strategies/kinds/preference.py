"""Orders forms of update by their measured gain (ours).

`benchmarks/gain_of_forms.py` measures it, on classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from device_runtime.strategies.interface.capabilities import selected_share
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.training.local_training import PartialEpochs

GAINS: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "full": ((0.0, 0.0), (0.25, 10.9), (0.5, 11.6), (1.0, 12.3)),
        "entropy-subset": ((0.0, 0.0), (0.125, 11.9), (0.5, 12.3)),
        "few-shot": ((1.0, 11.9),),
        "class-means": ((1.0, 12.2),),
        "zeroth-order": ((1.0, 0.0),),
    }
)
"""Points of accuracy that stragglers add by sending a form of a kind, by its share of the kind's work.

The work is the samples times the epochs that are trained, as a share of all samples and all epochs. Scalars
count without the class statistics beside them.
"""


def by_gain(kinds: Sequence[AnyStrategy]) -> tuple[AnyStrategy, ...]:
    """The forms of these kinds, those of the highest gain first; of equal gain in the order of the kinds.

    A form of a kind that was not measured stays behind the form that is listed before it. A form by class
    that gains less than class means is left out: it costs more, and applies where they do.
    """
    gains: list[float] = []
    forms: list[AnyStrategy] = []
    least = max((gain(kind, kind, 0.0) for kind in kinds if kind.traits.statistics_alone), default=0.0)
    for kind in kinds:
        for form in kind.variants():
            points = gain(kind, form, gains[-1] if gains else np.inf)
            if points >= least or not kind.traits.by_class:
                gains.append(points)
                forms.append(form)
    return tuple(forms[place] for place in np.argsort(-np.array(gains), kind="stable"))


def gain(kind: AnyStrategy, form: AnyStrategy, otherwise: float) -> float:
    """The gain of a form, rounded to whole points; `otherwise` if its kind was not measured.

    Runs differ by about a point. Between measured shares of work it is interpolated, below the smallest down
    to nothing.
    """
    if kind.name not in GAINS:
        return otherwise
    work = selected_share(form)
    if isinstance(kind, PartialEpochs) and isinstance(form, PartialEpochs):
        work *= form.epochs / kind.epochs
    shares, points = zip(*GAINS[kind.name], strict=True)
    return float(np.round(np.interp(work, shares, points)))
