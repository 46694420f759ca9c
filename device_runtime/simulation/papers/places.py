"""Where the data of tables is, and which of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from device_runtime.simulation.errors import DataSetError

from .shared import DataEntry, Form
from .table import Scale

ENV = "DEVICE_RUNTIME_DATA"
BESIDE = Path("../shared/data")


@dataclass(frozen=True)
class DataFolder:
    """None where there is none; tables of data that comes with a package need none."""

    path: Path | None

    def form(self, entry: DataEntry, scale: Scale) -> Form | None:
        """The form of it that is there; None for data that comes with a package. Raises DataSetError."""
        if not entry.forms:
            return None
        usable = [form for form in entry.forms if scale in form.scales]
        for form in usable:
            if self.path is not None and (self.path / form.file).exists():
                return form
        raise DataSetError(
            f"no {entry.title} for scale {scale} {self._said()}: expected "
            f"{' or '.join(form.file for form in usable)}; {entry.get}"
        )

    def file(self, name: str) -> Path:
        """Raises DataSetError where it is not there."""
        if self.path is None or not (self.path / name).exists():
            raise DataSetError(f"no {name} {self._said()}")
        return self.path / name

    def has(self, entry: DataEntry, scale: Scale) -> bool:
        try:
            self.form(entry, scale)
        except DataSetError:
            return False
        return True

    def _said(self) -> str:
        return f"in {self.path}" if self.path else f"without a data folder (--data-dir DIR, or ${ENV})"


def data_folder(given: Path | None, environment: Mapping[str, str]) -> DataFolder:
    """What was said, or $DEVICE_RUNTIME_DATA, or ../shared/data if it is there.

    Raises DataSetError for one that is said and is not there.
    """
    said = given or (Path(environment[ENV]) if environment.get(ENV) else None)
    if said is None:
        return DataFolder(BESIDE if BESIDE.is_dir() else None)
    if not said.is_dir():
        raise DataSetError(f"{said}: no such folder, for the data of tables")
    return DataFolder(said)
