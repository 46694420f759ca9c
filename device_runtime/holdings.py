"""What the device holds of a task: the bundle and the base model, fetched once and named by their hashes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from broker.blobs import Blobs, name
from broker.errors import BlobError
from broker.messages import Base, Blob, Offer, Step
from models import bundle as bundles
from models import tensors
from models.bundle import Bundle
from models.errors import BundleError, ModelError
from models.manifest import Manifest
from models.tensors import Tensors
from strategies.replaying import replay

from .errors import StaleBase, UnusableBase

log = logging.getLogger(__name__)


class Holdings:
    """Blobs of one device, and the weights of its last base model with the steps already taken on it."""

    def __init__(self, folder: Path) -> None:
        self.blobs = Blobs(folder / "blobs")
        self._bundles = folder / "bundles"
        self._checkpoint: tuple[Blob, ...] = ()
        self._taken = 0
        self._weights: Tensors = {}

    def missing_bundles(self, offer: Offer) -> tuple[Blob, ...]:
        """What must be fetched before it can be decided how to work on this offer."""
        bundles = (offer.bundle, *(member.bundle for member in offer.family))
        lacking = [bundle for bundle in bundles if not self._has_bundle(bundle)]
        return tuple(blob for blob in lacking if not self.blobs.has(blob))

    def missing(self, base: Base, aside: Blob | None = None) -> tuple[Blob, ...]:
        """What must be fetched before this base can be worked on, and what comes beside it."""
        needed = [] if aside is None else [aside]
        taken = self._standing(base)
        if taken is None:
            needed.extend(base.checkpoint)
        if base.log is not None and base.steps - (taken or 0) > len(base.tail):
            needed.append(base.log)
        return tuple(blob for blob in needed if not self.blobs.has(blob))

    def take_parts(self, bundle: Bundle, base: Base) -> None:
        """What of a base is as it is in the bundle need not be fetched. Raises BlobError, BundleError."""
        if not all(self.blobs.has(part) for part in base.checkpoint):
            for part in tensors.encoded_parts(bundle.weights(), bundle.manifest.parts()):
                if name(part) in base.checkpoint:
                    self.blobs.put(part)

    def aside(self, blob: Blob | None) -> Tensors:
        """What came beside the base. Raises BlobError, TensorError."""
        return tensors.decode(self.blobs.get(blob)) if blob is not None else {}

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
            weights: Tensors = self._joined(base)
            tensors.check(weights, manifest.stored())
        else:
            weights = self._weights
        steps = self._steps(base, base.steps - (standing or 0))
        weights = replay(weights, steps, manifest)
        if hashlib.sha256(tensors.encode(weights)).digest() != base.sha:
            self._checkpoint = ()
            wrong = f"base model after {base.steps} steps is not the aggregator's"
            raise UnusableBase(wrong) if standing is None else StaleBase(f"{wrong}: beginning anew")
        self._checkpoint, self._taken, self._weights = base.checkpoint, base.steps, weights
        return weights

    def prune(self, offer: Offer, waiting: Iterable[Blob | None]) -> None:
        """Drop all blobs but those of this offer and those that wait to be sent."""
        bases = (offer.base, *(member.base for member in offer.family))
        parts = (part for base in bases for part in (*base.checkpoint, base.log))
        kept = (offer.bundle, *(member.bundle for member in offer.family), *parts, offer.aside, *waiting)
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
        for shipped in bundles.shipped_names():
            try:
                bundle = Bundle.open(bundles.shipped(shipped))
                sound[bundle.sha256] = bundle
            except ModelError as error:
                log.warning("shipped bundle %s: %s", shipped, error)
        return sound

    def _standing(self, base: Base) -> int | None:
        """Steps taken on this checkpoint; None where the device must begin at it (anew)."""
        if base.checkpoint != self._checkpoint or self._taken > base.steps:
            return None
        return self._taken

    def _joined(self, base: Base) -> dict[str, NDArray[Any]]:
        """All parts of the checkpoint. Raises BlobError, TensorError."""
        weights: dict[str, NDArray[Any]] = {}
        for part in base.checkpoint:
            weights |= tensors.decode(self.blobs.get(part))
        return weights

    def _steps(self, base: Base, count: int) -> tuple[Step, ...]:
        """The last `count` steps of the base, from the tail where it reaches back far enough."""
        if count > len(base.tail) and base.log is not None:
            try:
                every = msgspec.msgpack.decode(self.blobs.get(base.log), type=tuple[Step, ...])
            except msgspec.MsgspecError as error:
                raise UnusableBase(f"blob {base.log.hex[:12]} is not a log of steps: {error}") from None
            return every[max(0, len(every) - count) :]
        return base.tail[max(0, len(base.tail) - count) :] if count else ()
