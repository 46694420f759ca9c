"""What the device holds of a task: the bundle and the base model, fetched once and named by their hashes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import msgspec

from broker.blobs import Blobs
from broker.errors import BlobError
from broker.messages import Base, Blob, Offer, Step
from models import bundle as bundles
from models import tensors
from models.bundle import Bundle
from models.errors import BundleError, ModelError
from models.manifest import Manifest
from models.tensors import Tensors
from strategies.zeroth_order import replay

from .errors import StaleBase, UnusableBase

log = logging.getLogger(__name__)


class Holdings:
    """Blobs of one device, and the weights of its last base model with the steps already taken on it."""

    def __init__(self, folder: Path) -> None:
        self.blobs = Blobs(folder / "blobs")
        self._bundles = folder / "bundles"
        self._checkpoint = b""
        self._taken = 0
        self._weights: Tensors = {}

    def missing(self, offer: Offer) -> tuple[Blob, ...]:
        """What must be fetched before this offer can be worked on."""
        needed = [] if self._has_bundle(offer.bundle) else [offer.bundle]
        base = offer.base
        taken = self._standing(base)
        if taken is None:
            needed.append(base.checkpoint)
        if base.log is not None and base.steps - (taken or 0) > len(base.tail):
            needed.append(base.log)
        return tuple(blob for blob in needed if not self.blobs.has(blob))

    def bundle(self, blob: Blob) -> Bundle:
        """The bundle of this hash, unpacked once.

        Raises BundleError for what is not a bundle, BlobError when it must be fetched (again).
        """
        folder = self._bundles / blob.hex
        if not folder.exists():
            return bundles.unpack(self.blobs.get(blob), folder)
        try:
            return Bundle.open(folder)
        except BundleError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise BlobError(f"bundle {blob.hex[:12]} was damaged here, and is removed: {error}") from None

    def base(self, base: Base, manifest: Manifest) -> Tensors:
        """The base model: the checkpoint, and the log replayed from wherever this device stands.

        When the result is not the model that the aggregator has: raises StaleBase where beginning anew, at
        the checkpoint, may mend it, UnusableBase where that was done. Raises TensorError, UnknownGenerator.
        """
        standing = self._standing(base)
        if standing is None:
            weights: Tensors = tensors.decode(self.blobs.get(base.checkpoint))
            tensors.check(weights, manifest.stored())
        else:
            weights = self._weights
        steps = self._steps(base, base.steps - (standing or 0))
        weights = replay(weights, steps, manifest)
        if hashlib.sha256(tensors.encode(weights)).digest() != base.sha:
            self._checkpoint = b""
            wrong = f"base model after {base.steps} steps is not the aggregator's"
            raise UnusableBase(wrong) if standing is None else StaleBase(f"{wrong}: beginning anew")
        self._checkpoint, self._taken, self._weights = base.checkpoint.sha, base.steps, weights
        return weights

    def prune(self, offer: Offer, waiting: Iterable[Blob | None]) -> None:
        """Drop all blobs but those of this offer and those that wait to be sent."""
        kept = (offer.bundle, offer.base.checkpoint, offer.base.log, *waiting)
        try:
            self.blobs.prune([blob for blob in kept if blob is not None])
        except BlobError as error:
            log.warning("%s", error)

    def _has_bundle(self, blob: Blob) -> bool:
        folder = self._bundles / blob.hex
        if not folder.exists() and blob.hex in self._shipped:
            bundles.unpack(self._shipped[blob.hex].packed(), folder)
        return folder.exists()

    @cached_property
    def _shipped(self) -> dict[str, Bundle]:
        """Bundles that came with the package, by their hashes: opened once, and only where one is missing."""
        sound = {}
        for name in bundles.shipped_names():
            try:
                bundle = Bundle.open(bundles.shipped(name))
                sound[bundle.sha256] = bundle
            except ModelError as error:
                log.warning("shipped bundle %s: %s", name, error)
        return sound

    def _standing(self, base: Base) -> int | None:
        """Steps taken on this checkpoint; None where the device must begin at it (anew)."""
        if base.checkpoint.sha != self._checkpoint or self._taken > base.steps:
            return None
        return self._taken

    def _steps(self, base: Base, count: int) -> tuple[Step, ...]:
        """The last `count` steps of the base, from the tail where it reaches back far enough."""
        if count > len(base.tail) and base.log is not None:
            try:
                every = msgspec.msgpack.decode(self.blobs.get(base.log), type=tuple[Step, ...])
            except msgspec.MsgspecError as error:
                raise UnusableBase(f"blob {base.log.hex[:12]} is not a log of steps: {error}") from None
            return every[max(0, len(every) - count) :]
        return base.tail[max(0, len(base.tail) - count) :] if count else ()
