import hashlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.broker.wire.messages import Step
from device_runtime.models.bundles.bundle import Bundle, shipped_folder, shipped_names
from device_runtime.models.bundles.tensors import Flat, TensorSpec, encode
from device_runtime.models.errors import TensorError
from device_runtime.strategies.directions import directions, replaying
from device_runtime.strategies.directions.replaying import ScaledDirection, move, perturb, replay
from device_runtime.strategies.interface.device_half import Run
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder

EVERY = list(directions.GENERATORS)
SPECS = (
    TensorSpec("a", (70, 500)),
    TensorSpec("none", (0, 3)),
    TensorSpec("b", (3,)),
    TensorSpec("c", (31_000,)),
)


@pytest.fixture(scope="module")
def digits_bundle():
    return Bundle.open(shipped_folder(shipped_names()[0]))


def random_weights(specs, seed=0):
    rng = np.random.default_rng(seed)
    return {spec.name: rng.standard_normal(spec.shape, np.float32) for spec in specs}


def log_of(rounds, tunable="all", generator=directions.GENERATOR):
    rng = np.random.default_rng(4)
    return [
        Step(number, generator, int(rng.integers(1 << 62)), tunable, 0.01, 0.5, tuple(rng.normal(size=2)))
        for number in range(rounds)
    ]


def digest(weights):
    return hashlib.sha256(encode(weights)).hexdigest()


@pytest.mark.parametrize("generator", EVERY)
def test_perturbed_is_the_base_moved_by_the_direction_and_the_base_stays(generator):
    base, params = random_weights(SPECS), Flat(SPECS)
    before = digest(base)
    params.vector.fill(np.nan)  # whatever was there
    perturb(params, base, ScaledDirection(3, 1, 1e-3, generator))
    whole = np.concatenate([base[spec.name].ravel() for spec in SPECS])
    z = directions.direction(3, 1, 0, len(whole), generator)
    assert params.vector.tobytes() == (whole + np.float32(1e-3) * z).tobytes()
    assert digest(base) == before


def test_signs_are_added_with_one_rounding():
    base, params = random_weights(SPECS), Flat(SPECS)
    perturb(params, base, ScaledDirection(3, 1, -1e-3, directions.RADEMACHER))
    z = directions.direction(3, 1, 0, len(params.vector), directions.RADEMACHER)
    whole = np.concatenate([base[spec.name].ravel() for spec in SPECS])
    exact = whole.astype(np.longdouble) - np.float32(1e-3).astype(np.longdouble) * z
    assert params.vector.tobytes() == exact.astype(np.float32).tobytes()


@pytest.mark.parametrize("generator", EVERY)
def test_a_device_that_perturbed_and_one_that_only_replays_hold_the_same_bits(
    model, digits, digits_bundle, generator
):
    strategy = ZerothOrder(lr=0.02, generator=generator)
    weights, log = dict(model.weights), []
    for number in range(4):
        model.load(weights)
        sent = strategy.train(model, digits, Run(number, "pi-1", lambda: 0.0, 1.0))
        log.append(Step(number, generator, number, "all", 0.02, 1.0, tuple(sent.tensors["g"].tolist())))
        weights = replay(model.weights, log[-1:], model.manifest)
    assert digest(replay(digits_bundle.weights(), log, digits_bundle.manifest)) == digest(weights)


@pytest.mark.parametrize("generator", EVERY)
def test_thousands_of_steps_at_once_are_those_one_by_one(digits_bundle, generator):
    manifest, weights = digits_bundle.manifest, digits_bundle.weights()
    log = log_of(2000, "head", generator)
    one_by_one = dict(weights)
    for step in log:
        one_by_one = replay(one_by_one, [step], manifest)
    assert digest(replay(weights, log, manifest)) == digest(one_by_one)
    assert digest(one_by_one) != digest(weights)


def test_steps_along_different_sets_are_taken_in_their_order(digits_bundle):
    manifest, weights = digits_bundle.manifest, digits_bundle.weights()
    log = [step for pair in zip(log_of(5), log_of(5, "head"), strict=True) for step in pair]
    one_by_one = dict(weights)
    for step in log:
        one_by_one = replay(one_by_one, [step], manifest)
    assert digest(replay(weights, log, manifest)) == digest(one_by_one)


@pytest.mark.parametrize("generator", EVERY)
@pytest.mark.parametrize("threads", [2, 3, 64])
def test_threads_change_no_bit(digits_bundle, monkeypatch, generator, threads):
    monkeypatch.setattr(replaying, "WORTH_THREADS", 0)
    manifest, weights, log = digits_bundle.manifest, digits_bundle.weights(), log_of(20, "all", generator)
    assert sum(spec.size for spec in manifest.specs("all")) > directions.BLOCK
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        shared = digest(replay(weights, log, manifest, threads))
    finally:
        sys.setswitchinterval(interval)
    assert shared == digest(replay(weights, log, manifest, threads=1))


def test_what_goes_wrong_in_a_thread_is_told(monkeypatch):
    monkeypatch.setattr(replaying, "WORTH_THREADS", 0)
    with pytest.raises(directions.UnknownGenerator):
        replaying.apply_moves(
            np.zeros(3 * directions.BLOCK, np.float32), [[ScaledDirection(1, 0, 1.0, "mt19937")]], 2
        )


def test_replaying_leaves_the_given_weights_and_gives_the_rest_as_it_is(digits_bundle):
    weights = digits_bundle.weights()
    before = digest(weights)
    after = replay(weights, log_of(1, "head"), digits_bundle.manifest)
    assert digest(weights) == before
    moved = set(digits_bundle.manifest.names("head"))
    assert all((after[name] is weights[name]) == (name not in moved) for name in weights)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-2.0, 2.0, width=32), min_size=1, max_size=9),
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3),
    st.integers(0, 2**64 - 1),
    st.sampled_from(EVERY),
)
def test_a_move_is_a_sum_in_float64_rounded_once(values, scales, seed, generator):
    vector = np.array(values, np.float32)
    move(vector, [ScaledDirection(seed, index, scale, generator) for index, scale in enumerate(scales)])
    expected = []
    for i, value in enumerate(values):
        exact = float(value)
        for index, scale in enumerate(scales):
            exact += scale * float(directions.direction(seed, index, 0, len(values), generator)[i])
        expected.append(np.float32(exact))
    assert vector.tobytes() == np.array(expected, np.float32).tobytes()


@pytest.mark.parametrize("change", [{"scalars": ()}, {"seed": -1}, {"seed": 2**64}])
def test_a_step_that_is_none_is_refused(digits_bundle, change):
    fields = {"scalars": (0.5, 0.25), "seed": 1} | change
    step = Step(3, directions.GENERATOR, fields["seed"], "all", 0.1, 1.0, fields["scalars"])
    with pytest.raises(TensorError, match="step of round 3"):
        replay(digits_bundle.weights(), [*log_of(1), step], digits_bundle.manifest)
