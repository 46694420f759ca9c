"""Stores the personal model in the device's folder `personal/`, whole after a power cut at any time."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runtime.broker.wire.durable_files import replace_file, sync_folder
from device_runtime.broker.wire.messages import Offer
from device_runtime.device.errors import DeviceError
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ModelError
from device_runtime.models.training.heads import Evaluation

log = logging.getLogger(__name__)

FOLDER, FILE = "personal", "model.json"
FORMAT = 1
MOST_ROUNDS = 100
RACES = 2
SUFFIX = ".safetensors"


class NothingKept(DeviceError):
    """No model is kept here, or what is kept cannot be read."""


class RoundEvaluation(msgspec.Struct, frozen=True):
    """Figures on the held-out samples of the model that `round` began with: as served, and with an own head.

    `kept`: the own head was better, and is used. `threshold`: the reconstruction error above which a sample
    is an anomaly here, of models that reconstruct their input.
    """

    round: int
    served: Evaluation | None = None
    own_head: Evaluation | None = None
    kept: bool = False
    threshold: float | None = None


class PersonalRecord(msgspec.Struct, frozen=True):
    """The model that is kept: that which `round` began with, made by the round before.

    `bundle` is a folder, relative to the device's if it lies in it; `weights` and `head` are files beside the
    record, `head` is "" if there is no own head.
    """

    bundle: str
    task: str
    run: str
    round: int
    weights: str
    head: str = ""
    rounds: tuple[RoundEvaluation, ...] = ()
    version: int = FORMAT
    title: str = ""


def begun_with(number: int) -> str:
    """Names the model that round `number` began with by the round that made it, as aggregators do."""
    return f"the model of round {number - 1}" if number > 1 else "the model from before round 1"


@dataclass(frozen=True)
class PersonalModel:
    """A kept model: its bundle, its weights (with the own head, if any), and its record."""

    bundle: Bundle
    weights: Tensors
    record: PersonalRecord


class PersonalModelStore:
    """Keeps one model in a device's folder, that of its last round."""

    def __init__(self, folder: Path) -> None:
        self._device, self._folder = folder, folder / FOLDER

    def record(self) -> PersonalRecord | None:
        """The record; None if no model is kept. Raises NothingKept if it cannot be read."""
        path = self._folder / FILE
        try:
            record = msgspec.json.decode(path.read_bytes(), type=PersonalRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NothingKept(f"{path} cannot be read: {error}") from None
        if record.version != FORMAT:
            raise NothingKept(f"{path} is of version {record.version}, this software knows {FORMAT}")
        return record

    def keep(self, offer: Offer, bundle: Bundle, weights: Tensors) -> None:
        """Save the served model of this round durably; an own head of another model is dropped.

        Raises OSError, TensorError.
        """
        before = self._readable()
        file = self._put(weights)
        same = before is not None and (before.task, before.run) == (offer.task, offer.run)
        rounds, head = (before.rounds, before.head) if before and same else ((), "")
        if before is None or before.weights != file:
            head = ""
        folder, of = self._named(bundle.path), (offer.task, offer.run, offer.round)
        self._write(PersonalRecord(folder, *of, file, head, rounds, title=offer.title))

    def judge(self, judged: RoundEvaluation, head: Tensors | None) -> None:
        """Save the figures of the kept round, and the own head if it was better.

        Raises OSError, TensorError.
        """
        record = self._readable()
        if record is None or record.round != judged.round:
            return
        earlier = [evaluation for evaluation in record.rounds if evaluation.round != judged.round]
        self._write(
            msgspec.structs.replace(
                record,
                head=self._put(head) if head is not None else "",
                rounds=(*earlier, judged)[-MOST_ROUNDS:],
            )
        )

    def read(self) -> PersonalModel:
        """Read the model, even while another process replaces it. Raises NothingKept."""
        for _ in range(RACES):
            try:
                return self._read()
            except NothingKept:
                continue
        return self._read()

    def _read(self) -> PersonalModel:
        record = self.record()
        if record is None:
            raise NothingKept(f"no model is kept in {self._folder}: join a task first")
        try:
            bundle = Bundle.open(self._device / record.bundle)
            weights = tensors.decode((self._folder / record.weights).read_bytes())
            if record.head:
                weights |= tensors.decode((self._folder / record.head).read_bytes())
            tensors.check(weights, bundle.manifest.stored())
        except (OSError, ModelError) as error:
            raise NothingKept(f"the model kept in {self._folder} cannot be read: {error}") from None
        return PersonalModel(bundle, weights, record)

    def _readable(self) -> PersonalRecord | None:
        try:
            return self.record()
        except NothingKept as error:
            log.warning("%s: it is replaced", error)
            return None

    def _named(self, bundle: Path) -> str:
        inside = bundle.is_relative_to(self._device)
        return str(bundle.relative_to(self._device) if inside else bundle.absolute())

    def _put(self, weights: Tensors) -> str:
        """Write the tensors to a file named after their hash, unless it is there; returns its name."""
        data = tensors.encode(weights)
        name = hashlib.sha256(data).hexdigest()[:32] + SUFFIX
        if not (self._folder / name).exists():
            self._admit(name, data)
        return name

    def _write(self, record: PersonalRecord) -> None:
        """Write the record, which names the files that count, and then remove the others."""
        self._admit(FILE, msgspec.json.format(msgspec.json.encode(record)))
        for file in self._folder.glob(f"*{SUFFIX}"):
            if file.name not in (record.weights, record.head):
                file.unlink(missing_ok=True)

    def _admit(self, name: str, data: bytes) -> None:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            sync_folder(self._device)
        replace_file(self._folder / name, data)
