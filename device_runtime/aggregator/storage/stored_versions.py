"""Reads a run's served models while its aggregator may be running."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from device_runtime.aggregator.errors import RollbackError, RunFolderError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.engines import onnx_nodes

from . import given_rounds
from .model_versions import ModelVersions, Version
from .run_files import SHA_BYTES
from .store import Store


def versions_in(folder: Path, database: str = "") -> tuple[Version, ...]:
    """The versions of a run, by round; `database` as in Ports. Raises RunFolderError, DatabaseError."""
    with closing(Store(folder, True, database)) as store:
        return ModelVersions(store, 0).versions()


def check_rollback(folder: Path, to: int, database: str = "") -> None:
    """Checks that the run can go back to the model of round `to`; else raises RollbackError.

    Also raises as versions_in.
    """
    if (folder / given_rounds.FILE).exists():
        raise RollbackError(given_rounds.SITE_ROLLBACK_TEXT)
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
