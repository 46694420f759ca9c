"""Caches a task's bundles and base model on the device, fetched once and named by their hashes."""

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
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import CHECK_BYTES, LINE_BYTES, Base, Blob, Offer
from device_runtime.device.delivery.downloads import BUNDLES, store
from device_runtime.device.errors import StaleBase, UnusableBase
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, ModelError, TensorError
from device_runtime.strategies.directions.replaying import replay

from .base_route import BaseRoute, ReplayState, find_route, steps_of
from .replay_state import ReplayStates

log = logging.getLogger(__name__)

COPIES = 2
"""A bundle takes its size twice while it is unpacked, on disk and in memory: packed and unpacked."""


class ModelCache:
    """Blobs of one device, and the weights of its last base model with the steps replayed on it.

    `disk_bytes` limits the models that are fetched and unpacked; `memory` gives the bytes that may be held,
    as models are read whole. None: no limit.
    """

    def __init__(
        self, folder: Path, disk_bytes: int | None = None, memory: Callable[[], int] | None = None
    ) -> None:
        self.blobs = store(folder, disk_bytes)
        self._memory = memory
        self._bundles = folder / BUNDLES
        self._state: ReplayState | None = None
        self._states = ReplayStates(folder / "stand")

    def missing_bundles(self, offer: Offer) -> tuple[Blob, ...]:
        """Bundles to fetch before the work on this offer can be planned.

        Raises BundleError for bundles that memory cannot hold.
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
        """Why memory cannot hold so many bytes; empty if it can."""
        if self._memory is None or size <= (free := self._memory()):
            return ""
        return f"needs {size / 1e6:.1f} MB of memory to be read, and {free / 1e6:.1f} MB may be held"

    def _drop_bundles(self, names: AbstractSet[str], size: int) -> None:
        """Remove bundles of earlier offers if `size` bytes, fetched and unpacked, have no room."""
        most = self.blobs.room.most
        if most is None or self.blobs.taken() + COPIES * size <= most or not self._bundles.exists():
            return
        for folder in self._bundles.iterdir():
            if folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)

    def missing(self, base: Base, aside: Blob | None = None) -> tuple[Blob, ...]:
        """Blobs to fetch before this base can be made, and the blob of the tensors beside it.

        Raises StaleBase if neither this device's state nor the named blobs lead to the base, UnusableBase if
        its log is damaged or memory cannot hold it.
        """
        needed = (*(() if aside is None else (aside,)), *self._route(base).needed)
        missing = tuple(blob for blob in dict.fromkeys(needed) if not self.blobs.has(blob))
        if missing and (why := self._too_large(sum(blob.size for blob in missing))):
            raise UnusableBase(f"base model after {base.at} steps {why}")
        return missing

    def take_parts(self, bundle: Bundle, base: Base) -> None:
        """Store the parts of a base that are as in the bundle, so that they need not be fetched.

        Steps from the bundle's weights can then be replayed. Raises BlobError, BundleError.
        """
        state = self._state = self._state or self._states.get(base)
        if state is not None and state.line == base.line and state.at <= base.at:
            return
        if base.at == base.steps == 0 and all(self.blobs.has(part) for part in base.checkpoint):
            return
        weights = bundle.weights()
        if base.at and _sha(weights)[:LINE_BYTES] == base.line:
            self._state = ReplayState(base.line, 0, weights)
        for part in tensors.encoded_parts(weights, bundle.manifest.parts()):
            if blob_of(part) in base.checkpoint:
                self.blobs.put(part)

    def aside(self, blob: Blob | None) -> Tensors:
        """The tensors sent beside the base. Raises BlobError, TensorError."""
        return tensors.decode(self.blobs.get(blob)) if blob is not None else {}

    def bundle(self, blob: Blob) -> Bundle:
        """The bundle of this hash, unpacked once.

        Raises BundleError for a blob that is not a bundle, BlobError when it must be fetched (again), NoRoom.
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
        """The base model: this device's state or the checkpoint, with the steps since replayed.

        If the result is not the aggregator's model, raises StaleBase where starting from the checkpoint may
        help, UnusableBase where that was done. Raises TensorError, UnknownGenerator.
        """
        way = self._route(base)
        try:
            weights = self._replayed(way, base, manifest)
        except (UnusableBase, TensorError) as error:
            if way.start is None:
                raise
            self._state = None
            self._states.drop()
            raise StaleBase(f"{error}: beginning anew") from None
        if way.start is not None and base.at and not base.steps:
            for part in tensors.encoded_parts(weights, manifest.parts()):
                self.blobs.put(part)  # the checkpoint, for a restart without a replay state
        self._state = ReplayState(base.line, base.at, weights)
        return weights

    def _replayed(self, way: BaseRoute, base: Base, manifest: Manifest) -> Tensors:
        """The weights at the end of the route. Raises as `base` does."""
        if way.start is None:
            weights: Tensors = self._checkpoint(base)
            tensors.check(weights, manifest.stored())
        else:
            weights = way.start.weights
        weights = replay(weights, steps_of(way, base, self.blobs), manifest)
        if not _sha(weights).startswith(base.sha) or len(base.sha) < CHECK_BYTES:
            raise UnusableBase(f"base model after {base.at} steps is not the aggregator's")
        return weights

    def save_replay_state(self) -> None:
        """Save the replay state in memory to disk, if it was made by replaying steps."""
        if self._state is not None and self._state.at:
            self._states.put(self._state)

    def _has_bundle(self, blob: Blob) -> bool:
        folder = self._bundles / blob.hex
        if not folder.exists() and blob.hex in self._shipped:
            bundles.unpack(self._shipped[blob.hex].packed(), folder)
        return folder.exists()

    @cached_property
    def _shipped(self) -> dict[str, Bundle]:
        """Bundles that came with the package, by hash: opened once, and only when one is missing."""
        sound = {}
        for shipped in bundles.shipped_names():
            try:
                bundle = Bundle.open(bundles.shipped_folder(shipped))
                sound[bundle.sha256] = bundle
            except ModelError as error:
                log.warning("shipped bundle %s: %s", shipped, error)
        return sound

    def _route(self, base: Base) -> BaseRoute:
        """The route to this base. Raises as `missing` does."""
        self._state = self._state or self._states.get(base)
        route = find_route(base, self._state, self.blobs.has)
        if route is None:
            raise StaleBase(
                f"base model after {base.at} steps: no replay state and no blob of the offer leads there"
            )
        return route

    def _checkpoint(self, base: Base) -> dict[str, NDArray[Any]]:
        """All parts of the checkpoint. Raises BlobError, TensorError."""
        weights: dict[str, NDArray[Any]] = {}
        for part in base.checkpoint:
            weights |= tensors.decode(self.blobs.get(part))
        return weights


def _sha(weights: Tensors) -> bytes:
    return hashlib.sha256(tensors.encode(weights)).digest()
