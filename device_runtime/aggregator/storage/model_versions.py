"""The models that a run has served, one for each closed round, and rollbacks to one of them.

A version is what a round made: its served model, and the next base with what goes with it, so that the run
can continue from there. Files are named by their content; the store knows which round they belong to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from device_runtime.aggregator.errors import RollbackError, RunFolderError
from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.models.engines import onnx_nodes

from . import run_files
from .history import Rollback
from .run_files import SHA_BYTES
from .store import RoundModels, Store

log = logging.getLogger(__name__)

SERVED = "served.safetensors"
"""File in the run folder: the served model of the latest closed round."""


@dataclass(frozen=True)
class Version:
    """The served model of a round. `sha256` in hex, `size` in bytes; figures are nan without evaluation.

    published_s: seconds since 1970; nan for models of releases that did not keep versions.
    kept: it is still on the disk, and the run can be rolled back to it.
    served: it is served now.
    note: its round's note.
    metric: the name of the metric that eval_acc is; metrics: further ones, by name.
    """

    round: int
    sha256: str
    size: int
    eval_acc: float
    eval_loss: float
    published_s: float
    kept: bool
    served: bool
    note: str = ""
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)


class ModelVersions:
    """The versions of a run folder. `keep`: how many of the latest are kept; 0: all.

    Raises RunFolderError as Store does.
    """

    def __init__(self, store: Store, keep: int, wall: Callable[[], float] = time.time) -> None:
        """`wall` gives the seconds since 1970."""
        self._store, self._keep, self._wall = store, keep, wall

    def deploy(self, number: int = 0) -> None:
        """Writes the model of round `number`; 0: the served one again, as a crash may have come before."""
        if not (number := number or self.served()):
            return
        path = self._store.folder / SERVED
        try:
            replace_file(path, self._store.models.get(self._store.rounds.made(number).served))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from None

    def published(self, number: int) -> None:
        """Records that the served model of a round is published now."""
        self._store.history.publish(number, self._wall())

    def versions(self) -> tuple[Version, ...]:
        """All versions, in the order of their rounds."""
        served = self.served()
        return tuple(self._version(closed, served) for closed in self._store.rounds.closed())

    def _version(self, closed: RoundClosed, served: int) -> Version:
        record, models = closed.record, self._store.rounds.made(closed.record.round)
        return Version(
            round=record.round,
            sha256=models.served.hex,
            size=models.served.size,
            eval_acc=record.eval_acc,
            eval_loss=record.eval_loss,
            published_s=closed.at,
            kept=self._is_kept(record.round, models),
            served=record.round == served,
            note=closed.note,
            metric=record.metric,
            metrics=record.metrics,
        )

    def _is_kept(self, number: int, models: RoundModels) -> bool:
        here = all(self._store.models.has(blob) for blob in models.blobs)
        return here and self._store.step_history.has(number + 1, models.base.steps)

    def _is_sound(self, number: int) -> bool:
        """Whether a version is kept and undamaged: after a rollback to a damaged one the run is stuck."""
        models = self._store.rounds.made(number)
        if not self._is_kept(number, models):
            return False
        try:
            for blob in models.blobs:
                self._store.models.get(blob)
        except BlobError:
            return False
        return True

    def served(self) -> int:
        """The round whose model is served: the latest closed one, or that of a rollback; 0 for none."""
        latest = self._store.rounds.latest_closed()
        pending = self._store.history.rollback_after(latest)
        return pending.to if pending else latest

    def pending(self) -> Rollback | None:
        """The rollback after which no round has closed yet; None without one."""
        return self._store.history.rollback_after(self._store.rounds.latest_closed())

    def go_back(self, to: int) -> Rollback:
        """Serves the version of round `to` and continues the run from it; durable on return.

        Contributions of an open round are discarded, as they were made from a discarded base. A repeated call
        changes nothing. Raises RollbackError for a version that is not kept or is damaged.
        """
        saved = self._store.session.saved()
        closed = {event.record.round for event in self._store.rounds.closed()}
        if saved is None or to not in closed:
            rounds = f"rounds 1 to {max(closed)}" if closed else "no round"
            raise RollbackError(f"round {to} has served no model; {rounds} did")
        if not self._is_sound(to):
            numbers = ", ".join(str(version.round) for version in self.versions() if version.kept)
            raise RollbackError(
                f"the model of round {to} is not kept any more, or damaged; those of rounds {numbers} are"
            )
        instead = saved.phase == "collect"
        rollback = Rollback(saved.round if instead else saved.round + 1, to, instead)
        self._store.history.go_back(rollback, self._wall())
        return rollback

    def end_with(self, best: int) -> None:
        """Ends the run: serves the version of round `best` (0: the last round).

        Where that is damaged, it is the latest sound one, with a warning. A pending rollback takes
        precedence. Raises RollbackError where all are damaged.
        """
        if best and self.pending() is None:
            self._go_back_to_best(best)
        self.deploy()

    def _go_back_to_best(self, best: int) -> None:
        others = [version.round for version in reversed(self.versions()) if version.round != best]
        for number in (best, *others):
            try:
                self.go_back(number)
            except RollbackError as error:
                log.warning("%s", error)
                continue
            if number != best:
                log.warning(
                    "the best model, that of round %d, is lost: that of round %d is served", best, number
                )
            return
        raise RollbackError("no model that was served is kept and sound")

    def kept(self, best: int) -> tuple[tuple[int, RoundModels], ...]:
        """The versions to keep, by round: the latest ones, that of round `best`, and the served one."""
        latest = self._store.rounds.latest_closed()
        first = max(1, latest - self._keep + 1) if self._keep else 1
        numbers = {*range(first, latest + 1), best, self.served()} - {0}
        pairs = (
            (number, self._store.rounds.made(number))
            for number in filter(self._store.rounds.opened, sorted(numbers))
        )
        return tuple(pair for pair in pairs if pair[0] >= first or self._is_kept(*pair))


def versions_in(folder: Path, database: str = "") -> tuple[Version, ...]:
    """The versions of a run, by round; `database` as in Ports. Raises RunFolderError, DatabaseError."""
    with closing(Store(folder, True, database)) as store:
        return ModelVersions(store, 0).versions()


def check_rollback(folder: Path, to: int, database: str = "") -> None:
    """Checks that the run can go back to the model of round `to`; else raises RollbackError.

    Also raises as versions_in.
    """
    if (folder / run_files.GIVEN_ROUND_FILE).exists():
        raise RollbackError(run_files.SITE_ROLLBACK_TEXT)
    numbers = [version.round for version in versions_in(folder, database) if version.kept]
    if to not in numbers:
        choices = ", ".join(map(str, numbers)) or "none"
        raise RollbackError(f"no model of round {to} is kept in {folder}; those that are: {choices}")


def served_onnx(folder: Path, database: str = "") -> tuple[Version, bytes]:
    """The served version, and its model as one ONNX file that includes the weights.

    Needs only the run folder. Raises RunFolderError where no model is served yet, ModelError, BlobError, and
    as versions_in.
    """
    with closing(Store(folder, True, database)) as store:
        identity = store.identity()
        version = next((entry for entry in ModelVersions(store, 0).versions() if entry.served), None)
        if identity is None or version is None:
            raise RunFolderError(f"{folder} serves no model yet: its first round is not closed")
        bundle = Bundle.open(store.models.path(identity.bundles[:SHA_BYTES]))
        weights = tensors.decode(store.models.get(store.rounds.made(version.round).served))
        metadata = {"task": tasks.decode(identity.task).name, "round": str(version.round)}
        return version, onnx_nodes.graph_with_weights(
            bundle, weights, {**onnx_nodes.metadata_of(bundle.manifest), **metadata}
        )
