"""Tracks which devices are present, asked, and waited for: pure functions of the state.

Invariants: `ready` holds the devices whose `Presence.awaited` is true; `waiting` those of them that are asked
for this round and have neither answered nor sat out; `behind` some of them that were asked for an earlier
round, and for no later one. Each function costs O(log n) with n devices; when a deadline passes or a round
begins, the cost is linear in the devices that the round waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from math import inf

from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.tasks.closing import (
    WINDOW,
    Durations,
    FastDevices,
    FullBuffer,
    LearntDeadline,
    class_of,
)
from device_runtime.strategies.statistics.bounds import largest_size, no_rounds

from .events import CommitFailed, ContributionId, DevicePresent, Invited, Planned
from .state import MISSED_DEADLINES, Presence, RoundsState, Saved


def present(state: RoundsState, event: DevicePresent) -> RoundsState:
    """Updates a device's presence. A last will of an earlier process than the known one is ignored."""
    device, before = event.device, state.devices.get(event.device)
    if not event.online and (before is None or before.boot != event.boot):
        return state
    now = Presence(event.boot, event.online, event.ready)
    if now == before:
        return state
    devices = state.devices.insert(device, now)
    if now.awaited and (before is None or before.boot != event.boot or not before.ready):
        state = _asked_now(state, (device,), event.now)
    if now.awaited != (before is not None and before.awaited):
        return _come(state.but(devices=devices), device) if now.awaited else _gone(state, device, now)
    if before is not None and before.boot != event.boot and device in state.behind:
        return state.but(devices=devices, behind=state.behind.discard(device), due=True)
    return state.but(devices=devices)


def forgotten(state: RoundsState, device: str) -> RoundsState:
    """Removes a device that is offline, so no round waits for it; its counted contributions still count."""
    return state.but(
        needs=state.needs.discard(device),
        delivered=state.delivered.discard(device),
        devices=state.devices.discard(device),
        answered=state.answered.discard(device),
        sat_out=state.sat_out.discard(device),
        asked=state.asked.discard(device),
        asked_at=state.asked_at.discard(device),
    )


def remembered(state: RoundsState, saved: Saved) -> RoundsState:
    """After a restart, takes devices that were present to be present until something else is heard.

    The broker retains the last wills of devices that left meanwhile; a device that is not heard at all misses
    deadlines.
    """
    devices = {device: Presence(boot, online=True) for device, boot in saved.present.items()}
    return state.but(devices=HashTrieMap(devices), ready=HashTrieSet(devices))


def yet_to_answer(state: RoundsState, answered: Set[str]) -> HashTrieSet[str]:
    """Ready devices that are asked for the open round and are not in `answered`."""
    return HashTrieSet(device for device in state.ready if device not in answered and state.is_asked(device))


def heard(state: RoundsState, device: str) -> RoundsState:
    """A device has sent a message, so it is not silent. Silences are counted of ready devices only."""
    presence = state.devices.get(device)
    if presence is None or not presence.silences:
        return state
    state = state.but(devices=state.devices.insert(device, Presence(presence.boot, online=True)))
    return state if presence.awaited else _come(state, device)


def planned(state: RoundsState, event: Planned) -> RoundsState:
    """A device sits its round out, or has decided to take part after all."""
    device = event.device
    if event.round != state.round:
        sits_out = not event.kind and state.asked.get(device, event.round) == event.round
        return _caught_up(state, device) if sits_out else state
    if state.phase != "collect" or not state.is_asked(device):
        return state
    if not event.kind:
        sat_out, waiting = state.sat_out.insert(device), state.waiting.discard(device)
        return state.but(sat_out=sat_out, waiting=waiting, due=_makes_room(state))
    if device not in state.sat_out:
        return state
    state = state.but(sat_out=state.sat_out.discard(device))
    awaited = device in state.ready and _owes(state, device)
    return state.but(waiting=state.waiting.insert(device)) if awaited else state


def answered(state: RoundsState, update: ContributionId) -> RoundsState:
    """A device has answered a round, with any status: the round does not wait for it any longer."""
    device = update.device
    if update.round == state.round:
        if not state.is_asked(device):
            return state
        answered, waiting = state.answered.insert(device), state.waiting.discard(device)
        return state.but(answered=answered, waiting=waiting, due=_makes_room(state))
    return _caught_up(state, device) if update.round >= state.asked.get(device, 0) else state


def counted(state: RoundsState, update: ContributionId) -> RoundsState:
    """One more contribution of a device is accepted in the open round."""
    device, number = update.device, state.counted.get(update.device, 0) + 1
    return state.but(
        contributions=state.contributions + 1,
        counted=state.counted.insert(device, number),
        newest=state.newest.insert(device, max(update.round, state.newest.get(device, 0))),
    )


