"""Caches a task's bundles, base model and states of kinds on disk; blobs are named by their hashes."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import step_log
from device_runtime.broker.wire.blobs import Blobs, blob_of
from device_runtime.broker.wire.durable_files import replace_file, sync_folder
from device_runtime.broker.wire.messages import CHECK_BYTES, LINE_BYTES, Base, Blob, MessageError, Offer, Step
from device_runtime.device.delivery.downloads import BUNDLES, store
from device_runtime.device.errors import StaleBase, UnusableBase
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, ModelError, TensorError
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.interface.device_half import NO_TENSORS

log = logging.getLogger(__name__)

MOST_REPLAYED = 2**34
"""Most products of a scalar and an element of its direction to replay if a checkpoint can be had instead.

They take a minute or two on a small board, see docs/zeroth-order.md.
"""


@dataclass(frozen=True)
class ReplayState:
    """Weights that the device has, after `at` steps of the log named `line`."""

    line: bytes
    at: int
    weights: Tensors


@dataclass(frozen=True)
class BaseRoute:
    """Replays `steps` steps from `start`, or from the checkpoint if that is None.

    `needed` are the blobs for it.
    """

    start: ReplayState | None
    steps: int
    needed: tuple[Blob, ...]


def find_route(base: Base, state: ReplayState | None, here: Callable[[Blob], bool]) -> BaseRoute | None:
    """The route to a base that fetches fewer bytes, from the replay state or from the checkpoint.

    None if the base names no route, or if the whole offer may name a shorter one. Blobs that are `here` need
    not be fetched. If there is a choice, replay is limited to MOST_REPLAYED.
    """
    segments = _segments(base, base.steps)
    anew = None if segments is None else BaseRoute(None, base.steps, (*base.checkpoint, *segments))
    if state is None or state.line != base.line or not state.at <= base.at:
        return anew
    lacking = base.at - state.at
    segments = _segments(base, lacking)
    if segments is None:
        return anew if base.whole or (anew and not _lacking(anew, here)) else None
    on = BaseRoute(state, lacking, segments)
    if anew is None:
        return on
    elements = sum(part.size for part in base.checkpoint) // 4
    scalars = lacking * base.tail[-1].width if base.tail else sum(blob.size for blob in segments)
    if scalars * elements > MOST_REPLAYED and lacking > base.steps:
        return anew
    return on if _lacking(on, here) <= _lacking(anew, here) else anew


def steps_of(route: BaseRoute, base: Base, blobs: Blobs) -> tuple[Step, ...]:
    """The steps of a route. Raises BlobError, UnusableBase for a log that is damaged or not of this base."""
    try:
        tail = step_log.unpack(base.tail)
        if route.steps <= len(tail):
            return tail[len(tail) - route.steps :]
        named = [blob for blob in route.needed if blob in base.log]
        logged = tuple(step for blob in named for step in step_log.decode(blobs.get(blob)))
    except MessageError as error:
        raise UnusableBase(f"the log of the base is damaged: {error}") from None
    if len(logged) < route.steps:
        raise UnusableBase(f"the log of the base has {len(logged)} steps, {route.steps} are needed")
    return logged[len(logged) - route.steps :]


def _segments(base: Base, lacking: int) -> tuple[Blob, ...] | None:
    """The blobs with the last `lacking` steps: none if the offer itself has them.

    None if the log does not go back so far.
    """
    if lacking <= _in_tail(base):
        return ()
    first = base.at - lacking
    if first < step_log.log_start(base) or first < 0:
        return None
    return base.log[(first - step_log.log_start(base)) // step_log.SEGMENT :]


def _in_tail(base: Base) -> int:
    try:
        return step_log.count(base.tail)
    except MessageError as error:
        raise UnusableBase(f"the last steps of the base are damaged: {error}") from None


def _lacking(route: BaseRoute, here: Callable[[Blob], bool]) -> int:
    """Bytes to fetch."""
    return sum(blob.size for blob in route.needed if not here(blob))


SUFFIX = ".safetensors"


class ReplayStates:
    """Stores one state at a time.

    A damaged state does no harm: the base made from it fails the check of its hash.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, state: ReplayState) -> None:
        """Save the state in place of any other. If the disk fails, a restart begins at the checkpoint."""
        path = self._folder / f"{state.line.hex()}.{state.at}{SUFFIX}"
        if path.exists():
            return
        try:
            self._folder.mkdir(exist_ok=True)
            replace_file(path, tensors.encode(state.weights))
            self._drop(path)
        except OSError as error:
            log.warning("the replay state cannot be saved: %s", error)

    def get(self, base: Base) -> ReplayState | None:
        """The saved state, if it lies on the way to this base."""
        for path in self._folder.glob(f"{base.line.hex()}.*{SUFFIX}"):
            at = path.name.removesuffix(SUFFIX).rpartition(".")[2]
            if at.isdecimal() and int(at) <= base.at:
                try:
                    return ReplayState(base.line, int(at), tensors.decode(path.read_bytes()))
                except (OSError, TensorError) as error:
                    log.warning("the replay state cannot be read: %s", error)
        return None

    def drop(self) -> None:
        """Remove the state: its base failed the check."""
        self._drop(None)

    def _drop(self, but: Path | None) -> None:
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path != but:
                path.unlink(missing_ok=True)


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
        sound: dict[str, Bundle] = {}
        for name in bundles.shipped_names():
            try:
                bundle = Bundle.open(bundles.shipped_folder(name))
                sound |= {shipped.sha256: shipped for shipped in (bundle, *bundle.parts().values())}
            except ModelError as error:
                log.warning("shipped bundle %s: %s", name, error)
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


class StrategyStateStore:
    """What each kind kept in the last two rounds, of one run at a time.

    The first save of a run removes what another run has kept. Two rounds are kept so that a round that is
    worked on again, after a crash, begins with the same state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, run: str, kind: str, number: int) -> Tensors:
        """The state kept last before round `number`; nothing if there is none, or it is damaged."""
        folder = self._of(run, kind)
        earlier = [round_number for round_number in _rounds(folder) if round_number < number]
        if not earlier:
            return NO_TENSORS
        try:
            return tensors.decode(_path(folder, earlier[-1]).read_bytes())
        except (OSError, TensorError) as error:
            log.warning("ignoring the saved state of %s, which is unreadable: %s", kind, error)
            return NO_TENSORS

    def put(self, run: str, kind: str, number: int, state: Tensors) -> None:
        """Save the state durably for the rounds after `number`. Raises OSError."""
        folder = self._of(run, kind)
        if not folder.parent.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
        if not folder.exists():
            folder.mkdir(parents=True)
            for parent in (folder.parent, self._folder, self._folder.parent):
                sync_folder(parent)
        replace_file(_path(folder, number), tensors.encode(state))
        for old in _rounds(folder)[:-2]:
            _path(folder, old).unlink(missing_ok=True)

    def _of(self, run: str, kind: str) -> Path:
        """The folder of a kind in a run. A run's name comes over the wire: it is not used as a path."""
        return self._folder / hashlib.sha256(run.encode()).hexdigest()[:16] / kind


def _rounds(folder: Path) -> list[int]:
    """The rounds in which something was kept, in order."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}"))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}{SUFFIX}"
