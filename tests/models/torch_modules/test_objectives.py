"""The losses that papers add to cross-entropy, against their formulas in numpy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.functional_module import FunctionalModule, run, stored_tensors
from device_runtime.models.torch_modules.objectives import OBJECTIVES, ObjectiveBatch, output_sizes
from device_runtime.models.training.heads import cross_entropy, log_softmax

nn = torch.nn
N, CLASSES, CHANNELS, SIDE = 6, 3, 4, 5


class Net(nn.Module):
    """Maps (n, 4, 5, 5) at low and up, a head on the average of the latter."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.up = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x):
        return self.head(self.up(torch.tanh(self.low(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def subject() -> FunctionalModule:
    torch.manual_seed(0)
    return FunctionalModule(Net().eval(), "head", torch.randn(4, 2, SIDE, SIDE), {"low": "low", "up": "up"})


@pytest.fixture(scope="module")
def batch():
    return torch.randn(N, 2, SIDE, SIDE), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def passed(subject, batch):
    with torch.no_grad():
        return run(subject, batch[0], stored_tensors(subject.module))


def loss(subject, batch, objective: str, **extras) -> float:
    tensors = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in extras.items()}
    shapes = {
        e.name: ((N, *e.shape) if e.per_sample else e.shape)
        for e in OBJECTIVES[objective].extras(output_sizes(subject))
    }
    assert shapes == {name: tuple(value.shape) for name, value in tensors.items()}
    with torch.no_grad():
        return float(
            OBJECTIVES[objective].loss(
                ObjectiveBatch(subject, *batch, tensors, stored_tensors(subject.module))
            )
        )


def hard(passed, batch) -> float:
    return float(cross_entropy(passed.logits.numpy(), batch[1].numpy()).mean())


def test_train_is_cross_entropy(subject, batch, passed):
    assert loss(subject, batch, "train") == pytest.approx(hard(passed, batch), abs=1e-6)


def test_moon_draws_features_to_the_global_ones_and_away_from_the_previous(subject, batch, passed):
    rng = np.random.default_rng(0)
    z, z_glob, z_prev = passed.features.numpy(), *rng.standard_normal((2, N, CHANNELS), np.float32)

    def similar(other):
        return (z * other).sum(1) / (np.linalg.norm(z, axis=1) * np.linalg.norm(other, axis=1))

    near, far = (np.exp(similar(other) / 0.5) for other in (z_glob, z_prev))
    expected = hard(passed, batch) + 5 * float(-np.log(near / (near + far)).mean())
    assert loss(subject, batch, "moon", z_glob=z_glob, z_prev=z_prev, mu=5, tau=0.5) == pytest.approx(
        expected, abs=1e-5
    )


def test_distil_is_the_mean_absolute_difference_of_logits(subject, batch, passed):
    target = passed.logits + torch.tensor([0.5, -1.0, 0.0])
    assert loss(subject, batch, "distil", target=target) == pytest.approx(1.5 / 3, abs=1e-6)


def test_kl_mixes_labels_and_the_softened_teacher(subject, batch, passed):
    target = np.random.default_rng(1).standard_normal((N, CLASSES), np.float32)
    heat = 2.0
    ours, theirs = log_softmax(passed.logits.numpy() / heat), log_softmax(target / heat)
    soft = heat**2 * float((np.exp(theirs) * (theirs - ours)).sum(1).mean())
    expected = 0.25 * hard(passed, batch) + 0.75 * soft
    assert loss(subject, batch, "kl", target=target, temperature=heat, alpha=0.75) == pytest.approx(
        expected, abs=1e-5
    )


def test_a_student_that_agrees_with_the_teacher_pays_nothing(subject, batch, passed):
    assert loss(subject, batch, "kl", target=passed.logits, temperature=3, alpha=1) == pytest.approx(
        0, abs=1e-6
    )
    same = {f"teacher.{level}": (value**2).sum(1).flatten(1) for level, value in passed.maps.items()}
    assert loss(subject, batch, "attention", **same, beta=[1000, 1000]) == pytest.approx(
        hard(passed, batch), abs=1e-5
    )


def test_attention_compares_normalised_maps_at_each_level(subject, batch, passed):
    rng = np.random.default_rng(2)
    teacher = {level: rng.random((N, SIDE * SIDE), np.float32) for level in passed.maps}
    beta, apart = {"low": 10.0, "up": 3.0}, 0.0
    for level, value in passed.maps.items():
        q = (value.numpy() ** 2).sum(1).reshape(N, -1)
        q, t = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (q, teacher[level]))
        apart += beta[level] * float(((q - t) ** 2).sum(1).mean())
    extras = {f"teacher.{level}": value for level, value in teacher.items()}
    expected = hard(passed, batch) + apart
    assert loss(subject, batch, "attention", **extras, beta=[10, 3]) == pytest.approx(expected, rel=1e-5)


def test_attention_by_the_norm_is_equation_5_14_to_the_letter(subject, batch, passed):
    """Norm of the difference of the normalised maps, where `attention` squares it."""
    teacher = {level: np.random.default_rng(2).random((N, SIDE * SIDE), np.float32) for level in passed.maps}
    apart = 0.0
    for level, value in passed.maps.items():
        q = (value.numpy() ** 2).sum(1).reshape(N, -1)
        q, t = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (q, teacher[level]))
        apart += 7 * float(np.linalg.norm(q - t, axis=1).mean())
    extras = {f"teacher.{level}": value for level, value in teacher.items()}
    mean = loss(subject, batch, "attention-norm", **extras, beta=[7, 7])
    assert mean == pytest.approx(hard(passed, batch) + apart, rel=1e-5)


def test_prototypes_of_absent_classes_count_nothing(subject, batch, passed):
    """Cross-entropy of the head on the average of each prototype, of classes 0 and 2 alone."""
    maps = np.random.default_rng(3).standard_normal((CLASSES, CHANNELS, SIDE, SIDE), np.float32)
    weight, bias = (p.detach().numpy() for p in subject.module.head.parameters())
    of_class = cross_entropy(maps.mean((2, 3)) @ weight.T + bias, np.arange(CLASSES))
    extras = {"target": passed.logits, "prototypes": maps, "present": [1, 0, 1], "beta": 0.5}
    expected = 0.5 * float(of_class[0] + of_class[2])
    assert loss(subject, batch, "prototype", **extras) == pytest.approx(expected, abs=1e-5)


def test_what_is_above_a_level_is_trained_on_maps_given_in_its_place(subject, batch):
    """The convolution `up`, the average and the head, of maps of level low; the images do not count."""
    maps = np.random.default_rng(4).standard_normal((N, CHANNELS, SIDE, SIDE), np.float32)
    with torch.no_grad():
        logits = subject.module.head(subject.module.up(torch.tanh(torch.as_tensor(maps))).mean((2, 3)))
    expected = float(cross_entropy(logits.numpy(), batch[1].numpy()).mean())
    for x in (batch[0], torch.zeros_like(batch[0])):
        assert loss(subject, (x, batch[1]), "above-low", maps=maps) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("objective", ["attention", "prototype", "above-mid"])
def test_objectives_on_feature_maps_say_which_level_they_miss(subject, objective):
    sizes = output_sizes(FunctionalModule(subject.module, "head", subject.example))
    with pytest.raises(ExportError, match=f"objective {objective} needs the feature map of level"):
        OBJECTIVES[objective].extras(sizes)
