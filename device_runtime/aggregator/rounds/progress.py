"""Reads from a run's closed rounds how it goes on: its rules, learnt deadlines, and progress."""

from __future__ import annotations

from dataclasses import replace

from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.task import Task

from . import pace
from .given_rounds import GivenRoundStore
from .pace import WINDOW, Progress, score_of
from .state import Rules, Saved


class RunProgress:
    """How a run goes on. `outside`: where its rounds are given from outside. Raises as Store."""

    def __init__(self, task: Task, store: Store, outside: GivenRoundStore | None) -> None:
        self._task, self._store, self._outside = task, store, outside

    @property
    def rules(self) -> Rules:
        """The task's rules; where rounds are given from outside, with the deadline of the last one.

        Where only zeroth-order updates are offered in given rounds, each counts in its own round only: their
        merged scalars must all be along the directions of one round.
        """
        rules = Rules.of(self._task)
        if self._outside is None:
            return rules
        latest, kinds = self._outside.latest, self._task.kinds
        scalars = {kind.name for kind in kinds} if all(kind.strategy.scalars for kind in kinds) else set()
        return replace(
            rules,
            given=True,
            round_deadline_s=latest.deadline_s if latest else rules.round_deadline_s,
            bound=rules.bound | scalars,
        )

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        saved = self._store.session.saved()
        if saved is None:
            return None
        begun = saved.round if saved.phase == "collect" else saved.round + 1
        paces = self._store.rounds.paces(WINDOW, begun)
        return replace(saved, paces=paces, progress=self.latest(), given_up=self.given_up())

    def given_up(self) -> frozenset[int]:
        """All rounds that a rollback discarded: those after the model rolled back to, until the rollback."""
        backs = self._store.history.rollbacks()
        return frozenset(n for back in backs for n in range(back.to + 1, back.into + back.instead))

    def deadline_s(self, number: int) -> float:
        """The deadline of round `number` in seconds: fixed, or learnt from the rounds before it."""
        fixed, learnt = self.rules.deadline_s(number), self._task.pace
        if learnt is None or number <= self._task.untimed_rounds:
            return fixed
        return pace.deadline_s(learnt, self._store.rounds.paces(WINDOW, number), fixed)

    def latest(self) -> Progress:
        """The progress of the run after all closed rounds."""
        known = self._known()
        return known[max(known)]

    def restored(self, number: int) -> Progress | None:
        """The progress at the model that the run rolled back to in this round; None without a rollback."""
        to = self._set_back().get(number)
        return None if to is None else self._known()[to]

    def score(self, number: int) -> float:
        """The score of an evaluated round's model, for `events.PhaseDone`."""
        figures = self._store.rounds.figures(number)
        return score_of(self._task.stop_metric, figures.eval_acc, figures.eval_loss)

    def _known(self) -> dict[int, Progress]:
        """The progress after each closed round, and before the first (0), without rounds rolled back."""
        task, back = self._task, self._set_back()
        known, latest = {0: Progress()}, 0
        for number, figures in self._store.rounds.every_figures():
            score = score_of(task.stop_metric, figures.eval_acc, figures.eval_loss)
            before = known[back.get(number, latest)]
            known[number] = before.after(number, score, task.stop_gain, number in back)
            latest = number
        return known

    def _set_back(self) -> dict[int, int]:
        """For each round in which the run rolled back: the round whose model it went back to."""
        return {rollback.into: rollback.to for rollback in self._store.history.rollbacks()}
