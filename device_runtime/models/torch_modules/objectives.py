"""Training objectives, and their losses and gradients on one batch, also clipped by sample (DP-SGD).

An objective is the bundle's loss alone, by default cross-entropy, or with the terms that papers add to it.
The same functions are traced into ONNX graphs and run by the torch engine.
"""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from device_runtime.models.bundles.manifest import ABOVE, Extra
from device_runtime.models.errors import ExportError

from .functional_module import ForwardPass, FunctionalModule, Tensors, run, stored_tensors

FLOOR = 1e-12  # added under a square root, whose gradient at 0 is infinite
COSINE_FLOOR = 1e-8  # the least norm of a vector, as in torch's cosine_similarity


@dataclass(frozen=True)
class OutputSizes:
    """Output sizes of a network: classes, width of the features, shape of the feature map at each level."""

    classes: int
    width: int
    maps: Mapping[str, tuple[int, ...]]

    def positions(self, level: str) -> int:
        """Number of places in a level's map: h * w of (channels, h, w), tokens of (tokens, channels)."""
        shape = self.maps[level]
        return shape[0] if len(shape) == 2 else prod(shape[1:])


@dataclass(frozen=True)
class ObjectiveBatch:
    """One batch: x (n, ...), y (n, *target.shape), the objective's extra inputs, the tensors of the model."""

    subject: FunctionalModule
    x: Tensor
    y: Tensor
    extras: Tensors
    tensors: Tensors


@dataclass(frozen=True)
class Objective:
    """A loss, which is a scalar, the mean over the batch, and its extra inputs."""

    extras: Callable[[OutputSizes], tuple[Extra, ...]]
    loss: Callable[[ObjectiveBatch], Tensor]


def output_sizes(subject: FunctionalModule) -> OutputSizes:
    """Output sizes of the subject, by one pass of its example."""
    with torch.no_grad():
        return sizes_of(run(subject, subject.example, stored_tensors(subject.module)))


def sizes_of(passed: ForwardPass) -> OutputSizes:
    """Output sizes of one forward pass."""
    maps = {level: tuple(value.shape[1:]) for level, value in passed.maps.items()}
    return OutputSizes(int(passed.logits.shape[1]), int(passed.features.shape[1]), maps)


def mean_loss(batch: ObjectiveBatch, logits: Tensor) -> Tensor:
    """The mean of the subject's loss."""
    loss = batch.subject.loss
    if (
        loss.target.is_cross_entropy and not loss.target.class_weights
    ):  # its own operator, which has fewer gradients than `SampleLoss`
        return functional.cross_entropy(logits, batch.y)
    return loss(logits, batch.y, batch.x).mean()


def loss_alone(batch: ObjectiveBatch) -> Tensor:
    """The mean of the subject's loss, by default cross-entropy in nats."""
    return mean_loss(batch, run(batch.subject, batch.x, batch.tensors).logits)


def moon(batch: ObjectiveBatch) -> Tensor:
    """The loss plus the contrastive term of MOON (Li et al. 2021, equation 3 and 4).

    mu * mean(-log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau))))
    """
    passed = run(batch.subject, batch.x, batch.tensors)
    return mean_loss(batch, passed.logits) + batch.extras["mu"] * _contrast(passed, batch.extras).mean()


def moon_of_samples(batch: ObjectiveBatch) -> Tensor:
    """`moon` of each sample, (n,)."""
    passed = run(batch.subject, batch.x, batch.tensors)
    losses = batch.subject.loss(passed.logits, batch.y, batch.x)
    return losses + batch.extras["mu"] * _contrast(passed, batch.extras)


def _contrast(passed: ForwardPass, extras: Tensors) -> Tensor:
    similar = [_cosine(passed.features, extras[name]) for name in ("z_glob", "z_prev")]
    return -functional.log_softmax(torch.stack(similar, 1) / extras["tau"], 1)[:, 0]


def distil(batch: ObjectiveBatch) -> Tensor:
    """Mean absolute difference of logits and targets (FedMD in thesis 002, 5.5); y is not used."""
    return functional.l1_loss(run(batch.subject, batch.x, batch.tensors).logits, batch.extras["target"])


def kl(batch: ObjectiveBatch) -> Tensor:
    """Knowledge distillation (Hinton et al. 2015, section 2).

    (1 - alpha) * cross-entropy + alpha * T^2 * KL(softmax(target / T), softmax(logits / T))
    """
    extras, heat = batch.extras, batch.extras["temperature"]
    logits = run(batch.subject, batch.x, batch.tensors).logits
    ours = functional.log_softmax(logits / heat, 1)
    theirs = functional.log_softmax(extras["target"] / heat, 1)
    divergence = (torch.exp(theirs) * (theirs - ours)).sum(1).mean()
    hard = mean_loss(batch, logits)
    return (1 - extras["alpha"]) * hard + extras["alpha"] * heat * heat * divergence


