"""A random environment of the round machine, and a plain model of its state.

`RandomRun` lets devices, the disk and the clock do anything in any order, and does what the machine commands.
After each event the machine's state must be that of `PlainModel`; the checks of `RandomRun` say what else
must hold.
"""

from collections import Counter
from dataclasses import replace
from math import inf, nan

from device_runtime.aggregator.machine import events as ev
from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.state import MISSED_DEADLINES, RoundsState, Rules, Saved
from device_runtime.aggregator.tasks.closing import FastDevices, FullBuffer, LearntDeadline

DEVICES = "abcde"
TICKS_S = (0.0, 0.0, 0.0, 0.1, 0.1, 0.5, 0.5, 1.0, 1.0, 4.0, 11.0)


def random_rules(random):
    """Rules of a run: with or without cohorts, buffers, learnt deadlines, waiting for the fast, masks."""
    choice = random.choice
    rules = Rules(
        rounds=50, round_deadline_s=10.0, late=choice(("count", "discard")), min_devices=choice((1, 2)),
        min_contributions=choice((1, 1, 2)), max_contributions=choice((4, 99)), bound=frozenset({"bound"}),
        devices_per_round=choice((None, 1, 2, 3)), max_staleness=2, max_extensions=choice((0, 3)),
        masked=choice((False, False, True)),
    )  # fmt: skip
    kind = choice(("plain", "buffered", "fast", "paced"))
    if kind == "buffered":
        return replace(rules, closing=FullBuffer(choice((1, 3))))
    rules = replace(rules, ask_all_rounds=choice((0, 1, 2)))
    if kind == "fast":
        return replace(rules, closing=FastDevices(), richest=(("full", ""),))
    return replace(rules, closing=LearntDeadline(0.8, 1.5, 2.0)) if kind == "paced" else rules


class PlainModel:
    """Devices that are here, asked, done with the round, or at work on an earlier one, in sets and dicts."""

    def __init__(self, rules):
        self.rules, self.round = rules, 0
        self.here = {}  # boot, online, ready, silences
        self.cohort, self.behind = {}, {}
        self.answered, self.sat_out, self.counted, self.newest = set(), set(), Counter(), {}
        self.had = self.fruitless = 0  # contributions at the last deadline, and deadlines that brought none

    @property
    def ready(self):
        entries = self.here.items()
        return {
            d
            for d, (_, online, ready, silences) in entries
            if online and ready and silences < MISSED_DEADLINES
        }

    @property
    def everyone(self):
        return self.rules.cohort(self.round) is None

    @property
    def waiting(self):
        return {d for d in self.ready if self.is_asked(d)} - self.answered - self.sat_out

    def is_asked(self, device):
        return self.everyone or self.cohort.get(device) == self.round

    def present(self, event):
        device, boot, before = event.device, self.here.get(event.device, (None,))[0], self.ready
        if not event.online and boot != event.boot:
            return
        if boot != event.boot:
            self.behind.pop(device, None)
        self.here[device] = (event.boot, event.online, event.ready, 0)
        self.left(before)

    def left(self, before):
        """Those that were ready and are not any longer are not at work."""
        for device in before - self.ready:
            self.behind.pop(device, None)

    def hear(self, device):
        if device in self.here:
            self.here[device] = (*self.here[device][:3], 0)

    def forgotten(self, device):
        for book in (self.here, self.cohort, self.behind):
            book.pop(device, None)
        self.answered.discard(device)
        self.sat_out.discard(device)

    def planned(self, event, phase):
        device = event.device
        self.hear(device)
        if event.round != self.round:
            if not event.kind and self.cohort.get(device, event.round) == event.round:
                self.behind.pop(device, None)
        elif phase == "collect" and self.is_asked(device):
            (self.sat_out.discard if event.kind else self.sat_out.add)(device)

    def done(self, update):
        """A device has answered a round."""
        if update.round == self.round:
            if self.is_asked(update.device):
                self.answered.add(update.device)
        elif update.round >= self.cohort.get(update.device, 0):
            self.behind.pop(update.device, None)

    def refused_by_disk(self, updates):
        for update in updates:
            self.counted[update.device] -= 1
            self.newest.pop(update.device, None)
            if update.round == self.round:
                self.answered.discard(update.device)
        self.counted = +self.counted

    def invited(self, event):
        for device in event.devices:
            self.cohort[device] = self.round
            self.behind.pop(device, None)

    def deadline_passed(self):
        before = self.ready
        for device in self.waiting:
            *rest, silences = self.here[device]
            self.here[device] = (*rest, silences + 1)
        self.left(before)

    def extended(self, now):
        if self.rules.max_extensions:
            could = not self.ready <= set(self.counted)
            self.fruitless = 0 if self.counted.total() > self.had else self.fruitless + could
            self.had = self.counted.total()
        if not self.everyone:
            for device in self.sat_out - self.answered:
                self.cohort.pop(device)
            self.expire(now)
        self.sat_out = set()

    def opened(self, number, now):
        waiting, self.round = self.waiting, number
        self.had = self.fruitless = 0
        self.answered, self.sat_out, self.counted, self.newest = set(), set(), Counter(), {}
        if not self.everyone:
            self.expire(now)
            self.behind |= dict.fromkeys(waiting, now)
            earliest = self.rules.earliest(number)
            self.cohort = {d: last for d, last in self.cohort.items() if last >= earliest or d in self.behind}

    def expire(self, now):
        """Nobody is taken to be at work on an earlier round for longer than two deadlines."""
        most_s = MISSED_DEADLINES * self.rules.round_deadline_s
        self.behind = {device: since for device, since in self.behind.items() if now - since < most_s}


