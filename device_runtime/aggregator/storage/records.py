"""The figures of a run as files: rounds and contributions, each as JSON lines and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import msgspec

from device_runtime.aggregator.views.listener import (
    ContributionRecord,
    Happening,
    RoundClosed,
    RoundRecord,
    Started,
)

Record = RoundRecord | ContributionRecord


class Records:
    """An observer that writes `rounds` and `contributions`, .jsonl and .csv, into a folder.

    They are written anew from the run's store when the service starts, so that a crash between a commit
    and its line costs nothing; then lines are appended. Field names are those of RoundRecord and
    ContributionRecord; nan is null in JSON and empty in CSV.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, happening: Happening) -> None:
        match happening:
            case Started():
                self._begin("rounds", RoundRecord)
                self._begin("contributions", ContributionRecord)
                for closed in happening.closed:
                    self._add(closed)
            case RoundClosed():
                self._add(happening)

    def _begin(self, stem: str, kind: type[Record]) -> None:
        (self._folder / f"{stem}.jsonl").write_bytes(b"")
        header = _line([field.name for field in fields(kind)])
        (self._folder / f"{stem}.csv").write_text(header, encoding="utf-8", newline="")

    def _add(self, closed: RoundClosed) -> None:
        self._append("rounds", [closed.record])
        self._append("contributions", closed.contributions)

    def _append(self, stem: str, records: Sequence[Record]) -> None:
        with (self._folder / f"{stem}.jsonl").open("ab") as lines:
            lines.writelines(msgspec.json.encode(record) + b"\n" for record in records)
        with (self._folder / f"{stem}.csv").open("a", encoding="utf-8", newline="") as table:
            table.writelines(_line([_cell(value) for value in asdict(record).values()]) for record in records)


def _cell(value: object) -> object:
    return "" if value != value else value


def _line(cells: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
