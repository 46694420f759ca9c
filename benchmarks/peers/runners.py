"""Who is compared, on what, and how large."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatch


@dataclass(frozen=True)
class Case:
    """A work with its size. Of a run's rounds the first `warm` do not count; memory is that of `short`."""

    work: str
    users: int
    cohort: int
    rounds: int
    warm: int
    short: int

    def quick(self) -> Case:
        """With an eighth of the rounds that count, and one."""
        return replace(self, rounds=self.warm + 1 + (self.rounds - self.warm) // 8)


CASES = {
    "A": Case("A", 1000, 50, rounds=8, warm=2, short=3),
    "B": Case("B", 1000, 10, rounds=220, warm=20, short=20),
    "C-1000": Case("C", 1000, 50, rounds=60, warm=10, short=10),
    "C-5000": Case("C", 5000, 50, rounds=60, warm=10, short=10),
    "C-100000": Case("C", 100_000, 50, rounds=60, warm=10, short=10),
    "C-15000000": Case("C", 15_000_000, 50, rounds=60, warm=10, short=10),
}


TRAINED, SMALL = ("A", "B"), ("A", "B", "C-1000", "C-5000")


@dataclass(frozen=True)
class Peer:
    """A runner, the environment it runs in, what it is told beside the job, the cases that it does."""

    environment: str
    script: str
    flags: tuple[str, ...] = ()
    cases: tuple[str, ...] = SMALL


def _ours(executor: str, engine: str = "auto", cases: tuple[str, ...] = TRAINED) -> Peer:
    return Peer("ours", "ours.py", ("--executor", executor, "--engine", engine), cases)


OURS = "ours"
RUNNERS = {
    OURS: _ours("auto", cases=tuple(CASES)),
    "ours, plain": _ours("plain"),
    "ours, processes": _ours("processes"),
    "ours, processes, torch": _ours("processes", "torch"),
    "ours, batched": _ours("batched", cases=("B",)),
    "bare loop": Peer("bare", "bare_loop.py"),
    "flwr": Peer("flower", "flower_current.py"),
    "flwr, legacy": Peer("flower", "flower_legacy.py"),
    "pfl": Peer("pfl", "pfl_runner.py"),
}
REFERENCE = "float64"
RUNNERS[REFERENCE] = Peer("bare", "reference.py", cases=())


def peers_for(patterns: list[str] | None, case: str) -> list[str]:
    """The peers that these patterns name, or all, that do this case."""
    return [
        name
        for name, peer in RUNNERS.items()
        if case in peer.cases and any(fnmatch(name, pattern) for pattern in patterns or ["*"])
    ]