def attention(batch: ObjectiveBatch, squared: bool = True) -> Tensor:
    """Cross-entropy plus attention transfer (thesis 002, 5.3; Zagoruyko and Komodakis 2017, equation 2).

    Mean over samples of sum_levels beta_level * || Q / ||Q||_2 - Q_t / ||Q_t||_2 ||_2^2, where Q is the sum
    of squares over the channels at each place, and `teacher.LEVEL` is that of the teacher, (n, places).
    Levels whose map is one vector for each sample, without places, are ignored; `beta` is in the order of the
    other levels. Both texts write the norm, Zagoruyko's code squares it. Where `squared` is false it is the
    norm, as in equations 5.6 and 5.14 of the thesis.
    """
    passed, extras = run(batch.subject, batch.x, batch.tensors), batch.extras
    apart: list[Tensor] = []
    for level, value in passed.maps.items():
        if value.dim() == 2:
            continue
        square = value * value
        ours = square.sum(2) if value.dim() == 3 else square.sum(1).flatten(1)
        difference = _unit(ours) - _unit(extras[f"teacher.{level}"])
        apart.append((difference * difference).sum(1) if squared else _norm(difference))
    hard = mean_loss(batch, passed.logits)
    return hard + (torch.stack(apart, 1) * extras["beta"]).sum(1).mean()


def prototype(batch: ObjectiveBatch) -> Tensor:
    """`distil` plus cross-entropy of the part above level `up` on one feature map for each class (FedKAD).

    The second term is beta * sum_c present_c * CE(theta(prototype_c), c) (thesis 002, 5.5), where theta is
    the part of the network above `up`; y is not used. Layers with batch statistics take those of the feature
    maps in the second term; their running statistics move with the samples of the first term alone.
    """
    extras, of_samples = batch.extras, distil(batch)
    prototypes = extras["prototypes"]
    places = batch.x.new_zeros((prototypes.shape[0], *batch.x.shape[1:]))
    with _still(batch.subject.module):
        logits = run(batch.subject, places, batch.tensors, ("up", prototypes)).logits
    own = -(functional.log_softmax(logits, 1) * torch.eye(len(prototypes), device=logits.device)).sum(1)
    return of_samples + extras["beta"] * (own * extras["present"]).sum()


