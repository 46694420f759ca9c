"""Persists what codecs left out of updates until a later update sends it (error feedback).

Only updates that count take what was left out along: if one is refused, late or never sent, that goes with
the next. Its receipt may come when the next is made already. So there is a file for each kind, with what is
left after all updates that count, and after each update without a receipt as if it and those before it
counted. A receipt changes the file at once; a restarted process may take the same receipt again.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.durable_files import replace_file, sync_folder
from device_runtime.broker.wire.partial_blob import disk_errors
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import TensorError
from device_runtime.strategies.interface.device_half import NO_TENSORS

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
COUNTED = 0
"""In place of a round's number: what is left after all updates that count."""

Residuals = dict[int, Tensors]
"""By round: COUNTED, and those without a receipt."""


@dataclass(frozen=True)
class FeedbackKey:
    """A kind of update in a run, of a member of the family, or of the main model: ""."""

    run: str
    kind: str
    member: str = ""


class ErrorFeedback:
    """Stores what was left out, of one run at a time: the first save of a run removes another's.

    Raises BlobError if the disk fails.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, of: FeedbackKey, waiting: Collection[int]) -> Tensors:
        """What to add to the next update.

        `waiting` are the rounds whose updates are on disk without a receipt; a round that is not among them
        was never sent.
        """
        rests = self._rests(of, waiting)
        return rests[max(rests)] if rests else NO_TENSORS

    def put(self, of: FeedbackKey, number: int, waiting: Collection[int], left: Tensors) -> None:
        """Save what is left after the update of a round; `waiting` as in `get`.

        It must be durable before the update is.
        """
        path, rests = self._path(of), self._rests(of, waiting)
        with disk_errors("write", path):
            if not path.parent.exists():
                shutil.rmtree(self._folder, ignore_errors=True)
                path.parent.mkdir(parents=True)
                for folder in (self._folder, self._folder.parent):
                    sync_folder(folder)
        _write(path, {**rests, number: left})

    def settle(self, run: str, kind: str, number: int, counts: bool) -> None:
        """The update of a round has its receipt. A repeated receipt changes nothing."""
        for path in self._path(FeedbackKey(run, kind)).parent.glob(f"{kind}.*{SUFFIX}"):
            rests = _read(path)
            if number in rests and number != COUNTED:
                (_count if counts else _drop)(rests, number)
                _write(path, rests)

    def _rests(self, of: FeedbackKey, waiting: Collection[int]) -> Residuals:
        """What is left, without updates that were never sent."""
        rests = _read(self._path(of))
        for number in [number for number in rests if number not in (COUNTED, *waiting)]:
            _drop(rests, number)
        return rests

    def _path(self, of: FeedbackKey) -> Path:
        """Names of runs and members come over the wire: they are not used as paths."""
        return self._folder / _hash(of.run) / f"{of.kind}.{_hash(of.member)}{SUFFIX}"


def _count(rests: Residuals, number: int) -> None:
    """Move a round to what counts: what it left out stays left, even if rounds before it do not count."""
    before, residual = _before(rests, number), rests.pop(number)
    if before is None:
        rests[COUNTED] = residual
        return
    if before != COUNTED:
        rests.setdefault(COUNTED, NO_TENSORS)
    for earlier in [key for key in rests if key < before]:
        rests[earlier] = _moved(rests[earlier], rests[before], residual)
    rests[before] = residual


def _drop(rests: Residuals, number: int) -> None:
    """Remove a round as if it had never been made."""
    before, residual = _before(rests, number), rests.pop(number)
    start = NO_TENSORS if before is None else rests[before]
    for later in [key for key in rests if key > number]:
        rests[later] = _moved(rests[later], residual, start)


def _before(rests: Residuals, number: int) -> int | None:
    return max((key for key in rests if key < number), default=None)


def _moved(rest: Tensors, old: Tensors, new: Tensors) -> Tensors:
    """`rest` - `old` + `new`; a tensor that only one of them has is zero in the others."""
    after = dict(rest)
    for name in {*old, *new}:
        for sign, term in ((-1, old), (1, new)):
            if name in term:
                total = after.get(name, np.float32(0))
                after[name] = np.asarray(total + np.float32(sign) * term[name], np.float32)
    return after


def _read(path: Path) -> Residuals:
    """The file's content; empty if there is none, or it is damaged."""
    try:
        content = tensors.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, TensorError) as error:
        log.warning("what was left out of updates is not readable, and is lost: %s", error)
        return {}
    rests: dict[int, dict[str, NDArray[Any]]] = {}
    for place, value in content.items():
        number, _, name = place.partition("/")
        rests.setdefault(int(number), {})[name] = value
    return dict(rests)


def _write(path: Path, rests: Residuals) -> None:
    flat = {f"{number}/{name}": value for number, rest in rests.items() for name, value in rest.items()}
    with disk_errors("write", path):
        replace_file(path, tensors.encode(flat))


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