def commit_failed(state: RoundsState, event: CommitFailed) -> RoundsState:
    """Undoes counted contributions that the disk refused; the round waits for their devices again.

    Their receipts have not been sent.
    """
    answered, waiting, counted, newest = state.answered, state.waiting, state.counted, state.newest
    for update in event.updates:
        newest = newest.discard(update.device)  # an earlier one that is stored may be judged too mildly
        left = counted[update.device] - 1
        counted = counted.insert(update.device, left) if left else counted.discard(update.device)
        if update.round != state.round:
            continue
        if (number := state.noted.get((update.device, update.kind))) is not None:
            state = state.but(noted=state.noted.discard((update.device, update.kind)))
            state = _noted(state, number, -1)
        answered = answered.discard(update.device)
        if (
            update.device in state.ready
            and state.is_asked(update.device)
            and update.device not in state.sat_out
        ):
            waiting = waiting.insert(update.device)
    contributions = state.contributions - len(event.updates)
    state = state.but(newest=newest, answered=answered, waiting=waiting)
    return state.but(contributions=contributions, counted=counted)


def invited(state: RoundsState, event: Invited) -> RoundsState:
    """Records the devices that were asked; the round does not wait for those that left in the meantime."""
    if state.phase != "collect" or event.round != state.round or state.rules.cohort(state.round) is None:
        return state
    cohort, waiting, behind = state.asked, state.waiting, state.behind
    for device in event.devices:
        cohort, behind = cohort.insert(device, state.round), behind.discard(device)
        if device in state.ready and _owes(state, device):
            waiting = waiting.insert(device)
    places = max(0, state.places - len(event.devices))
    if isinstance(state.rules.closing, LearntDeadline) and event.now > state.opened_at:
        state = state.but(asked_at=state.asked_at.update(dict.fromkeys(event.devices, event.now)))
    state = _asked_now(state, event.devices, event.now)
    return state.but(asked=cohort, waiting=waiting, behind=behind, places=places)


def duration_measured(state: RoundsState, update: ContributionId, now: float) -> RoundsState:
    """Counts the time that a device needed from being asked to its contribution to the open round."""
    if not isinstance(state.rules.closing, LearntDeadline) or not state.measured:
        return state
    seconds = now - state.asked_at.get(update.device, state.opened_at)
    noted = state.noted.insert((update.device, update.kind), class_of(seconds))
    return _noted(state.but(noted=noted), class_of(seconds), 1)


def update_received(state: RoundsState, update: ContributionId, now: float) -> RoundsState:
    """Records how long a device worked on an update that it has sent, for any round.

    Its work began when that round opened, when it was asked, or when it had sent its last update, whichever
    came last. Nothing is known of rounds that opened before a restart of the aggregator. An update that is
    sent again changes nothing.
    """
    device, opened_at = update.device, state.opened.get(update.round)
    number, sent_s = state.delivered.get(device, (0, -inf))
    if opened_at is None or update.round <= number:
        return state
    seconds = now - max(opened_at, sent_s, state.asked_at.get(device, -inf))
    needs = state.rules.rank(update.kind, update.form), class_of(seconds), update.samples
    return state.but(
        needs=state.needs.insert(device, needs),
        delivered=state.delivered.insert(device, (update.round, now)),
    )


def _needs_of_the_fast(state: RoundsState) -> Durations:
    """The samples of ready devices whose last update was of the richest form, by class of duration.

    No device counts for more samples than `largest_size` of them: the median duration is over samples, and
    their number is a device's own claim.
    """
    ready = [needs for device, needs in state.needs.items() if device in state.ready]
    richest = min((rank for rank, _, _ in ready), default=0)
    most = largest_size([samples for rank, _, samples in ready if rank == richest], no_rounds())
    durations: Counter[int] = Counter()
    for rank, number, samples in ready:
        if rank == richest:
            durations[number] += samples if samples <= most else int(most)
    return durations


def _asked_now(state: RoundsState, devices: Iterable[str], now: float) -> RoundsState:
    """Records when devices were asked, where rounds wait for the fast."""
    if not isinstance(state.rules.closing, FastDevices):
        return state
    return state.but(asked_at=state.asked_at.update(dict.fromkeys(devices, now)))


def round_closed(state: RoundsState) -> RoundsState:
    """Completes the durations when the round closes, and keeps them with those of the last rounds.

    Devices that missed the deadline or sat out count as slower than the deadline. A device may have sat out
    for lack of memory; a deadline that is too long for that reason costs nothing, as devices sit out at once.
    """
    match state.rules.closing:
        case FastDevices():
            state = state.but(durations=HashTrieMap(_needs_of_the_fast(state)))
        case LearntDeadline() if state.measured:
            if short := len(state.waiting) + len(state.sat_out):
                state = _noted(state, class_of(state.deadline_s(state.round)), short)
        case _:
            return state
    if not state.durations:
        return state
    return state.but(paces=(*state.paces, state.durations)[-WINDOW:])