@contextmanager
def _still(module: nn.Module) -> Iterator[None]:
    """Lets no pass through the module move running statistics, by a momentum of 0."""
    norms = [each for each in module.modules() if isinstance(each, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def above(batch: ObjectiveBatch, level: str) -> Tensor:
    """Cross-entropy of the part above a level on the given feature maps, `maps` (thesis 002, 5.2.2).

    Of x only the number of samples is used.
    """
    logits = run(batch.subject, batch.x, batch.tensors, (level, batch.extras["maps"])).logits
    return mean_loss(batch, logits)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity (n,) of the rows of a and b."""
    norms = [torch.sqrt((v * v).sum(1)).clamp_min(COSINE_FLOOR) for v in (a, b)]
    return (a * b).sum(1) / (norms[0] * norms[1])


def _unit(rows: Tensor) -> Tensor:
    return rows / _norm(rows).unsqueeze(1)


def _norm(rows: Tensor) -> Tensor:
    return torch.sqrt((rows * rows).sum(1) + FLOOR)


def _scalars(*names: str) -> tuple[Extra, ...]:
    return tuple(Extra(name, (), False) for name in names)


def _target(sizes: OutputSizes) -> Extra:
    return Extra("target", (sizes.classes,), True)


def _moon_extras(sizes: OutputSizes) -> tuple[Extra, ...]:
    features = tuple(Extra(name, (sizes.width,), True) for name in ("z_glob", "z_prev"))
    return (*features, *_scalars("mu", "tau"))


def _attention_extras(sizes: OutputSizes) -> tuple[Extra, ...]:
    levels = [level for level, shape in sizes.maps.items() if len(shape) > 1]
    _need("attention", sizes, levels[0] if levels else "low")
    maps = (Extra(f"teacher.{level}", (sizes.positions(level),), True) for level in levels)
    return (*maps, Extra("beta", (len(levels),), False))


def _prototype_extras(sizes: OutputSizes) -> tuple[Extra, ...]:
    _need("prototype", sizes, "up")
    classes = (sizes.classes,)
    maps = Extra("prototypes", (*classes, *sizes.maps["up"]), False)
    return (_target(sizes), maps, Extra("present", classes, False), *_scalars("beta"))


def _above_extras(sizes: OutputSizes, objective: str, level: str) -> tuple[Extra, ...]:
    _need(objective, sizes, level)
    return (Extra("maps", sizes.maps[level], True),)


def _above(objective: str) -> Objective:
    level = objective.partition("-")[2]
    return Objective(partial(_above_extras, objective=objective, level=level), partial(above, level=level))


def _need(objective: str, sizes: OutputSizes, level: str) -> None:
    if level not in sizes.maps:
        raise ExportError(f"objective {objective} needs the feature map of level {level}: name its submodule")


OBJECTIVES: dict[str, Objective] = {
    "train": Objective(lambda sizes: (), loss_alone),
    "moon": Objective(_moon_extras, moon),
    "distil": Objective(lambda sizes: (_target(sizes),), distil),
    "kl": Objective(lambda sizes: (_target(sizes), *_scalars("temperature", "alpha")), kl),
    "attention": Objective(_attention_extras, attention),
    "attention-norm": Objective(_attention_extras, partial(attention, squared=False)),
    "prototype": Objective(_prototype_extras, prototype),
    **{name: _above(name) for name in ABOVE},
}

SAMPLE_LOSSES: dict[str, Callable[[ObjectiveBatch], Tensor]] = {"moon": moon_of_samples}
"""Objectives besides the loss alone that are a mean of losses of single samples, (n,)."""


# Losses and gradients on one batch


@dataclass(frozen=True)
class GraphInputs:
    """Inputs of a graph: x (n, ...), y (n, *target.shape), extra inputs and tensors of the model by name."""

    x: Tensor
    y: Tensor
    extras: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


def losses_of(subject: FunctionalModule, inputs: GraphInputs) -> Tensor:
    """The subject's loss of each sample, shape (n,); cross-entropy is in nats.

    How samples are cut into batches changes their mean by rounding only.
    """
    return subject.loss(run(subject, inputs.x, inputs.tensors).logits, inputs.y, inputs.x)


def loss_and_gradients(
    subject: FunctionalModule, objective: str, inputs: GraphInputs, trainable: Sequence[str]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Loss () and the gradient of each trainable tensor.

    Raises ValueError for a tensor that does not influence the loss. `autograd.grad` does not take fused
    backward operators apart.
    """
    loss, gradients = _gradients(subject, objective, inputs, trainable)
    grads = tuple(grad for grad in gradients if grad is not None)
    if len(grads) < len(gradients):
        idle = trainable[gradients.index(None)]
        raise ValueError(f"{idle} does not influence the loss; give it requires_grad=False")
    return loss.detach(), grads


def influencing_tensors(
    subject: FunctionalModule, objective: str, inputs: GraphInputs, names: Sequence[str]
) -> frozenset[str]:
    """Names of the given tensors that influence the loss."""
    _, grads = _gradients(subject, objective, inputs, names)
    return frozenset(name for name, grad in zip(names, grads, strict=True) if grad is not None)


def _gradients(
    subject: FunctionalModule, objective: str, inputs: GraphInputs, names: Sequence[str]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    free = {name: inputs.tensors[name].detach().requires_grad_() for name in names}
    batch = ObjectiveBatch(subject, inputs.x, inputs.y, inputs.extras, {**inputs.tensors, **free})
    with torch.enable_grad():
        loss = OBJECTIVES[objective].loss(batch)
        return loss, torch.autograd.grad(loss, list(free.values()), allow_unused=True)


# Clipped gradients of single samples

AT_ONCE = 1 << 24
"""Gradient values held at once, 64 MiB; gradients of as many samples as fit, of one at least."""


class ClippedSums:
    """Sums of gradients of single samples, each clipped, as DP-SGD needs them; many samples in one call.

    For one objective of a module. vmap must be able to run the module, which it is not for all modules.
    """

    def __init__(self, subject: FunctionalModule, objective: str, rows: Collection[str]) -> None:
        """rows: the extras that have one row for each sample."""
        self._subject, self._objective, self._rows = subject, objective, rows

    def add(self, inputs: GraphInputs, max_norm: float, totals: Mapping[str, Tensor]) -> None:
        """Adds each sample's gradient, scaled to a norm of at most `max_norm`, to `totals`, by name.

        A sample whose gradient has no finite norm adds nothing.
        """
        at_once = max(1, AT_ONCE // sum(total.numel() for total in totals.values()))
        for start in range(0, len(inputs.y), at_once):
            self._add(self._cut(inputs, slice(start, start + at_once)), max_norm, totals)

    def _cut(self, inputs: GraphInputs, part: slice) -> GraphInputs:
        extras = {name: value[part] if name in self._rows else value for name, value in inputs.extras.items()}
        return GraphInputs(inputs.x[part], inputs.y[part], extras, inputs.tensors)

    def _add(self, inputs: GraphInputs, max_norm: float, totals: Mapping[str, Tensor]) -> None:
        free = {name: inputs.tensors[name].detach() for name in totals}
        frozen = {name: tensor for name, tensor in inputs.tensors.items() if name not in totals}

        def loss(values: Mapping[str, Tensor], x: Tensor, y: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
            sample_extras = {
                name: value[None] if name in self._rows else value for name, value in extras.items()
            }
            batch = ObjectiveBatch(self._subject, x[None], y[None], sample_extras, {**frozen, **values})
            return OBJECTIVES[self._objective].loss(batch)

        places = {name: 0 if name in self._rows else None for name in inputs.extras}
        each = vmap(grad(loss), in_dims=(None, 0, 0, places))(free, inputs.x, inputs.y, inputs.extras)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        finite = norms.isfinite()
        factors = (max_norm / norms[finite]).clamp(max=1)
        whole = bool(finite.all())
        for name, total in totals.items():
            total.add_(torch.tensordot(factors, each[name] if whole else each[name][finite], 1))