class RandomRun:
    """`random` has `choice`, `random` and `shuffle`, as random.Random."""

    def __init__(self, random):
        self.random, self.now = random, 0.0
        self.rules = random_rules(random)
        self.state, self.plain = RoundsState(self.rules), PlainModel(self.rules)
        self.sent, self.unsure, self.fetching, self.work = {}, [], [], []
        self.missing = 0

    def run(self, steps):
        for _ in range(steps):
            if self.state.phase not in ("done", "given up"):
                self.act()

    def act(self):
        self.now += self.random.choice(TICKS_S)
        self.tick()
        if self.random.random() < 0.7 and (self.work or self.fetching):
            self.answer()
        else:
            self.random.choice(
                (self.present, self.present, self.present, self.planned, self.planned, self.announced,
                 self.announced, self.announced, self.announced, self.disk, self.forgotten, self.restart)
            )()  # fmt: skip

    def tick(self):
        before = self.state
        overdue = before.phase == "collect" and self.now >= before.closes_at
        if overdue:
            self.plain.deadline_passed()
        if self.random.random() < 0.5:
            self.unsure = []  # they are on the disk
        self.feed(ev.TimePassed(self.now))
        self.check_phase(before, overdue)

    def present(self):
        device, boot, online, ready = map(
            self.random.choice, (DEVICES, (1, 1, 2), (True, True, False), (True, True, False))
        )
        event = ev.DevicePresent(self.now, device, boot, online, ready)
        self.plain.present(event)
        self.feed(event)

    def planned(self):
        number = max(0, self.state.round - self.random.choice((0, 0, 1)))
        event = ev.Planned(self.now, self.random.choice(DEVICES), number, self.random.choice(("", "full")))
        self.plain.planned(event, self.state.phase)
        self.feed(event)

    def announced(self):
        number = self.state.round - self.random.choice((0, 0, 0, 1, 2, 3, -1))
        kind = self.random.choice(("full", "full", "full", "bound"))
        update = ev.ContributionId(self.random.choice(DEVICES), number, kind, 1, 1)
        self.plain.hear(update.device)
        self.feed(ev.Announced(self.now, update, self.sent.get((update.device, number), "")))

    def answer(self):
        """Some work is done, or the content of a contribution has come."""
        if self.work[-1:] == ["unmask"] and self.random.random() < 0.3:
            self.feed(ev.SumAnswered(self.now))
            return
        if self.work:
            back = self.state.progress if self.random.random() < 0.1 else None
            score = self.random.choice((nan, 0.0, 1.0))
            self.feed(ev.PhaseDone(self.now, self.work.pop(), score, back))
            return
        update = self.fetching.pop(0)
        if self.random.random() < 0.2:
            self.plain.done(update)
            self.feed(ev.Rejected(self.now, update, "nan"))
        else:
            self.feed(ev.Validated(self.now, update, self.sent.get((update.device, update.round), "")))

    def disk(self):
        """The disk refuses what it was given last."""
        updates, self.unsure = self.unsure, []
        for update in updates:
            del self.sent[update.device, update.round]
        self.plain.refused_by_disk(updates)
        self.feed(ev.CommitFailed(self.now, tuple(updates)))

    def forgotten(self):
        device = self.random.choice(DEVICES)
        if device not in self.plain.ready:
            self.plain.forgotten(device)
            self.feed(ev.Forgotten(self.now, device))
            state = self.state
            assert not any(device in book for book in (state.needs, state.delivered, state.asked_at))

    def restart(self):
        """Another process goes on with what is on the disk; content that was coming is lost."""
        if self.state.phase != "collect" or self.random.random() < 0.7:
            return
        plain, before = self.plain, self.state
        stored = frozenset(d for d, number in self.sent if number == plain.round)
        cohort = {d: n for d, n in plain.cohort.items() if n >= self.rules.earliest(plain.round)}
        if not plain.everyone and not stored <= set(cohort):
            return  # a device that was forgotten would be asked again, and not be waited for
        present = {d: plain.here[d][0] for d in plain.ready}
        saved = Saved(
            plain.round, "collect", dict(plain.counted), stored, cohort, before.paces, before.progress,
            present, before.fruitless, before.given_up, dict(plain.newest),
        )  # fmt: skip
        self.fetching, self.unsure = [], []
        plain.here = {device: (boot, True, True, 0) for device, boot in present.items()}
        plain.cohort, plain.behind, plain.sat_out = cohort, {}, set()
        plain.answered, plain.had = set(stored), plain.counted.total()
        already = sum(number == plain.round for number in cohort.values())
        self.missing = max(0, (self.rules.cohort(plain.round) or 0) - already)
        self.state, commands = machine.resume(self.rules, saved, self.now)
        self.check_model()
        self.take(commands)

    def feed(self, event):
        before = self.state
        self.state, commands = machine.step(before, event)
        assert machine.step(before, event) == (self.state, commands)
        for command in commands:
            self.note(command)
        self.check_model()
        self.check_durations()
        self.take(commands)
        self.check_places()

    def note(self, command):
        """Take what the machine has decided into the plain model."""
        if isinstance(command, ev.Announce) and not command.again:
            self.plain.opened(command.round, self.now)
            state = self.state
            assert (state.measured, dict(state.noted)) == (True, {})
            assert isinstance(self.rules.closing, FastDevices) or not (state.durations or state.asked_at)
            self.missing = self.rules.cohort(command.round) or 0
        elif isinstance(command, ev.Extend):
            self.plain.extended(self.now)
            self.missing = (self.rules.cohort(command.round) or 0) - len(self.plain.waiting)
        elif isinstance(command, ev.GiveUp):
            assert command.deadlines == self.plain.fruitless + 1 >= self.rules.max_extensions > 0
        elif isinstance(command, ev.StoreContribution):
            self.accept(command)
        elif isinstance(command, ev.Reply):
            assert command.status in ("accepted", "duplicate", "late", "refused")
            if command.status != "refused" or command.retry_s:
                self.plain.done(command.update)

    def accept(self, command):
        update, plain = command.update, self.plain
        assert command.into == plain.round, "contributions count in the open round"
        assert (update.device, update.round) not in self.sent, "a device has one voice in a round"
        assert self.rules.earliest(plain.round) <= update.round <= plain.round, "none counts that is too late"
        assert update.kind != "bound" or update.round == plain.round
        assert plain.counted.total() < self.rules.max_contributions, "a full round takes no more"
        assert update.round < plain.round or plain.is_asked(update.device), "only who was asked counts"
        assert update.round >= plain.newest.get(update.device, 0), "the newest of a device counts"
        plain.newest[update.device] = update.round
        plain.counted[update.device] += 1
        self.sent[update.device, update.round] = update.kind
        self.unsure.append(update)

    def take(self, commands):
        """Do what the machine has commanded."""
        for command in commands:
            if isinstance(command, ev.FetchContribution):
                self.fetching.append(command.update)
            elif isinstance(command, ev.DoPhase):
                self.work.append(command.phase)
                self.unsure = []
            elif isinstance(command, ev.Invite):
                self.invite(command)

    def invite(self, command):
        free = self.free()
        self.random.shuffle(free)
        assert (command.round, command.count) == (self.state.round, self.places())
        chosen = tuple(free[: command.count])
        self.missing -= len(chosen)
        event = ev.Invited(self.now, command.round, chosen)
        self.plain.invited(event)
        self.feed(event)

    def free(self):
        plain = self.plain
        return [d for d in sorted(plain.ready) if not plain.is_asked(d) and d not in plain.behind]

    def places(self):
        """How many devices are still to be asked; a buffered run keeps as many at work as a cohort has."""
        plain = self.plain
        at_work = len(plain.waiting) + len(plain.behind)
        buffered = isinstance(self.rules.closing, FullBuffer)
        return self.rules.cohort(plain.round) - at_work if buffered else self.missing

    def check_model(self):
        state, plain = self.state, self.plain
        assert {d: (p.boot, p.online, p.ready, p.silences) for d, p in state.devices.items()} == plain.here
        assert (set(state.ready), set(state.waiting)) == (plain.ready, plain.waiting)
        assert (set(state.answered), set(state.sat_out)) == (plain.answered, plain.sat_out)
        assert (dict(state.asked), dict(state.behind)) == (plain.cohort, plain.behind)
        if state.phase == "collect":
            assert (state.had, state.fruitless) == (plain.had, plain.fruitless)
        assert (dict(state.counted), state.contributions) == (plain.counted, plain.counted.total())
        for device in DEVICES:
            is_asked = plain.is_asked(device) and (plain.everyone or device not in plain.answered)
            assert state.concerns(device) == (state.phase == "collect" and is_asked)

    def check_durations(self):
        """Where deadlines are learnt, each contribution to the open round has its duration, and no other."""
        state, number = self.state, self.plain.round
        assert min(state.opened, default=number) >= self.rules.earliest(number)
        learns = isinstance(self.rules.closing, LearntDeadline)
        if not learns or state.phase != "collect" or not state.measured:
            return
        assert set(state.noted) == {(d, kind) for (d, sent), kind in self.sent.items() if sent == number}
        assert dict(state.durations) == Counter(state.noted.values())

    def check_places(self):
        """No place stays free while somebody could take it; a buffered run may wait for its next retry."""
        state = self.state
        if isinstance(self.rules.closing, FullBuffer) and self.now < state.retries_at:
            return
        if state.phase == "collect" and not self.plain.everyone and self.now >= state.settles_at:
            assert self.places() <= 0 or not self.free()

    def check_phase(self, before, overdue):
        """After a tick: the round is closed, extended or goes on, as it must."""
        state, rules, devices = self.state, self.rules, len(self.plain.counted)
        if before.phase != "collect" or state.phase == "given up":
            return
        buffered = isinstance(rules.closing, FullBuffer)
        full = buffered and rules.closing.size <= devices
        at_work = self.plain.waiting | (set(self.plain.behind) if before.fast_at < inf else set())
        all_done = bool(self.plain.ready) and bool(self.plain.answered | self.plain.sat_out) and not at_work
        done = not buffered and self.now >= before.settles_at and (all_done or self.now >= before.fast_at)
        closes = full or (devices >= rules.min_contributions and (overdue or done))
        assert (state.phase == ("unmask" if rules.masked else "merge")) == closes
        if not closes:
            assert state.closes_at == (
                self.now + state.deadline_s(state.round) if overdue else before.closes_at
            )
