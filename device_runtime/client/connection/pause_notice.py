"""Telling the aggregator that this device may not work for now, so that no round waits for it."""

from __future__ import annotations

from device_runtime.broker.wire.messages import Offer, Plan
from device_runtime.client.policy.work_gate import Hours

from .speaking import Voice


class Standing:
    """What was told of `hours` by `voice`, and is not told twice."""

    def __init__(self, hours: Hours, voice: Voice) -> None:
        self._hours, self._voice = hours, voice
        self._paused = False
        self._sat_out = ("", 0)
        self._plan: tuple[Plan, float] | None = None

    def plan(self, plan: Plan, room_bytes: float) -> None:
        """What is tried now; it is told again when that goes on after a pause."""
        self._plan = (plan, room_bytes)
        self._voice.plan(plan, room_bytes)

    def pause(self, offer: Offer | None) -> None:
        """No work may be done; `offer` is of the round that is open and has no answer yet, if any."""
        if not self._paused:
            self._paused = True
            self._voice.paused(True)
        if offer is not None and offer.round > 0 and (offer.task, offer.round) != self._sat_out:
            self._sat_out = (offer.task, offer.round)
            nothing = Plan(
                task=offer.task,
                round=offer.round,
                kind="",
                seconds=0.0,
                memory_bytes=0,
                energy_j=0.0,
                reasons=(self._hours.reason,),
            )
            self._voice.plan(nothing, 0.0)

    def resume(self) -> bool:
        """Work may be done. Returns whether it could not be until now: say hello, for nobody waits for us."""
        if not self._paused:
            return False
        self._paused = False
        self._voice.paused(False)
        return True

    def greeted(self) -> None:
        """A hello says that the device is ready: where it is not, that is said after it.

        Whoever was told that the device sits a round out is told what it does after all.
        """
        if self._paused:
            self._voice.paused(True)
            return
        if self._plan and (self._plan[0].task, self._plan[0].round) == self._sat_out:
            self._voice.plan(*self._plan)
        self._sat_out = ("", 0)
