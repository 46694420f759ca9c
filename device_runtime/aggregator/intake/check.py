"""Checks contributions before they count; each refusal says why, with values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan, nan

import msgspec

from device_runtime.aggregator.errors import UpdateRefused
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import INLINE_LIMIT, Contribution, Metrics
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.errors import ModelError
from device_runtime.strategies.codecs.chain import Chain
from device_runtime.strategies.errors import KindError, OwnCodeError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import MOST_LOSS, NO_TENSORS, Update
from device_runtime.strategies.interface.kind import AnyStrategy, inapplicable_reason, variant_named
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.robust import lengths
from device_runtime.strategies.statistics import class_statistics, kind_statistics

MOST_METRICS = {
    "train_time_ms": 30 * 86_400_000,  # a month
    "energy_mj": 10**12,  # 278 kWh
    "peak_memory_kib": 2**34,  # 16 TiB
}
"""The largest metrics that one update can have."""
LEAST_LOSS = -1e-3
"""The smallest loss that is accepted: no kind's loss is below 0, except by rounding."""


@dataclass(frozen=True)
class CheckedMessage(Received):
    """A message that a worker has checked. `refusal` says why it is refused; it is empty if the content is
    accepted, and None if it could not be checked.
    """

    refusal: str | None = None


@dataclass(frozen=True)
class ExpectedContribution:
    """The task, run, models and base that a contribution is checked against.

    `manifests` are by member of the family, "" for the main model. `base` gives the base of the round that
    the contribution was made for, by member; no tensors where neither a norm bound nor a codec needs it.
    """

    task: Task
    run: str
    manifests: Mapping[str, Manifest]
    base: Callable[[str], Tensors]


@dataclass(frozen=True)
class UpdateOrigin:
    """The kind, variant, model and base that an update was made from."""

    kind: KindSettings
    variant: AnyStrategy
    manifest: Manifest
    base: Tensors


def kind_of(message: Contribution, offered: ExpectedContribution) -> KindSettings:
    """The settings of the kind, of those offered in its round. Raises UpdateRefused for any other kind."""
    for kind in offered.task.kinds:
        if kind.name == message.kind and kind.in_round(message.round):
            return kind
    names = ", ".join(kind.name for kind in offered.task.offered(message.round)) or "none"
    raise UpdateRefused(f"round {message.round} does not accept kind {message.kind!r}; it accepts {names}")


def variant_of(message: Contribution, kind: KindSettings) -> AnyStrategy:
    """The kind's variant that a contribution names. Raises UpdateRefused if there is none."""
    try:
        return variant_named(kind.strategy, message.form)
    except KindError as error:
        raise UpdateRefused(str(error)) from None


def check_address(message: Contribution, offered: ExpectedContribution) -> None:
    """Raise UpdateRefused for a contribution to another task, or to another run of this one."""
    task = offered.task
    if message.task != task.name:
        raise UpdateRefused(f"it is for task {message.task!r}, this is {task.name!r}")
    if message.run != offered.run:
        raise UpdateRefused(f"it is for run {message.run!r}, this is run {offered.run!r}")


def check_message(message: Contribution, offered: ExpectedContribution) -> None:
    """Check all that can be checked before the content has arrived. Raises UpdateRefused.

    Of a masked content nothing but its size can be checked.
    """
    check_samples(message, 0, offered)
    _check_metrics(message.metrics)
    masks = offered.task.masks
    if masks is not None:
        _check_masked(message, masks, offered)
        return
    if message.mask is not None:
        raise UpdateRefused("it is masked, and this task takes updates in the clear only")
    codec = capabilities.codec_of(kind_of(message, offered).strategy)
    _check_size(message, _expected(message, offered), codec)


def check_samples(message: Contribution, bound: int, offered: ExpectedContribution) -> None:
    """Check the number of samples against the task's limit and `bound`, which the device's hello named.

    `bound` is 0 if no hello has come, as after a restart of the aggregator. Raises UpdateRefused.
    """
    most, count = offered.task.max_num_examples, message.num_examples
    if not 1 <= count <= most:
        raise UpdateRefused(f"num_examples is {count}, expected 1 to {most}")
    if bound and count > bound:
        raise UpdateRefused(f"num_examples is {count}, the hello of the device says that it has {bound}")


def _check_metrics(metrics: Metrics) -> None:
    """Raise UpdateRefused for impossible metrics: in sums, one of them would hide all others."""
    if min(metrics.train_time_ms, metrics.energy_mj, metrics.peak_memory_kib, metrics.epsilon_milli) < 0:
        raise UpdateRefused(f"its metrics are negative: {metrics}")
    for figure, most in MOST_METRICS.items():
        if getattr(metrics, figure) > most:
            raise UpdateRefused(f"its {figure} is {getattr(metrics, figure)}, at most {most} is accepted")
    loss = metrics.train_loss
    if not isnan(loss) and not LEAST_LOSS <= loss <= MOST_LOSS:
        bounds = f"expected 0 to {MOST_LOSS:g}, or nan where none is known"
        raise UpdateRefused(f"its train_loss is {loss:g}, {bounds}")


