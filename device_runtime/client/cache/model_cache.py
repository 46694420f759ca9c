"""What the device holds of a task: the bundle and the base model, fetched once and named by their hashes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.blobs import name
from device_runtime.broker.wire.messages import CHECK_BYTES, LINE_BYTES, Base, Blob, Offer
from device_runtime.client.delivery.downloads import BUNDLES, store
from device_runtime.client.errors import StaleBase, UnusableBase
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, ModelError, TensorError
from device_runtime.strategies.directions.replaying import replay

from .base_route import BaseRoute, ReplayState, steps_of, way
from .replay_state import ReplayStates

log = logging.getLogger(__name__)

COPIES = 2
"""A bundle is on the disk as it was fetched and unpacked, and so in memory while it is unpacked."""


class ModelCache:
    """Blobs of one device, and the weights of its last base model with the steps already taken on it.

    `disk_bytes` bounds what it fetches and unpacks of models; `memory` tells the bytes that may be held, into
    which models are read whole. None: no bound.
    """

    def __init__(
        self, folder: Path, disk_bytes: int | None = None, memory: Callable[[], int] | None = None
    ) -> None:
        self.blobs = store(folder, disk_bytes)
        self._memory = memory
        self._bundles = folder / BUNDLES
        self._stand: ReplayState | None = None
        self._stands = ReplayStates(folder / "stand")

    def missing_bundles(self, offer: Offer) -> tuple[Blob, ...]:
        """What must be fetched before it can be decided how to work on this offer. Raises BundleError for
        bundles that memory cannot hold.
        """
        bundles = (offer.bundle, *(member.bundle for member in offer.family))
        lacking = [bundle for bundle in bundles if not self._has_bundle(bundle)]
        missing = tuple(blob for blob in lacking if not self.blobs.has(blob))
        for blob in missing:
            if why := self._too_large(COPIES * blob.size):
                raise BundleError(f"bundle {blob.hex[:12]} {why}")
        if missing:
            self._drop_bundles({bundle.hex for bundle in bundles}, sum(blob.size for blob in missing))
        return missing

    def _too_large(self, size: int) -> str:
        """Why memory cannot hold so many bytes; empty where it can."""
        if self._memory is None or size <= (free := self._memory()):
            return ""
        return f"needs {size / 1e6:.1f} MB of memory to be read, and {free / 1e6:.1f} MB may be held"

    def _drop_bundles(self, kept: AbstractSet[str], size: int) -> None:
        """Remove bundles of earlier offers, where so many bytes more, fetched and unpacked, have no room."""
        most = self.blobs.room.most
        if most is None or self.blobs.taken() + COPIES * size <= most or not self._bundles.exists():
            return
        for folder in self._bundles.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def missing(self, base: Base, aside: Blob | None = None) -> tuple[Blob, ...]:
        """What must be fetched before this base can be worked on, and what comes beside it.

        Raises UnusableBase, StaleBase for a base that nothing which is here or named leads to; UnusableBase
        for one that memory cannot hold.
        """
        needed = (*(() if aside is None else (aside,)), *self._way(base).needed)
        missing = tuple(blob for blob in dict.fromkeys(needed) if not self.blobs.has(blob))
        if missing and (why := self._too_large(sum(blob.size for blob in missing))):
            raise UnusableBase(f"base model after {base.at} steps {why}")
        return missing

    def take_parts(self, bundle: Bundle, base: Base) -> None:
        """What of a base is as it is in the bundle need not be fetched, and steps from there on can be
        taken. Raises BlobError, BundleError.
        """
        stand = self._stand = self._stand or self._stands.get(base)
        if stand is not None and stand.line == base.line and stand.at <= base.at:
            return
        if base.at == base.steps == 0 and all(self.blobs.has(part) for part in base.checkpoint):
            return
        weights = bundle.weights()
        if base.at and _sha(weights)[:LINE_BYTES] == base.line:
            self._stand = ReplayState(base.line, 0, weights)
        for part in tensors.encoded_parts(weights, bundle.manifest.parts()):
            if name(part) in base.checkpoint:
                self.blobs.put(part)

    def aside(self, blob: Blob | None) -> Tensors:
        """What came beside the base. Raises BlobError, TensorError."""
        return tensors.decode(self.blobs.get(blob)) if blob is not None else {}

    def bundle(self, blob: Blob) -> Bundle:
        """The bundle of this hash, unpacked once.

        Raises BundleError for what is not a bundle, BlobError when it must be fetched (again), NoRoom.
        """
        folder = self._bundles / blob.hex
        if not folder.exists():
            self.blobs.check_room(blob)
            return bundles.unpack(self.blobs.get(blob), folder)
        try:
            return Bundle.open(folder)
        except BundleError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise BlobError(f"bundle {blob.hex[:12]} was damaged here, and is removed: {error}") from None

    def base(self, base: Base, manifest: Manifest) -> Tensors:
        """The base model: what this device stands on or the checkpoint, and the steps since.

        When the result is not the model that the aggregator has: raises StaleBase where beginning anew may
        mend it, UnusableBase where that was done. Raises TensorError, UnknownGenerator.
        """
        way = self._way(base)
        try:
            weights = self._gone(way, base, manifest)
        except (UnusableBase, TensorError) as error:
            if way.start is None:
                raise
            self._stand = None
            self._stands.drop()
            raise StaleBase(f"{error}: beginning anew") from None
        if way.start is not None and base.at and not base.steps:
            for part in tensors.encoded_parts(weights, manifest.parts()):
                self.blobs.put(part)  # the checkpoint, for a life of this device that stands nowhere
        self._stand = ReplayState(base.line, base.at, weights)
        return weights

    def _gone(self, way: BaseRoute, base: Base, manifest: Manifest) -> Tensors:
        """What the way leads to. Raises as `base` does."""
        if way.start is None:
            weights: Tensors = self._joined(base)
            tensors.check(weights, manifest.stored())
        else:
            weights = way.start.weights
        weights = replay(weights, steps_of(way, base, self.blobs), manifest)
        if not _sha(weights).startswith(base.sha) or len(base.sha) < CHECK_BYTES:
            raise UnusableBase(f"base model after {base.at} steps is not the aggregator's")
        return weights

    def put_down(self) -> None:
        """What is in memory of where it stands goes on the disk, where steps led there."""
        if self._stand is not None and self._stand.at:
            self._stands.put(self._stand)

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

    def _way(self, base: Base) -> BaseRoute:
        """How to get there. Raises as `missing` does."""
        self._stand = self._stand or self._stands.get(base)
        found = way(base, self._stand, self.blobs.has)
        if found is None:
            raise StaleBase(f"base model after {base.at} steps: this device has lost the line")
        return found

    def _joined(self, base: Base) -> dict[str, NDArray[Any]]:
        """All parts of the checkpoint. Raises BlobError, TensorError."""
        weights: dict[str, NDArray[Any]] = {}
        for part in base.checkpoint:
            weights |= tensors.decode(self.blobs.get(part))
        return weights


def _sha(weights: Tensors) -> bytes:
    return hashlib.sha256(tensors.encode(weights)).digest()
