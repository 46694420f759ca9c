from math import sqrt

import numpy as np
import pytest

from device_runtime.models.engines.base import BLOCK
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer, squared_changes

NAMES = ("fedavg", "fedexp", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
MOMENTS = NAMES[2:]


def w(*values):
    return {"w": np.array(values, np.float32)}


def rounds(optimizer, deltas, base, memory=None):
    """The weights after each round; `deltas` is how far the devices' mean was from its base."""
    weights, memory, values = base, memory or {}, []
    for delta in deltas:
        weights, memory = optimizer.step(weights, {"w": weights["w"] + delta}, memory)
        values.append(weights["w"])
    return values, memory


def test_fedavg_of_rate_one_gives_the_mean_bit_for_bit_and_keeps_nothing():
    rng = np.random.default_rng(1)
    base, mean = w(*rng.normal(size=1000) * 1e-6), w(*rng.normal(size=1000))
    after, memory = ServerOptimizer().step(base, mean, {})
    assert after["w"].tobytes() == mean["w"].tobytes()
    assert memory == {}


def test_fedavg_of_another_rate_goes_that_share_of_the_way():
    after, memory = ServerOptimizer("fedavg", lr=0.25).step(w(1, 2), w(5, 0), {})
    np.testing.assert_array_equal(after["w"], [2, 1.5])
    assert memory == {}


def test_fedavgm_by_hand():
    """m: 1, 0.5 + 2 = 2.5, 1.25 - 1 = 0.25; each is added to the weights."""
    values, memory = rounds(ServerOptimizer("fedavgm", momentum=0.5), [1, 2, -1], w(10))
    assert [float(value[0]) for value in values] == [11, 13.5, 13.75]
    assert {key: float(value[0]) for key, value in memory.items()} == {"m/w": 0.25}


def test_fedexp_goes_further_the_more_the_updates_differ():
    """The square of the mean (1, 1) is 2, so f is the mean of squares / (2 (2 + 1)), and at least 1."""
    optimizer = ServerOptimizer("fedexp", lr=0.5, tau=1)
    assert optimizer.extrapolated(w(0, 0), w(1, 1), {"w": 6.0}).rate == 0.5
    assert optimizer.extrapolated(w(0, 0), w(1, 1), {"w": 12.0}).rate == 1.0
    assert optimizer.extrapolated(w(0, 0), w(1, 1), {"w": 1.0}).rate == 0.5
    assert optimizer.extrapolated(w(0, 0), w(1, 1), {}).rate == 0.5


def test_no_other_optimiser_extrapolates():
    assert [name for name in NAMES if ServerOptimizer(name).extrapolates] == ["fedexp"]


def test_the_squared_change_is_that_of_float_tensors_and_leading_parts_of_them():
    base = {"a": np.ones((2, 3), np.float32), "count": np.zeros(2, np.int64)}
    base["n.running_mean"] = np.zeros(2, np.float32)
    sent = {name: value + 2 for name, value in base.items()} | {"new": np.ones(4, np.float32)}
    assert squared_changes(base, sent) == {"a": 24.0}
    assert squared_changes(base, {"a": np.zeros((1, 2), np.float32)}) == {"a": 2.0}
    assert squared_changes(base, {"a": np.zeros(6, np.float32)}) == {}


def test_fedadam_by_hand():
    """tau 1, betas 1/2, delta 2: m = 1, v = 1/2 + 2 = 2.5; then m = 1.5, v = 1.25 + 2 = 3.25."""
    optimizer = ServerOptimizer("fedadam", lr=1, beta1=0.5, beta2=0.5, tau=1)
    values, memory = rounds(optimizer, [2, 2], w(0))
    first = 1 / (sqrt(2.5) + 1)
    np.testing.assert_allclose(values, [[first], [first + 1.5 / (sqrt(3.25) + 1)]], rtol=1e-6)
    assert {key: float(value[0]) for key, value in memory.items()} == {"m/w": 1.5, "v/w": 3.25}


def test_fedyogi_by_hand():
    """tau 1, beta2 1/2: v = 1 + 4/2 = 3 as 4 > 1; then 3 - 1/2 = 2.5 as 1 < 3."""
    optimizer = ServerOptimizer("fedyogi", lr=1, beta1=0, beta2=0.5, tau=1)
    values, memory = rounds(optimizer, [2, 1], w(0))
    first = 2 / (sqrt(3) + 1)
    np.testing.assert_allclose(values, [[first], [first + 1 / (sqrt(2.5) + 1)]], rtol=1e-6)
    assert float(memory["v/w"][0]) == 2.5


def test_fedadagrad_by_hand_has_no_betas():
    """tau 1: v = 1 + 4 = 5, then 5 + 4 = 9, whose root is 3."""
    values, memory = rounds(ServerOptimizer("fedadagrad", lr=2, tau=1), [2, 2], w(0))
    first = 2 * 2 / (sqrt(5) + 1)
    np.testing.assert_allclose(values, [[first], [first + 2 * 2 / (3 + 1)]], rtol=1e-6)
    assert {key: float(value[0]) for key, value in memory.items()} == {"v/w": 9}


def transcription(o, x, deltas):
    """Algorithm 2 of Reddi et al. 2021 (lines 12 to 16) in float64; FedAdagrad with beta1 = 0."""
    m, v = 0.0, o.tau**2
    beta1 = 0 if o.name == "fedadagrad" else o.beta1
    for d in deltas:
        m = beta1 * m + (1 - beta1) * d
        v = {
            "fedadagrad": v + d**2,
            "fedyogi": v - (1 - o.beta2) * d**2 * np.sign(v - d**2),
            "fedadam": o.beta2 * v + (1 - o.beta2) * d**2,
        }[o.name]
        x = x + o.rate * m / (np.sqrt(v) + o.tau)
    return x


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_ten_rounds_on_two_blocks_and_a_piece_equal_a_transcription_of_the_algorithm(name):
    rng = np.random.default_rng(7)
    shape = (5, (2 * BLOCK + 100) // 5)
    deltas = rng.normal(scale=0.05, size=(10, *shape))
    optimizer = ServerOptimizer(name)
    values, _ = rounds(optimizer, deltas, {"w": np.zeros(shape, np.float32)})
    np.testing.assert_allclose(values[-1], transcription(optimizer, 0.0, deltas), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta2", [0.0, 0.99])
def test_fedadam_is_torchs_adam_of_the_negative_delta_without_correction_of_bias(beta2):
    """torch's lr and eps of each step undo its correction; its second moment is put at tau^2."""
    torch = pytest.importorskip("torch")
    ours = ServerOptimizer("fedadam", lr=0.1, beta1=0.9, beta2=beta2, tau=1e-2)
    parameter = torch.zeros(50, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameter], betas=(0.9, beta2))
    deltas = np.random.default_rng(3).normal(size=(8, 50))
    for step, delta in enumerate(deltas, start=1):
        parameter.grad = -torch.from_numpy(delta)
        root = sqrt(1 - beta2**step)
        theirs.param_groups[0].update(lr=0.1 * (1 - 0.9**step) / root, eps=1e-2 / root)
        if step == 1:
            theirs.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros(50, dtype=torch.float64),
                "exp_avg_sq": torch.full((50,), 1e-4, dtype=torch.float64),
            }
        theirs.step()
    values, _ = rounds(ours, deltas, {"w": np.zeros(50, np.float32)})
    np.testing.assert_allclose(values[-1], parameter.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_fedavgm_is_torchs_sgd_with_momentum_of_the_negative_delta():
    torch = pytest.importorskip("torch")
    parameter = torch.zeros(50, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    deltas = np.random.default_rng(4).normal(size=(6, 50))
    for delta in deltas:
        parameter.grad = -torch.from_numpy(delta)
        theirs.step()
    values, _ = rounds(ServerOptimizer("fedavgm", lr=0.5), deltas, {"w": np.zeros(50, np.float32)})
    np.testing.assert_allclose(values[-1], parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_tensor_that_nobody_trained_keeps_its_value_and_its_moments(name):
    optimizer = ServerOptimizer(name)
    base = {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    _, memory = optimizer.step(base, {name: value + 1 for name, value in base.items()}, {})
    after, later = optimizer.step(base, {"a": base["a"] + 1}, memory)
    assert set(after) == {"a"}
    assert set(later) == set(memory)
    for key, value in memory.items():
        assert np.array_equal(later[key], value) == key.endswith("/b"), key


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_integers_and_new_tensors_are_set_to_the_mean(name):
    base = {"n.running_mean": np.zeros(2, np.float32), "n.running_var": np.ones(2, np.float32)}
    base["count"] = np.zeros(2, np.int64)
    mean = {key: value + 3 for key, value in base.items()}
    mean["new"] = np.full(2, 9, np.float32)
    after, memory = ServerOptimizer(name, lr=0.1).step(base, mean, {})
    for key, value in mean.items():
        assert np.array_equal(after[key], value), key
        assert after[key].dtype == value.dtype
    assert memory == {}


@pytest.mark.parametrize("name", NAMES)
def test_base_mean_and_memory_are_left_as_they_were(name):
    optimizer = ServerOptimizer(name, lr=0.5)
    base, mean = w(1, 2), w(3, 1)
    _, memory = optimizer.step(base, mean, {})
    copies = {key: value.copy() for key, value in memory.items()}
    after, _ = optimizer.step(base, mean, memory)
    assert np.array_equal(base["w"], [1, 2])
    assert np.array_equal(mean["w"], [3, 1])
    assert all(np.array_equal(memory[key], value) for key, value in copies.items())
    assert after["w"].dtype == np.float32
    assert all(value.dtype == np.float32 for value in memory.values())


@pytest.mark.parametrize("name", NAMES)
def test_where_the_mean_is_the_base_nothing_moves(name):
    after, _ = ServerOptimizer(name, lr=0.3).step(w(1, -2), w(1, -2), {})
    assert np.array_equal(after["w"], [1, -2])


def test_scalars_and_empty_tensors_are_stepped_too():
    base = {"scale": np.array(1, np.float32), "none": np.zeros((0, 4), np.float32)}
    mean = {"scale": np.array(2, np.float32), "none": np.zeros((0, 4), np.float32)}
    after, memory = ServerOptimizer("fedavgm").step(base, mean, {})
    assert (after["scale"].shape, float(after["scale"])) == ((), 2)
    assert after["none"].shape == memory["m/none"].shape == (0, 4)


def test_a_mean_or_a_moment_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"w is \(2,\), its mean is \(3,\)"):
        ServerOptimizer("fedadam").step(w(1, 2), w(1, 2, 3), {})
    with pytest.raises(ValueError, match=r"v/w is \(1,\), its mean is \(2,\)"):
        ServerOptimizer("fedadam").step(w(1, 2), w(1, 2), {"v/w": np.zeros(1, np.float32)})


def test_the_rate_is_the_usual_one_of_its_name_unless_it_is_given():
    assert [ServerOptimizer(name).rate for name in NAMES] == [1, 1, 1, 0.03, 0.01, 0.01]
    assert ServerOptimizer("fedadam", lr=0.001).rate == 0.001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "fedsgd"}, "'fedsgd'; there are fedavg, fedavgm, fedexp, fedadagrad, fedadam, fedyogi"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"momentum": 1.0}, "momentum is 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ServerOptimizer(**settings)
