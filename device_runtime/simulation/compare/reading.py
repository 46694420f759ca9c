"""Finished runs, from their files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.metrics.probes import ProbeLine
from device_runtime.simulation.metrics.tally import tally
from device_runtime.simulation.records import Ask

from .figures import Ran
from .lines import read
from .plan import Plan
from .run_folder import ASKS, PROBES, Name, info_of, rounds_of


def read_run(folder: Path, name: Name, shown: int) -> Ran:
    """One run, in one pass over its asks; `shown` is the round whose asks are kept.

    Raises SimulationError.
    """
    kept = _Kept(shown)
    asks = kept.passed(read(folder / f"{ASKS}.jsonl", Ask))
    counts = tally(asks)
    return Ran(name, info_of(folder), rounds_of(folder), counts, tuple(kept.asks), _probes(folder))


def read_all(plan: Plan) -> list[Ran]:
    """Every run of a comparison. Raises SimulationError when one is not finished."""
    shown = shown_round(plan)
    return [read_run(plan.of(name), name, shown) for name in plan.names]


def shown_round(plan: Plan) -> int:
    """The round that a time line is drawn of: the middle one, when devices know their own speed."""
    return plan.scenario.task.rounds // 2 + 1


@dataclass
class _Kept:
    """Lets asks pass, and keeps those of one round."""

    round: int
    asks: list[Ask] = field(default_factory=list)

    def passed(self, asks: Iterator[Ask]) -> Iterator[Ask]:
        for ask in asks:
            if ask.round == self.round:
                self.asks.append(ask)
            yield ask


def _probes(folder: Path) -> tuple[ProbeLine, ...]:
    """What was seen of local models; nothing where nobody looked. Raises SimulationError."""
    try:
        return tuple(msgspec.json.Decoder(ProbeLine).decode_lines((folder / PROBES).read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise SimulationError(f"{folder / PROBES} is damaged: {error}") from None
