"""Settings of masked sums: mask helpers, smallest group, and noise.

Central differential privacy: the noise of a task's sums, and the budget that rounds spend.

A sum's noise has the deviation noise * clip_norm in each value, where a device's changes, weighed by at most
1, are no longer than clip_norm. That protects all that one device sent (not single samples), from everybody
who sees sums or models: the aggregator too, as long as no helper works together with it. Each round spends
from the budget, for devices that take part in it. There is no discount for rounds that ask some devices only:
the aggregator knows which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import Annotated

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.broker.wire.messages import HelperKey, Masks
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.masking import noise
from device_runtime.strategies.masking.layout import SumLayout
from device_runtime.strategies.masking.seeds import KEY_BYTES, helper_key
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.terms.accountant import (
    PrivacyBudget,
    PrivacyError,
    PrivacySpending,
    least_noise,
    total_epsilon,
)

MOST_HELPERS = 3
MOST_GROUP = 2**19
LEAST_CAPACITY, MOST_CAPACITY = 64, 2**20
"""The fewest and the most devices that the fixed point of a sum has room for."""
DIVIDED_FROM = 1024
"""The most devices that sums without noise have room for; larger sums are divided."""
TIMES_MEDIAN = 100
"""How many times the median number of samples the largest weight may be."""
MOST_ALONE = 16
"""The most kinds that an offer names as alone."""
_EXAMPLE = ("site-a=" + "5b" * KEY_BYTES,)
_NOISE = {"helpers": _EXAMPLE, "epsilon": 4.0, "delta": 1e-6, "clip_norm": 1.0}


class MaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """How a task's updates are masked, so that the aggregator learns sums of them only.

    helpers: the name of each mask helper at the broker, and its public key (X25519) in hexadecimal digits.
    min_group: no sum of fewer devices is opened.
    epsilon, delta, clip_norm: central differential privacy of the whole run, with noise of the helpers; all
    three or none. Raises ValueError.
    """

    helpers: Annotated[
        tuple[str, ...],
        Setting(
            "Mask updates with these 1 to 3 mask helpers: name at the broker, and public key in hexadecimal.",
            _EXAMPLE,
            flag="mask-helpers",
            metavar="NAME=KEY,..",
        ),
    ]
    min_group: Annotated[
        int,
        Setting(
            "Smallest number of devices whose sum is revealed.",
            5,
            "devices",
            flag="min-group",
            at_least=2,
            at_most=MOST_GROUP,
            beside={"helpers": _EXAMPLE},
        ),
    ] = 3
    epsilon: Annotated[
        float | None,
        Setting(
            "Add noise to sums, by this privacy budget of the run.",
            4.0,
            none="no noise",
            flag="mask-epsilon",
            more_than=0,
            beside=_NOISE,
        ),
    ] = None
    delta: Annotated[
        float | None,
        Setting(
            "Probability that epsilon does not hold, with noise.",
            1e-6,
            flag="mask-delta",
            more_than=0,
            less_than=1,
            beside=_NOISE,
        ),
    ] = None
    clip_norm: Annotated[
        float | None,
        Setting(
            "Clip a device's changes to this norm, with noise.",
            1.0,
            "Euclidean norm",
            flag="mask-clip-norm",
            at_least=0.001,
            at_most=1e6,
            beside=_NOISE,
        ),
    ] = None

    def __post_init__(self) -> None:
        ranges.check(self)
        if not 1 <= len(self.helpers) <= MOST_HELPERS:
            raise ValueError(f"helpers are {len(self.helpers)}, expected 1 to {MOST_HELPERS}")
        names, keys = [helper.name for helper in self.keys], [helper.key for helper in self.keys]
        if len(set(names)) < len(names) or len(set(keys)) < len(keys):
            raise ValueError(f"helpers are {', '.join(self.helpers)}: each name and key can be given once")
        settings = [name for name in ("epsilon", "delta", "clip_norm") if getattr(self, name) is not None]
        if len(settings) in (1, 2):
            raise ValueError(f"noise needs epsilon, delta and clip_norm; given: {', '.join(settings)}")

    @cached_property
    def keys(self) -> tuple[HelperKey, ...]:
        """The helpers with their public keys. Raises ValueError."""
        return tuple(helper_key(text) for text in self.helpers)

    @property
    def noisy(self) -> bool:
        """Whether helpers add noise to sums."""
        return self.epsilon is not None

    def offered(self, devices: int, most_weight: int, alone: tuple[str, ...] = ()) -> Masks:
        """How the updates of a round are masked.

        devices: those that are expected. most_weight: the largest weight of one, in samples. alone: kinds
        that too few devices chose in the last round. There is room for twice as many devices, as others may
        come, and for two groups, so that a larger sum can be divided. Room costs precision. So sums of more
        than `DIVIDED_FROM` devices are divided, unless they have noise: each part would get noise of its own.
        """
        expected = devices if self.noisy else min(devices, DIVIDED_FROM // 2)
        room = max(LEAST_CAPACITY, 2 * expected, 2 * self.min_group)
        return Masks(
            helpers=self.keys,
            min_group=self.min_group,
            capacity=min(MOST_CAPACITY, 1 << (room - 1).bit_length()),
            most_weight=max(1, most_weight),
            alone=alone[:MOST_ALONE],
        )

    def unmaskable_reason(self, strategy: AnyStrategy) -> str:
        """Why updates of a kind cannot be masked; empty if they can."""
        if why := capabilities.unsummable_reason(strategy):
            return why
        if codec := capabilities.codec_of(strategy).word:
            return f"numbers that its codec {codec} packs do not add up"
        if self.noisy and (summed := capabilities.summed(strategy)):
            return f"{' and '.join(summed)} are sent without noise, and masks.epsilon asks for noise"
        return ""


def most_weight_of(samples: Iterable[int]) -> int:
    """The largest of the devices' numbers of samples, but at most 100 times the median; 0 without any.

    Weights are sent in parts of it: one device that says a huge number would take the precision of all.
    """
    counts = sorted(samples)
    return min(counts[-1], TIMES_MEDIAN * counts[len(counts) // 2]) if counts else 0


ROUNDING = 0.01
"""Rounding may lengthen a device's changes by this share of clip_norm, and noise is larger by it."""
EVERY_ROUND = 1.0
"""The sampling rate: every device may take part in every round."""


