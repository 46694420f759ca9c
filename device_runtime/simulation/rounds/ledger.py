"""Writes the records of a run: an `AskRecord` when an ask ends, a `SimulatedRound` when a round closes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import nan

from device_runtime.aggregator.merging.evaluation import mean_loss
from device_runtime.aggregator.tasks.drawing import NO_UPDATES, EarlierUpdates
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.simulation.clock.sampling import PendingUpdate
from device_runtime.simulation.history.records import AskOutcome, AskRecord, RunObserver, SimulatedRound
from device_runtime.strategies.interface.device_half import Update


@dataclass(frozen=True)
class RoundFigures:
    """Metrics of a round's models, nan and () where they were not evaluated; see `SimulatedRound`.

    better: those of the better of the served model and the base; None where they are the same.
    """

    eval_acc: float = nan
    eval_loss: float = nan
    base_eval_acc: float = nan
    eval_acc_by_class: tuple[float, ...] = ()
    base_eval_acc_by_class: tuple[float, ...] = ()
    closed_form_eval_acc: float = nan
    closed_form_eval_acc_by_class: tuple[float, ...] = ()
    metric: str = ACCURACY
    eval_metrics: dict[str, float] = field(default_factory=dict)
    unopened: float = nan
    central_epsilon: float = nan
    held_out_eval_acc: float = nan
    better: RoundFigures | None = None

    def as_closed_form(self) -> RoundFigures:
        """The same figures of a served model that has the closed-form head."""
        return replace(
            self,
            closed_form_eval_acc=self.eval_acc,
            closed_form_eval_acc_by_class=self.eval_acc_by_class,
        )

    def serving(self, other: RoundFigures) -> RoundFigures:
        """The figures of `other`, which is served instead, with those of the closed-form head kept."""
        return replace(
            other,
            closed_form_eval_acc=self.closed_form_eval_acc,
            closed_form_eval_acc_by_class=self.closed_form_eval_acc_by_class,
        )


class UpdateHistory:
    """What counted of each device, round by round, for drawing policies."""

    def __init__(self, asks: Iterable[AskRecord] = ()) -> None:
        """`asks`: of the rounds that were done before the run was stopped."""
        self._updates: dict[str, list[tuple[int, float, float]]] = {}
        for ask in asks:
            self.add(ask)

    def add(self, ask: AskRecord) -> None:
        """Notes an ask that is over, if its update counted."""
        if ask.fate == "counted":
            self._updates.setdefault(ask.device, []).append((ask.into, ask.train_loss, ask.compute_s))

    def before(self, device: str, number: int) -> EarlierUpdates:
        """What counted of a device in the rounds before this one."""
        earlier = [update for update in self._updates.get(device, ()) if update[0] < number]
        return EarlierUpdates(len(earlier), *earlier[-1]) if earlier else NO_UPDATES


class RunLedger:
    """Records a run for `watch`. A round's sums are over the asks that ended since the round before."""

    def __init__(
        self, watch: RunObserver, forward_flops: float, replayed: int = 0, asks: Iterable[AskRecord] = ()
    ) -> None:
        """`forward_flops` are those of one forward pass of one sample: the F that compute is counted in.

        Nothing is recorded of the first `replayed` rounds: the run did so before it was stopped. `asks` are
        of these.
        """
        self._watch, self.history = watch, UpdateHistory(asks)
        self._replayed = replayed
        self._forward_flops = forward_flops
        self._open, self._opened_s = 1, 0.0
        self._ended: list[AskRecord] = []

    def opened(self, number: int, now: float) -> None:
        self._open, self._opened_s = number, now

    def ended(
        self,
        flight: PendingUpdate,
        fate: AskOutcome,
        now: float,
        *,
        into: int = 0,
        update: Update | None = None,
        why: str = "",
        norm: float = nan,
    ) -> None:
        """Ends a device's part in a round. `into`: the round that its `update`, `norm` long, counts in."""
        if self._open <= self._replayed and fate != "unheard":  # of these a stopped run has recorded none
            return
        line, outcome = flight.line, flight.line.outcome
        strategy = flight.strategy
        ask = AskRecord(
            round=flight.round,
            into=into,
            device=flight.device,
            group=flight.group,
            kind=flight.kind,
            form="" if strategy is None else strategy.variant,
            fate=fate,
            straggler=line.straggler,
            asked_s=flight.asked_s,
            ended_s=min(now, line.ends_at),
            download_s=line.busy.download_s,
            compute_s=line.busy.compute_s,
            upload_s=line.busy.upload_s,
            bytes_down=line.bytes_down,
            bytes_up=line.bytes_up,
            energy_j=line.energy_j,
            peak_memory_bytes=outcome.peak_memory_bytes,
            num_examples=0 if update is None else update.num_examples,
            forward_passes=line.flops / self._forward_flops,
            train_loss=nan if update is None else update.train_loss,
            why=why or "; ".join(outcome.reasons),
            epsilon=outcome.epsilon,
            norm=norm,
        )
        self._ended.append(ask)
        self.history.add(ask)
        self._watch.asked(ask)

    def closed(self, number: int, now: float, figures: RoundFigures) -> None:
        """Closes the round; asks that end from now on belong to the next."""
        if number > self._replayed:
            asks, self._ended = self._ended, []
            self._watch.closed(summarise(number, (self._opened_s, now), asks, figures))


def summarise(
    number: int, times: tuple[float, float], asks: list[AskRecord], figures: RoundFigures
) -> SimulatedRound:
    """The record of a round from the asks that ended in it; `times`: when it opened and closed."""
    counted = [ask for ask in asks if ask.fate == "counted"]
    fates = [ask.fate for ask in asks]
    of_models = {name: value for name, value in vars(figures).items() if name != "better"}
    return SimulatedRound(
        round=number,
        opened_s=times[0],
        closed_s=times[1],
        train_loss=mean_loss((ask.train_loss, ask.num_examples) for ask in counted),
        asked=len(asks),
        participants=len({ask.device for ask in counted}),
        stragglers=sum(ask.straggler for ask in asks),
        late=fates.count("late"),
        lost=fates.count("crashed") + fates.count("dropped out"),
        sat_out=fates.count("sat out"),
        refused=fates.count("refused"),
        rested=fates.count("rested"),
        staleness=sum(number - a.round for a in counted) / len(counted) if counted else 0.0,
        train_time_s=sum(ask.compute_s for ask in asks),
        energy_j=sum(ask.energy_j for ask in asks),
        wasted_j=sum(ask.energy_j for ask in asks if ask.fate != "counted"),
        bytes_up=sum(ask.bytes_up for ask in asks),
        bytes_down=sum(ask.bytes_down for ask in asks),
        forward_passes=sum(ask.forward_passes for ask in asks),
        **of_models,
    )
