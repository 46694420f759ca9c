"""A random environment of the device's machine: an aggregator, a disk, a backend and an owner.

After each step it checks what must hold whatever happens; `World.check` says what.
"""

from device_runtime.device.machine import events as ev
from device_runtime.device.machine.state import DeviceRules, DeviceState
from device_runtime.device.machine.step import step

TASKS, RUNS, BUNDLES = ("a", "b", "c"), ("r", "s"), ("x", "y")
WHY = ("blob", "no room", "stale base", "worker died", "left out", "stopped")
CLOSES_S = (0.5, 5.0, 60.0, 600.0)


class World:
    """`random` has `choice` and `random`, as random.Random; `seen` is called with each step.

    `leaves` as in DeviceRules.
    """

    def __init__(self, random, observer=lambda *_: None, leaves=False):
        self.random, self.observer = random, observer
        rules = DeviceRules(random.choice(("", "", "a")), random.random() < 0.5, leaves)
        self.rules, self.now, self.offers = rules, 0.0, {}
        self.disk, self.stored, self.acknowledged = {}, set(), set()
        self.settled, self.seq = ("", 0), 0
        self.start()

    def start(self):
        """A (new) process, with what is on the disk."""
        self.state = DeviceState(
            self.rules, task=self.rules.task, outbox=tuple(self.disk.values()), settled=self.settled
        )
        self.pending, self.training, self.on_hold, self.has_update = [], None, False, False
        self.opened, self.ended, self.latest = set(), {self.settled}, 0

    def run(self, steps):
        for _ in range(steps):
            self.act()

    def act(self):
        """Let something happen: more often an answer than anything else."""
        self.now += self.random.choice((0.0, 0.1, 0.5, 1.0, 11.0, 70.0))
        if self.pending and self.random.random() < 0.6:
            self.answer(self.pending.pop(0))
        else:
            self.random.choice(
                (self.tick, self.tick, self.tick, self.offer, self.offer, self.receipt, self.receipt,
                 self.gate, self.link, self.crash, self.other)
            )()  # fmt: skip

    def flight(self):
        return ev.MessagesInFlight(
            *self.random.choice(((0, 0, 0), (0, 0, 0), (1, 1, 0), (2, 0, 2), (1, 0, 0)))
        )

    def tick(self):
        """Time passes, unless a command is yet to be answered: the runner then waits, except for training."""
        if all(isinstance(command, ev.Train) for command in self.pending):
            self.feed(ev.Tick(self.now, self.flight()))

    def link(self):
        self.feed(ev.LinkUp(self.now, self.flight()))

    def gate(self):
        allows = self.random.random() < 0.5
        self.feed(ev.WorkGateChanged(self.now, allows, not allows and self.random.random() < 0.5))

    def other(self):
        bundles = self.random.choice(("", *BUNDLES))
        answers = (ev.SamplesChanged(self.now), ev.WholeOfferNeeded(self.now), ev.BlobArrived(self.now, "p1"))
        withdrawn = ev.OfferWithdrawn(self.now, self.random.choice(("", *TASKS)))
        news = ev.TaskKnown(self.now, bundles), ev.HelloSaid(self.now, 5)
        self.feed(self.random.choice((*answers, *news, withdrawn)))

    def crash(self):
        """Half of the times it is only another tick: crashes are rarer than what they interrupt."""
        (self.start if self.random.random() < 0.3 else self.tick)()

    def offer(self):
        choice, number = self.random.choice, len(self.offers) + 1
        parts = tuple(choice((("p1",), ("p2",), ("p1", "p3"))))
        closes, done = self.now + choice(CLOSES_S), self.random.random() < 0.15
        offered = ev.Offered(
            number, choice(TASKS), choice(RUNS), choice((0, 1, 1, 2, 2, 3, 4)), closes, done,
            choice(BUNDLES), parts, at=choice((0, 0, 7)), family=self.random.random() < 0.1,
        )  # fmt: skip
        self.offers[number] = offered
        to_all = self.random.random() < 0.7
        retained = to_all and self.random.random() < 0.2
        self.feed(ev.OfferReceived(self.now, offered, to_all, retained, choice((False, True)), self.flight()))
        newest = self.state.newest or self.state.open
        if newest is not None and newest.number == number:
            self.latest = number

    def receipt(self):
        seq, retry_s = self.random.choice(range(self.seq + 2)), self.random.choice((0.0, 0.0, 0.0, 20.0))
        self.feed(ev.ReceiptReceived(self.now, seq, self.random.random() < 0.8, retry_s))

    def feed(self, event):
        before = self.state
        self.state, commands = step(before, event)
        self.observer(before, event, commands, self.state)
        self.check(before, event, commands)
        for command in commands:
            self.take(command)
        current = [offer for offer in (self.state.open, self.state.newest, self.state.training) if offer]
        self.opened |= {(offer.run, offer.round) for offer in current if offer.round}
        self.check_ends({(offer.run, offer.round) for offer in current})

    def take(self, command):
        """Note what the runner would do."""
        if isinstance(command, ev.RoundEnded):
            self.ended.add((command.run, command.round))
        elif isinstance(command, ev.CloseContribution):
            entry = self.disk.pop(command.seq)
            self.acknowledged.add(command.seq)
            if command.reason == "round over":
                self.settle(entry)
        elif isinstance(command, ev.Send) and command.first and self.random.random() < 0.3:
            self.feed(ev.Sent(self.now, command.seq, self.random.random() < 0.7))
        elif isinstance(command, ev.Train):
            self.training, self.has_update = command.number, False
            self.pending.append(command)
        elif isinstance(command, ev.Hold):
            self.on_hold = True
        elif isinstance(command, ev.BLOCKING):
            self.pending.append(command)

    def answer(self, command):
        """What a command is answered by, or that it failed."""
        number, chance = getattr(command, "number", 0), self.random.random()
        if isinstance(command, ev.Keep):
            self.keep(command, chance)
        elif isinstance(command, ev.Settle):
            if command.seq in self.disk and chance < 0.9:
                self.acknowledged.add(command.seq)
                self.settle(self.disk.pop(command.seq))
                self.feed(ev.Settled(self.now, command.seq, command.counts))
        elif isinstance(command, ev.Train):
            self.train(command, chance)
        elif chance < 0.15:
            why = self.random.choice(WHY)
            self.feed(ev.WorkFailed(self.now, number, why, self.random.random() < 0.5))
        elif isinstance(command, ev.Preview):
            missing = self.random.choice(((), (), ("p1",)))
            self.feed(ev.Previewed(self.now, number, missing))
        elif isinstance(command, ev.Fetch):
            refused = ev.FetchRefused(self.now, number)
            self.feed(refused if chance < 0.3 else ev.BlobArrived(self.now, command.blobs[0]))
        elif isinstance(command, ev.Prepare):
            self.feed(ev.Prepared(self.now, number))
        else:
            self.feed(ev.Evaluated(self.now, number, self.random.choice((None, 0.0, 1.0))))

    def train(self, command, chance):
        """Go through a training: a plan, a result, and its end; it may fail at any time, or go on."""
        offer = self.offers[command.number]
        if self.state.paused and not self.state.cancelled:
            self.pending.append(command)  # held
        elif self.state.cancelled in ("given up", "task done") or (not self.has_update and chance < 0.2):
            self.training = None
            why = "stopped" if self.state.cancelled else self.random.choice(WHY)
            self.feed(ev.WorkFailed(self.now, command.number, why, self.random.random() < 0.5))
        elif not self.has_update and chance < 0.3:
            self.training = None
            self.feed(ev.TrainingGoesOn(self.now, command.number))
        elif not self.has_update and chance < 0.35:
            self.feed(ev.WorkerDied(self.now))
            self.pending.append(command)
        elif not self.has_update and chance < 0.5:
            self.feed(ev.PlanMade(self.now, offer.task, offer.round))
            self.pending.append(command)
        elif not self.has_update:
            self.has_update = True
            self.pending.append(command)
            results = ("contribution", "contribution", "sat out", "failed")
            self.feed(ev.Made(self.now, offer.run, offer.round, self.random.choice(results)))
        else:
            self.training = None
            self.feed(ev.Trained(self.now, command.number, self.random.choice((None, 1.0))))

    def keep(self, command, chance):
        if chance < 0.1:
            self.feed(ev.KeepFailed(self.now, command.run, command.round))
            return
        self.seq += 1
        samples, fetched = self.random.choice((4, 6)), self.random.random() < 0.5
        task = self.random.choice(TASKS)
        entry = ev.WaitingContribution(self.seq, task, command.run, command.round, samples, fetched)
        self.disk[self.seq] = entry
        self.feed(ev.Kept(self.now, entry, self.flight()))

    def settle(self, entry):
        run, number = self.settled
        if run != entry.run or number <= entry.round:
            self.settled = (entry.run, entry.round)

    def check(self, before, event, commands):
        """What must hold after each step."""
        state, kinds = self.state, [type(command) for command in commands]
        blocking = [place for place, kind in enumerate(kinds) if kind in ev.BLOCKING]
        assert blocking in ([], [len(kinds) - 1]), "what is answered is commanded last"
        work = {ev.Train, ev.Prepare, ev.Fetch, ev.Evaluate, ev.KeepFinalModel}
        assert not (state.paused and work & set(kinds)), "no work begins while the device is paused"
        assert not (state.quiet and ev.Send in kinds), "nothing is sent while the link must be spared"
        if isinstance(event, ev.WorkGateChanged) and not event.allows and not before.paused:
            pauses = {ev.Hold, ev.Cancel} & set(kinds) or before.cancelled
            assert before.training is None or pauses, "a pause stops training within one step"
        for command in commands:
            if isinstance(command, ev.Train):
                self.check_training(command)
            elif isinstance(command, ev.Send):
                assert command.seq in self.disk, "nothing is sent before it is on disk"
                assert command.seq not in self.acknowledged, "nothing acknowledged is sent again"
        assert len({entry.seq for entry in state.outbox}) == len(state.outbox)
        assert ev.Train in kinds or (state.training is None) == (self.training is None), "who trains is known"

    def check_training(self, command):
        offer, state = self.offers[command.number], self.state
        assert self.training is None, "there are never two trainings at once"
        assert not state.has_answered(offer.run, offer.round), "a round with an answer is not trained again"
        newest = state.newest.number if state.newest else command.number
        assert newest == self.latest, "the newest offer wins"

    def check_ends(self, current):
        waiting = {(entry.run, entry.round) for entry in self.disk.values()}
        keeping = {(command.run, command.round) for command in self.pending if isinstance(command, ev.Keep)}
        rounds = self.ended | waiting | keeping | current
        assert self.opened <= rounds, "every round ends in a receipt or a reason"