@dataclass(frozen=True)
class CentralNoise:
    """The noise with which `rounds` rounds stay within a budget.

    The discrete Gaussian is accounted for as a Gaussian, whose privacy it has or better (Canonne, Kamath,
    Steinke 2020, theorem 7).
    """

    budget: PrivacyBudget
    clip_norm: float
    rounds: int

    @classmethod
    def of(cls, masks: MaskSettings, rounds: int) -> CentralNoise | None:
        """The noise of a task with so many rounds; None without.

        Raises TaskError where no noise is enough, or dp-accounting is missing.
        """
        if masks.epsilon is None or masks.delta is None or masks.clip_norm is None:
            return None
        central = cls(PrivacyBudget(masks.epsilon, masks.delta), masks.clip_norm, rounds)
        try:
            _ = central.noise_milli
        except (ValueError, PrivacyError) as error:
            raise TaskError(f"masks.epsilon: {error}") from None
        return central

    @cached_property
    def noise_milli(self) -> int:
        """Noise multiplier in thousandths, rounded up. Raises PrivacyUnavailable, ValueError."""
        least = least_noise(self.budget, EVERY_ROUND, self.rounds)
        return ceil(1000 * least * (1 + ROUNDING))

    @property
    def clip_milli(self) -> int:
        """The clipping norm in thousandths, rounded down."""
        return int(1000 * self.clip_norm + 1e-6)

    @property
    def deviation(self) -> float:
        """Deviation of the noise in a sum, in the units of a weight's change (see `noise.add_noise`)."""
        return noise.deviation_of(self.noise_milli, self.clip_milli)

    def added_to(self, masks: Masks) -> Masks:
        """The masks of an offer, with this noise."""
        return msgspec.structs.replace(masks, noise_milli=self.noise_milli, clip_milli=self.clip_milli)

    def spent(self, rounds: Iterable[int]) -> float:
        """Epsilon that rounds with these noise multipliers (in thousandths) spend, at the budget's delta.

        Raises PrivacyUnavailable.
        """
        counts = Counter(rounds)
        return total_epsilon(
            [
                PrivacySpending(noise_milli / 1000 / (1 + ROUNDING), EVERY_ROUND, count, count)
                for noise_milli, count in counts.items()
            ],
            self.budget.delta,
        )

    def refusal(self, rounds: Sequence[int]) -> str:
        """Why one round more, after these, would be too many; empty if it is within the budget.

        Raises PrivacyUnavailable.
        """
        spent = self.spent((*rounds, self.noise_milli))
        if spent <= self.budget.epsilon:
            return ""
        return (
            f"one more round would spend epsilon {spent:.4g} after {len(rounds)} with noise, and the budget "
            f"is {self.budget}"
        )

    def misfit(self, layout: SumLayout) -> str:
        """Why the fixed point of updates has no room for the noise, or is too coarse; empty if it fits."""
        exponents = [exponent for _, exponent in layout.exponents]
        clip_norm = self.clip_milli / 1000
        rounding = 0.5 * sqrt(sum(count * 4.0**-exponent for count, exponent in layout.exponents))
        if rounding > ROUNDING * clip_norm:
            return (
                f"rounding changes an update by up to {rounding:.2g}, more than {ROUNDING:.0%} of "
                f"masks.clip_norm = {clip_norm:g}: give a larger clip_norm"
            )
        most = noise.MOST * 2.0 ** -max(exponents, default=0)
        if self.deviation > most:
            return (
                f"noise of {self.deviation:.4g} in a sum is more than the fixed point has room for "
                f"({most:.4g}): give a smaller masks.clip_norm, or a larger masks.epsilon"
            )
        return ""
