"""Masks an update for the helpers of an offer, so that the aggregator can read only sums of updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_runtime.broker.wire.messages import Mask, Masks, Offer
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import KindError, MaskError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import NO_TENSORS, Update
from device_runtime.strategies.interface.kind import AnyStrategy, variant_named
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.seeds import KEY_BYTES, MaskPurpose, seal
from device_runtime.strategies.masking.sums import Weighed
from device_runtime.strategies.training.workload import ENVELOPE_BYTES

SECRET_BYTES = KEY_BYTES
"""Random bytes that each masked update takes."""


@dataclass(frozen=True)
class MaskedUpdate:
    """The content of a masked contribution, its mask, and what was shortened so that it fits; "": nothing."""

    body: memoryview
    mask: Mask
    shortened: str


@dataclass(frozen=True)
class UpdateMasker:
    """Masks an update of the device of this name for a round with masks.

    secret: SECRET_BYTES random bytes, for this update only.
    """

    offer: Offer
    device: str
    secret: bytes

    def masked(self, update: Update, manifest: Manifest, base: Tensors) -> MaskedUpdate:
        """The update as it is sent.

        `manifest` and `base` are those of the round's member. Raises ValueError for an offer without masks,
        KindError, MaskError.
        """
        offer, masks = self.offer, self.offer.masks
        if masks is None:
            raise ValueError(f"round {offer.round} of {offer.task!r} has no masks")
        kind = _offered(registry.supported_kinds(offer.kinds), update.kind)
        strategy = variant_named(kind, update.variant)
        layout = layout_of(strategy, manifest, base, masks)
        vector, shortened = sums.write(
            Weighed(update, kind, masks.most_weight), layout, masks.clip_milli / 1000
        )
        purpose = MaskPurpose(
            offer.task,
            offer.run,
            offer.round,
            update.kind,
            update.variant,
            self.device,
            masks.min_group,
            masks.noise_milli,
            masks.clip_milli,
            layout.exponents if masks.noise_milli else (),
        )
        mask, seeds = seal(self.secret, [helper.key for helper in masks.helpers], purpose)
        vector.add_masks(seeds)
        return MaskedUpdate(vector.content(), mask, shortened)


def masked_bytes(form: AnyStrategy, kinds: Sequence[AnyStrategy], manifest: Manifest, masks: Masks) -> int:
    """Bytes on the wire of a masked update of a form of the offer's `kinds`. Raises KindError, MaskError."""
    strategy = variant_named(_offered(kinds, form.name), form.variant)
    return layout_of(strategy, manifest, NO_TENSORS, masks).content_bytes + ENVELOPE_BYTES


def _offered(kinds: Sequence[AnyStrategy], name: str) -> AnyStrategy:
    """The kind with the class statistics that the offer asks for.

    A device may send fewer; the layout has room for all. Raises KindError, and MaskError for a kind whose
    updates do not add up.
    """
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None:
        raise KindError(f"the offer asks for no {name}")
    if why := capabilities.unsummable_reason(kind):
        raise MaskError(f"cannot be masked: {why}")
    return kind
