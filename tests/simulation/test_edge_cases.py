"""Odd fleets and odd data, the whole way through a simulated run, with every kind of update there is."""

from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds import registry

KINDS = tuple(registry.KINDS)
SLOW_KINDS = ("representatives", "attention-transfer", "prototypes", "width-slice")
TAUGHT = ("attention-transfer", "prototypes", "representatives", "width-slice")
BUNDLES = dict.fromkeys(TAUGHT, "taught")
FAMILIES = {"attention-transfer": "small", "prototypes": "small", "width-slice": "half"}
QUICK = {"epochs": 1, "lr": 0.05, "batch": 8, "steps": 2, "server_epochs": 1, "metadata_epochs": 1}
ENDLESS_S = 1e6
SLOW = 50_000.0
"""So that training, not the link, is what takes these boards long."""
FLEET = {"name": "alike", "groups": {"all": {"profile": "pi-zero-2w", "share": 1.0}}}


@dataclass(frozen=True)
class Case:
    """What is asked for: kinds in their order, with settings over the quick ones; samples of each device."""

    kinds: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    settings: tuple[tuple[str, float], ...] = ()
    private: bool = False
    deadline_s: float = ENDLESS_S
    rounds: int = 2
    like: str = ""
    """The kind whose bundle and family are taken; of the first, where nothing is said."""


@dataclass
class Ran:
    """What came of it: the served weights, its bundle, the asks, the rounds' lines."""

    served: dict
    bundle: Bundle
    asks: list
    lines: list

    def of(self, device):
        return [ask for ask in self.asks if ask.device == device]


class Notes:
    def __init__(self):
        self.asks, self.lines = [], []

    def asked(self, ask):
        self.asks.append(ask)

    def trained(self, job, update):
        pass

    def closed(self, line):
        self.lines.append(line)


def whole(kind, over):
    """All settings of the kind, so that it has the same beside others as alone."""
    return registry.settings(registry.make(kind, settings(kind, over)))


