"""The real agent with the real service, on a link in memory and a clock that stands still."""

import numpy as np
import pytest

from device_runtime.aggregator.machine.run_events import Contributed, ContributionRefused, RoundClosed
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Connected, Received
from device_runtime.broker.wire.messages import Hello
from device_runtime.device.agent.agent import Agent
from device_runtime.device.training.local_task import Settings
from device_runtime.models.bundles import tensors
from device_runtime.profiles import Speed
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import closed_form
from device_runtime.strategies.statistics.class_statistics import ROWS
from device_runtime.strategies.statistics.class_sums import read_rows

BRIEF = KindSettings(name="few-shot", settings={"epochs": 2})


class Cable:
    """A device's link: what it says goes to the service at once; what it is told waits in its inbox."""

    url = "cable"

    def __init__(self, hall, agent):
        self.hall, self.agent = hall, agent

    def publish(self, topic, payload, retain=False):
        self.hall.messages.append((topic, payload))
        self.hall.bench.raw(topic, payload)
        return True

    def unacknowledged(self, topic=""):
        return 0


class Hall:
    """A bench and agents that hear all that its link carries; each agent steps when it is told to."""

    def __init__(self, bench, folder):
        self.bench, self.folder, self.agents, self.messages = bench, folder, {}, []
        self.during = {}
        publish = bench.link.publish

        def publish_to_all(topic, payload, retain=False):
            for name, agent in self.agents.items():
                if topics.is_offer(topic) or topic.startswith(topics.down(name, "")):
                    agent.inbox.put(Received(topic, payload))
            return publish(topic, payload, retain)

        bench.link.publish = publish_to_all

    def join(self, name, x, y):
        np.savez(self.folder / f"{name}.npz", x=x, y=y)
        settings = Settings(name, self.folder / f"{name}.npz", self.folder / name)
        agent = self.agents[name] = Agent(settings, 1, lambda: self.bench.now)
        agent.begin(Cable(self, agent))
        go_on = agent.runner.progressed

        def busy(done):
            go_on(done)
            if meanwhile := self.during.pop(name, None):
                meanwhile()

        agent.runner.progressed = busy
        agent.inbox.put(Connected(first=True))

    @property
    def round(self):
        return self.bench.service.state.round

    def settle(self, *names):
        """These agents work in turn until nothing more comes in."""
        while sum(self.agents[name].step() for name in names):
            pass

    def work_until(self, name, number):
        """This agent alone, until that round is open."""
        while self.round < number:
            assert self.agents[name].step()

    def rounds_of(self, name):
        return [c.round for c in self.sent(name)]

    def sent(self, name):
        topic = topics.up(name, "contribution")
        return [messages.decode(p, messages.Contribution) for t, p in self.messages if t == topic]


@pytest.fixture
def hall(bench, make_task, tmp_path, monkeypatch):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = digits.images.astype(np.uint8)
    monkeypatch.setattr(
        "device_runtime.device.training.local_task.device_speed", lambda *_: Speed(1e12, source="set")
    )

    def make(names, **task):
        new_hall = Hall(bench(make_task(BRIEF, min_devices=len(names), **task)), tmp_path)
        for i, name in enumerate(names):
            part = slice(20 * i, 20 * i + 20)
            new_hall.join(name, x[part], digits.target[part])
        return new_hall

    return make


@pytest.mark.slow
def test_who_trains_while_rounds_go_by_finishes_sends_and_takes_the_newest(hall):
    """b is at work on round 1 until a has filled two buffers; then its update counts in round 3."""
    h = hall("ab", rounds=6, buffer_size=1)
    h.settle("a")
    h.during["b"] = lambda: h.work_until("a", 3)
    h.settle("b")  # a has no say but in the middle of b's work
    assert [(s.device, s.round) for s in h.bench.store.contributions.of_round(3)] == [("b", 1)]
    assert h.rounds_of("b") == [1, 4, 5, 6]
    assert h.bench.offer.done
    assert [c.record.participants for c in h.bench.heard(RoundClosed)] == [1] * 6


@pytest.mark.slow
def test_a_buffered_cohort_of_agents_learns_all_of_its_rounds(hall):
    h = hall("abcd", rounds=6, buffer_size=2, devices_per_round=3)
    h.settle(*"abcd")
    assert h.bench.offer.done
    closed = h.bench.heard(RoundClosed)
    assert [len(c.contributions) for c in closed] == [2] * 6
    assert len({c.record.device for c in h.bench.heard(Contributed)}) > 2
    assert not [refused for refused in h.bench.heard(ContributionRefused) if refused.status == "refused"]


@pytest.mark.slow
def test_agents_that_are_not_asked_get_ready_and_do_not_work(hall):
    h = hall("abc", rounds=3, devices_per_round=1)
    h.settle(*"abc")
    assert h.bench.offer.done
    assert sum(len(h.rounds_of(name)) for name in "abc") == 3
    assert [c.record.participants for c in h.bench.heard(RoundClosed)] == [1] * 3
    hellos = [messages.decode(p, Hello).num_examples for t, p in h.messages if t.endswith("hello")]
    assert sorted(hellos) == [0, 0, 0, 20, 20, 20]


@pytest.mark.slow
def test_agents_send_class_statistics_where_the_task_asks_for_them(hall):
    h = hall("ab", rounds=2, head="closed-form", statistics=ClassStatistics(numbers="int8"))
    h.settle(*"ab")
    assert h.bench.offer.done
    wire = [tensors.decode(message.body) for name in "ab" for message in h.sent(name)]
    assert len(wire) == 4
    assert all(body[ROWS].shape[1] == 10 + 64 for body in wire)  # label, count, scale; a mean as int8
    sent = [counts_of(body) for body in wire]
    assert all(counts.sum() > 10 for counts in sent)
    memory = h.bench.store.rounds.start(3).carried.memory[closed_form.MEMORY]
    pool = tensors.decode(h.bench.store.models.get(memory))
    np.testing.assert_array_equal(pool["counts"] > 0, sum(sent) > 0)


@pytest.mark.slow
def test_where_rounds_wait_for_the_fast_a_device_goes_on_with_its_round_and_then_takes_the_newest(hall):
    """b is at work on round 3 until a has closed rounds 3 and 4; of its two in round 5 the newest counts."""
    h = hall("ab", rounds=7, wait_for="fast", head="closed-form", round_deadline_s=100.0, max_staleness=1000)
    bench = h.bench

    def meanwhile():
        for number in (3, 4):
            h.settle("a")
            assert h.round == number
            bench.wait(0.2)  # no round is shorter than a thousandth of the deadline
        assert h.round == 5

    h.settle("a")
    for number in (1, 2):
        while len(h.rounds_of("b")) < number:
            h.agents["b"].step()
        h.work_until("a", number + 1)
    h.during["b"] = meanwhile
    h.settle("b")
    assert [(s.device, s.round) for s in bench.store.contributions.of_round(5)] == [("b", 3), ("b", 5)]
    assert h.rounds_of("b") == [1, 2, 3, 5]
    bench.wait(0.2)
    counts = [statistics_of(bench, number) for number in (5, 6)]
    own = counts_of(tensors.decode(h.sent("b")[3].body))
    decay = 0.95  # the most, as few samples are new in a round
    np.testing.assert_allclose(counts[1], decay * counts[0] + own)


def counts_of(update):
    return read_rows(update[ROWS], 10, 64).counts


def statistics_of(bench, number):
    """How many samples of each class are pooled before that round."""
    return tensors.decode(
        bench.store.models.get(bench.store.rounds.start(number).carried.memory[closed_form.MEMORY])
    )["counts"]