def _noted(state: RoundsState, number: int, devices: int) -> RoundsState:
    """Adds devices to a class of durations."""
    after = state.durations.get(number, 0) + devices
    durations = state.durations
    return state.but(durations=durations.insert(number, after) if after else durations.discard(number))


def overdue(state: RoundsState) -> RoundsState:
    """Counts a missed deadline for each device that the round waits for."""
    devices, silent = state.devices, []
    for device in state.waiting:
        before = devices[device]
        now = Presence(before.boot, before.online, before.ready, before.silences + 1)
        devices = devices.insert(device, now)
        if not now.awaited:
            silent.append(device)
    state = state.but(devices=devices)
    for device in silent:
        state = _gone(state, device, devices[device])
    return state


def extended(state: RoundsState, now: float) -> RoundsState:
    """Restarts the deadline. Devices that sat out are asked again; with cohorts, others are drawn."""
    size = state.rules.cohort(state.round)
    state = state.but(closes_at=now + state.deadline_s(state.round))
    again = [device for device in state.sat_out if device not in state.answered]
    if size is None:
        waiting = state.waiting
        for device in again:
            if device in state.ready:
                waiting = waiting.insert(device)
        return state.but(waiting=waiting, sat_out=HashTrieSet())
    cohort = state.asked
    for device in again:
        cohort = cohort.discard(device)
    state = state.but(asked=cohort, sat_out=HashTrieSet(), behind=_still_behind(state, now))
    return state.but(places=size - len(state.waiting), due=True)


def round_opened(state: RoundsState, now: float) -> RoundsState:
    """Opens the next round: all ready devices are asked; with cohorts none yet."""
    closes_at = now + state.deadline_s(state.round + 1)
    state = state.but(phase="collect", round=state.round + 1, opened_at=now, closes_at=closes_at)
    state = state.but(contributions=0, counted=HashTrieMap(), answered=HashTrieSet(), sat_out=HashTrieSet())
    state = state.but(had=0, fruitless=0, newest=HashTrieMap())
    if isinstance(state.rules.closing, FastDevices):
        state = _opened(state, now)
    else:
        state = state.but(asked_at=HashTrieMap(), durations=HashTrieMap())
    state = state.but(noted=HashTrieMap(), measured=True)
    size = state.rules.cohort(state.round)
    if size is None:
        return state.but(waiting=state.ready)
    behind = _still_behind(state, now).update(dict.fromkeys(state.waiting, now))
    state = state.but(waiting=HashTrieSet(), behind=behind, asked=_still_asked(state, behind))
    return state.but(places=size, due=True)


def _opened(state: RoundsState, now: float) -> RoundsState:
    """Records when the round opened, and forgets rounds that are too old to count.

    Round 1 is left out: devices fetched its base before it opened, so it took them less time than others.
    """
    opened, earliest = state.opened, state.rules.earliest(state.round)
    for number in [number for number in opened if number < earliest]:
        opened = opened.discard(number)
    if state.round > 1:
        opened = opened.insert(state.round, now)
    return state.but(opened=opened, fast_at=now + state.closing_s(state.round))


def _still_asked(state: RoundsState, behind: HashTrieMap[str, float]) -> HashTrieMap[str, int]:
    """Devices asked for a round whose updates may still count, and devices that may be at work on one."""
    cohort, earliest = state.asked, state.rules.earliest(state.round)
    for device in [device for device, number in cohort.items() if number < earliest and device not in behind]:
        cohort = cohort.discard(device)
    return cohort


def _still_behind(state: RoundsState, now: float) -> HashTrieMap[str, float]:
    """Devices `behind` that may still be at work, as no more than MISSED_DEADLINES deadlines have passed."""
    most_s = MISSED_DEADLINES * state.rules.round_deadline_s
    late = state.behind
    for device in [device for device, since in late.items() if now - since >= most_s]:
        late = late.discard(device)
    return late


def _come(state: RoundsState, device: str) -> RoundsState:
    """The device is awaited from now on."""
    owes = state.is_asked(device) and _owes(state, device)
    waiting = state.waiting.insert(device) if owes else state.waiting
    return state.but(ready=state.ready.insert(device), waiting=waiting, due=True)


def _gone(state: RoundsState, device: str, now: Presence) -> RoundsState:
    """The device is not awaited any longer: it is offline, not ready, or silent."""
    return state.but(
        devices=state.devices.insert(device, now),
        ready=state.ready.discard(device),
        waiting=state.waiting.discard(device),
        behind=state.behind.discard(device),
        due=True,
    )


def _owes(state: RoundsState, device: str) -> bool:
    return device not in state.answered and device not in state.sat_out


def _makes_room(state: RoundsState) -> bool:
    """Whether another device may be asked in place of one that is done: always in a buffered run."""
    return state.due or isinstance(state.rules.closing, FullBuffer)


def _caught_up(state: RoundsState, device: str) -> RoundsState:
    """The device is not at work on an earlier round any longer."""
    return state.but(behind=state.behind.discard(device), due=True) if device in state.behind else state
