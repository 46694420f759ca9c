"""What masks change about a device's choice among the kinds of an offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from device_runtime.broker.wire.messages import Masks, Offer
from device_runtime.device.selection.choose import UploadTerms
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

ManifestOf = Callable[[str], Manifest]
"""Gives the manifest of a member of the family."""


def terms_of_offer(offer: Offer, manifest_of: ManifestOf) -> UploadTerms | None:
    """How updates of a round are sent; None without masks. Raises KindError."""
    if offer.masks is None:
        return None
    return upload_terms(offer.masks, registry.supported_kinds(offer.kinds), manifest_of)


def upload_terms(masks: Masks, kinds: Sequence[AnyStrategy], manifest_of: ManifestOf) -> UploadTerms:
    """How updates of an offer's `kinds` are sent with these masks."""
    from .masked_update import masked_bytes  # imports cryptography

    return UploadTerms(masks.alone, lambda form: masked_bytes(form, kinds, manifest_of(form.member), masks))
