"""Whether a task asks for anything that its bundle has the graphs for; devices would sit out in silence."""

from __future__ import annotations

import logging

from models.manifest import Manifest
from profiles import shipped
from profiles.cost import MissingGraph
from strategies.kind import AnyStrategy
from strategies.workload import workload

from .errors import TaskError
from .task import Task

log = logging.getLogger(__name__)

ANY_DEVICE = "pi-5"
"""A device to predict for: what a kind needs does not depend on it."""


def check_kinds(task: Task, manifest: Manifest) -> None:
    """Logs each kind of update that no device can do with this bundle.

    Raises TaskError where round 1 offers no other.
    """
    lacking = {kind.name: _lacking(kind.strategy, manifest) for kind in task.kinds}
    texts = [f"{name} {lack}" for name, lack in lacking.items() if lack]
    if all(lacking[kind.name] for kind in task.offered(1)):
        raise TaskError(f"no device can do what round 1 offers: {'; '.join(texts)}")
    for text in texts:
        log.warning("no device can do this kind: %s", text)


def _lacking(strategy: AnyStrategy, manifest: Manifest) -> str:
    """What of the bundle is missing for it; empty when nothing is."""
    try:
        strategy.cost(workload(manifest, (1,) * len(manifest.labels)), shipped(ANY_DEVICE))
    except MissingGraph as error:
        return str(error)
    return ""