def _check_masked(message: Contribution, masks: MaskSettings, offered: ExpectedContribution) -> None:
    """Check a contribution to a task whose updates are masked."""
    if message.mask is None:
        raise UpdateRefused("it is in the clear, and this task takes masked updates only")
    if len(message.mask.tags) != len(masks.helpers):
        tags = f"{len(message.mask.tags)} mask helpers"
        raise UpdateRefused(f"its mask is for {tags}, this task has {len(masks.helpers)}")
    if not isnan(message.metrics.train_loss):
        raise UpdateRefused("its train_loss is in the clear, and belongs into the masked update")
    kind = kind_of(message, offered)
    variant = variant_of(message, kind)
    manifest = offered.manifests[variant.member]
    if why := inapplicable_reason(variant, manifest):
        raise UpdateRefused(f"{kind.name} {why}")
    size, expected = _size(message), masked_bytes(variant, manifest, masks)
    if size != expected:
        raise UpdateRefused(f"its masked content has {size} bytes, expected {expected}")


def masked_bytes(variant: AnyStrategy, manifest: Manifest, masks: MaskSettings) -> int:
    """Bytes of a masked update, which are the same in every round and for every base."""
    offered = msgspec.structs.replace(masks.offered(0, 1), noise_milli=int(masks.noisy))
    return layout_of(variant, manifest, NO_TENSORS, offered).content_bytes


def _check_size(message: Contribution, expected: Sequence[TensorSpec], codec: Chain) -> None:
    """Before a content is fetched, raise UpdateRefused if it is larger than expected tensors can be."""
    size, most = _size(message), codec.most_bytes(expected)
    if size > most:
        raise UpdateRefused(f"its content has {size} bytes, expected at most {most}")


def _size(message: Contribution) -> int:
    """Bytes of a contribution's content. Raises UpdateRefused where it has none, two, or one too large."""
    if (message.blob is None) == (not message.body):
        raise UpdateRefused("it has both a body and a blob" if message.body else "it has no content")
    size = message.blob.size if message.blob else len(message.body)
    if message.body and size > INLINE_LIMIT:
        raise UpdateRefused(f"its body has {size} bytes; over {INLINE_LIMIT} it must be a blob")
    return size


def check_content(message: Contribution, content: bytes, offered: ExpectedContribution) -> Tensors:
    """Decode and check the content, whose hash is already verified. Raises UpdateRefused.

    A masked content tells nothing: there are no tensors.
    """
    if message.mask is not None:
        return NO_TENSORS
    kind, expected = kind_of(message, offered), _expected(message, offered)
    variant = variant_of(message, kind)
    base = offered.base(variant.member)
    try:
        update = capabilities.codec_of(kind.strategy).decode(content, base, expected)
        tensors.check(update, class_statistics.expected_of(update, expected))
    except ModelError as error:
        raise UpdateRefused(str(error)) from None
    origin = UpdateOrigin(kind, variant, offered.manifests[variant.member], base)
    if why := update_refusal(update, message.num_examples, origin):
        raise UpdateRefused(why)
    return update


def _expected(message: Contribution, offered: ExpectedContribution) -> Sequence[TensorSpec]:
    """The tensors that a contribution may hold. Raises UpdateRefused for a kind that is not offered."""
    variant = variant_of(message, kind_of(message, offered))
    return kind_statistics.accepted(variant, offered.manifests[variant.member])


def update_refusal(update: Tensors, num_examples: int, of: UpdateOrigin) -> str:
    """Why tensors of the expected names and shapes are refused, with values; empty if they are accepted.

    Asked in order: the bundle's loss, class statistics, variances, the kind, the task's `max_norm`.
    """
    if why := inapplicable_reason(of.variant, of.manifest):
        return f"{of.kind.name} {why}"
    rest, statistics = class_statistics.split_statistics(update)
    if why := kind_statistics.rejection_reason(of.variant, statistics, num_examples, of.manifest):
        return why
    for key in rest:
        if key.endswith(".running_var") and (least := rest[key].min()) < 0:
            return f"{key} holds {least:.4g}, which is no variance"
    kind, strategy = of.kind, of.kind.strategy
    try:
        with own_code(type(strategy)):
            why = strategy.rejection_reason(rest, num_examples)
    except OwnCodeError as error:  # refuses the update: one device must not end the run
        why = f"the check of {kind.name} fails: {error}"
    if why or kind.max_norm is None:
        return why
    candidate = Update(kind.name, rest, num_examples, nan, of.variant.variant)
    return lengths.rejection_reason(strategy, candidate, of.base, kind.max_norm)


BASES_HELD = 2
"""Bases of each model kept in memory: the open round's, and that of the round of a late contribution."""


class ExpectedContributions:
    """Makes the `ExpectedContribution` of each round of a run, and caches the bases that they need.

    `weights` reads the base of a round and a member of `manifests`.
    """

    def __init__(
        self,
        task: Task,
        run: str,
        manifests: Mapping[str, Manifest],
        weights: Callable[[int, str], Tensors],
    ) -> None:
        self._of = (task, run, manifests)
        self._base = lru_cache(BASES_HELD * len(manifests))(weights)
        self.offered = lru_cache(2 * BASES_HELD)(self._offered)
        self.needs_base = any(
            kind.max_norm is not None or capabilities.codec_of(kind.strategy).word for kind in task.kinds
        )

    def _offered(self, number: int) -> ExpectedContribution:
        """The expectation for round `number`, 0 for none; the base is read only when it is needed."""
        needed = self.needs_base and number > 0
        return ExpectedContribution(*self._of, lambda member: self._base(number, member) if needed else {})