@pytest.fixture(scope="module")
def digits():
    """200 of the digits, in a random order, and 60 others to evaluate on."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    order = np.random.default_rng(11).permutation(len(raw.target))
    x, y = raw.images[order, None].astype(np.uint8), raw.target[order].astype(np.int64)
    return x[:200], y[:200], x[200:260], y[200:260]


@pytest.fixture(scope="module")
def play(digits, exported, tmp_path_factory):
    """Runs a case; the same case runs once."""

    @cache
    def played(case):
        x, y, test_x, test_y = digits
        chosen = np.concatenate([np.array(part) for part in case.parts])
        folder = tmp_path_factory.mktemp("data")
        np.savez(
            folder / "data.npz",
            x_train=x[chosen],
            y_train=y[chosen],
            groups=np.repeat(np.arange(len(case.parts)), [len(part) for part in case.parts]),
            x_test=test_x,
            y_test=test_y,
            labels=np.array([str(label) for label in range(10)]),
        )
        like = case.like or case.kinds[0]
        bundle = getattr(exported, BUNDLES.get(like, "tuned"))
        family = [getattr(exported, FAMILIES[like])] if like in FAMILIES else []
        over = dict(case.settings) | ({"terms": {"dp-sgd": {"rounds": case.rounds}}} if case.private else {})
        task = {
            "bundle": bundle,
            "rounds": case.rounds,
            "round_deadline_s": case.deadline_s,
            "head": "trained",
            "wait_for": "all",
            "kinds": [{"name": kind, "settings": whole(kind, over)} for kind in case.kinds],
            "family": family,
            "generic": exported.generic,
        }
        table = {
            "fleet": FLEET,
            "devices": len(case.parts),
            "slow": SLOW,
            "data": {"source": "npz", "path": str(folder / "data.npz"), "partition": "natural"},
            "task": task,
        }
        notes = Notes()
        served = simulate(prepare(scenario.load("uniform", table), seed=1), observer=notes)
        return Ran(served, Bundle.open(bundles.find_bundle(bundle)), notes.asks, notes.lines)

    return played


def settings(kind, over):
    names = {field.name for field in fields(registry.KINDS[kind])}
    chosen = {name: value for name, value in {**QUICK, **over}.items() if name in names}
    return chosen | ({"members": [FAMILIES[kind]]} if kind in FAMILIES else {})


def thirds(count=90):
    """The first samples, dealt to three devices."""
    return tuple(tuple(range(start, count, 3)) for start in range(3))


def assert_sound(ran):
    """A model that can be evaluated, from every round."""
    assert all(np.isfinite(value).all() for value in ran.served.values())
    assert all(0 <= line.eval_acc <= 1 and np.isfinite(line.eval_loss) for line in ran.lines)


def assert_counted(asks):
    assert [(ask.fate, ask.why) for ask in asks] == [("counted", "")] * len(asks)


def took_s(asks):
    return max(ask.ended_s - ask.asked_s for ask in asks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_class_with_no_sample_anywhere_disturbs_no_other(kind, play, digits):
    """Of 200 digits none is a four; fours are among those that are evaluated."""
    y = digits[1]
    without = np.flatnonzero(y != 4)
    ran = play(Case((kind,), tuple(tuple(part.tolist()) for part in np.array_split(without[:120], 3))))
    assert_sound(ran)
    assert_counted(ran.asks)
    assert len(ran.asks) == 6
    assert moved(ran)


@pytest.mark.slow
def test_a_class_with_no_sample_anywhere_is_never_the_answer_of_class_means(play, digits):
    y, test_x = digits[1], digits[2]
    without = np.flatnonzero(y != 4)
    ran = play(
        Case(("class-means",), tuple(tuple(part.tolist()) for part in np.array_split(without[:120], 3)))
    )
    model = OnnxModel(ran.bundle)
    model.load(ran.served)
    answers = model.logits(ran.bundle.manifest.input.prepare(test_x)).argmax(1)
    assert 4 not in answers
    assert ran.lines[-1].eval_acc_by_class[4] == 0
    assert len(set(answers.tolist())) > 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_with_one_sample_counts_with_it_or_says_why_it_cannot(kind, play):
    ran = play(Case((kind,), ((0,), tuple(range(1, 31)), tuple(range(31, 61)))))
    assert_sound(ran)
    assert moved(ran)
    for number in (1, 2):
        asks = sorted((ask for ask in ran.asks if ask.round == number), key=lambda ask: ask.num_examples)
        assert_counted(asks[1:])
        single = asks[0]
        assert single.num_examples == (1 if single.fate == "counted" else 0)
        assert single.fate == "counted" or (single.fate == "sat out" and single.why)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "batch" in settings(kind, {})])
def test_batches_of_one_sample_are_trained_on(kind, play):
    ones = (("batch", 1), ("server_batch", 1), ("lr", 0.005))
    ran = play(Case((kind,), thirds(30), ones, rounds=1))
    assert_sound(ran)
    assert_counted(ran.asks)
    assert moved(ran)


@pytest.mark.parametrize("kind", ["full", "peft"])
def test_private_steps_of_one_sample_or_of_none_are_taken(kind, play):
    """A step draws each of 29 samples with a chance of 1/29: no sample at all is as likely as one."""
    pytest.importorskip("dp_accounting")
    ones = (("batch", 1), ("lr", 0.005))
    ran = play(Case((kind,), ((0,), tuple(range(1, 30))), ones, private=True))
    assert_sound(ran)
    assert_counted(ran.asks)
    assert len(ran.asks) == 4
    assert moved(ran)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW_KINDS else []) for k in KINDS]
)
def test_one_client_alone_is_a_fleet(kind, play):
    ran = play(Case((kind,), (tuple(range(40)),)))
    assert_sound(ran)
    assert_counted(ran.asks)
    assert [line.participants for line in ran.lines] == [1, 1]
    assert moved(ran) == (kind != "evaluation")  # which trains nothing


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_where_every_client_is_a_straggler_the_round_is_made_of_what_they_can_afford(kind, play):
    """Devices keep a tenth of the time back: full updates would just not fit. Where a kind takes about as
    long as they do, none can be had for a quarter of it, and the run says so.
    """
    alone = Case((kind,), thirds(), rounds=1)
    cheap_s = took_s(play(alone).asks)
    full_s = took_s(play(Case(("full",), thirds(), rounds=1, like=kind)).asks)
    if cheap_s > 0.85 * full_s:
        late = Case((kind,), thirds(), deadline_s=full_s / 4, rounds=1)
        with pytest.raises(SimulationError, match="round 1 has 0 of 1 updates: devices were asked"):
            play(late)
        return
    ran = play(Case(("full", kind), thirds(), deadline_s=full_s, rounds=1, like=kind))
    assert_sound(ran)
    assert {(ask.kind, ask.fate, ask.straggler) for ask in ran.asks} == {(kind, "counted", True)}
    assert tensors.encode(ran.served) == tensors.encode(play(alone).served)


def test_a_mixed_round_goes_on_without_any_full_update(play):
    """Four epochs of full updates are 12 forward passes; down to little more than one there is a kind."""
    longer = (("epochs", 4),)
    full_s = took_s(play(Case(("full",), thirds(), longer, rounds=1)).asks)
    chosen = []
    for share in (0.8, 0.13):
        ran = play(Case(registry.DEFAULT_KINDS, thirds(), longer, deadline_s=share * full_s))
        assert_sound(ran)
        assert moved(ran)
        assert {(ask.fate, ask.straggler) for ask in ran.asks} == {("counted", True)}
        chosen.append({ask.kind for ask in ran.asks})
    assert chosen == [{"entropy-subset"}, {"few-shot"}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_where_nobody_is_a_straggler_a_cheaper_kind_changes_nothing(kind, play):
    full = play(Case(("full",), thirds(), like=kind))
    ran = play(Case(("full", kind), thirds(), like=kind))
    assert {(ask.kind, ask.fate, ask.straggler) for ask in ran.asks} == {("full", "counted", False)}
    assert tensors.encode(ran.served) == tensors.encode(full.served)


def moved(ran):
    """Whether what is served is no longer what the bundle came with."""
    before = ran.bundle.weights()
    return any(not np.array_equal(value, before[name]) for name, value in ran.served.items())
