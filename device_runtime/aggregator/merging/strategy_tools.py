"""What kinds of update may use on the aggregator: the models of a task, and samples that are nobody's own."""

from __future__ import annotations

from collections.abc import Mapping

from device_runtime.aggregator.errors import TaskError
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.data import opened
from device_runtime.models.engines.available import EngineWish, open_model
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import ModelError
from device_runtime.strategies.training.device_half import LocalData


class Tools:
    """See `strategies.kind.ServerTools`."""

    def __init__(
        self, models: Mapping[str, Bundle], generic: LocalData | None = None, engine: EngineWish | None = None
    ) -> None:
        """`models` by member, the main one by ""."""
        self.generic = generic
        self._bundles, self._engine = models, engine or EngineWish()
        self._opened: dict[str, DeviceModel] = {}

    def model(self, member: str = "") -> DeviceModel:
        """Opened once; load weights before each use. Raises KeyError, ModelError."""
        if member not in self._opened:
            self._opened[member] = open_model(self._bundles[member], self._engine)
        return self._opened[member]

    def manifest(self, member: str = "") -> Manifest:
        """Raises KeyError."""
        return self._bundles[member].manifest

    def unload(self) -> None:
        """Give back the memory of all sessions, until the next use."""
        for model in self._opened.values():
            model.unload()


def open_family(paths: tuple[str, ...], main: Manifest) -> dict[str, Bundle]:
    """The smaller models of a task, by the names in their manifests.

    Raises ModelError, and TaskError for two of one name, one without, or one that does not learn the same
    from the same.
    """
    family: dict[str, Bundle] = {}
    for path in paths:
        bundle = Bundle.open(bundles.find(path))
        member = bundle.manifest
        if member.name in ("", main.name, *family):
            raise TaskError(
                f"two models of the family are called {member.name!r}: export one by another name"
                if member.name
                else f"{path} has no name: export it by one"
            )
        if other := _otherwise(member, main):
            raise TaskError(f"{member.name} has other inputs or labels than {main.name}: {other}")
        family[member.name] = bundle
    return family


def _otherwise(member: Manifest, main: Manifest) -> str:
    """What differs, as "mean is (0.0,), not (0.305,)"; empty when nothing does."""
    pairs = [
        (name, getattr(member.input, name), getattr(main.input, name))
        for name in main.input.__struct_fields__
    ]
    pairs.append(("labels", member.labels, main.labels))
    return "; ".join(f"{name} is {its}, not {mine}" for name, its, mine in pairs if its != mine)


def samples(path: str, bundle: Bundle, what: str) -> LocalData:
    """All labelled samples of a place, as a device's `--data` names it. Raises TaskError, one line."""
    try:
        return opened(path, bundle.manifest, texts=bundle.texts).training
    except ModelError as error:
        raise TaskError(f"{what} {path}: {error}") from None
