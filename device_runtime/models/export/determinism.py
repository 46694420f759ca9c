"""Proves that a network and its loss are functions of their inputs and weights, before they are traced.

A graph is compared with torch. Where torch itself gives something else each time, that comparison says
nothing, and a device would train another network in each step.
"""
# mypy: allow-untyped-calls, allow-any-unimported

import copy
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from device_runtime.models.errors import ExportError
from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    run,
    statistics,
    stored_tensors,
    with_batch_statistics,
)

from .candidates import advice
from .evaluation_mode import HIGHEST, LOWEST, Draw, RandomDraws, recorded, seeded

logger = logging.getLogger(__name__)

ROUNDING = 1e-5
"""Accepted difference of equal inputs, as a fraction of a tensor's largest value."""
REORDERED = 1e-3
"""The same between orders of a batch, in which sums are rounded otherwise."""
MORE_RUNS = 24  # where something is read from outside and shows no effect: a layer is left out 1 time in 20
DEEPEST = 4  # levels of attributes that are compared
COUNTERS = "num_batches_tracked"

_WAY_OUT = "draw only where self.training is true, or draw once in __init__ and keep the numbers in a buffer"


@dataclass(frozen=True)
class ProbeSamples:
    """Inputs x (n, ...) and targets y (n, *target.shape)."""

    x: Tensor
    y: Tensor

    def at(self, places: Tensor) -> "ProbeSamples":
        """The samples at these places, a copy."""
        return ProbeSamples(self.x[places], self.y[places])


@dataclass(frozen=True)
class _Results:
    """What one pass gave, and the names of inputs and stored tensors that it changed in place."""

    values: Mapping[str, Tensor]
    changed: tuple[str, ...]


class _Subject:
    """A copy of the network as it was given, called again and again with the same weights."""

    def __init__(self, subject: FunctionalModule, norms: tuple[str, ...]) -> None:
        fresh = replace(subject, module=copy.deepcopy(subject.module))
        self.subject = with_batch_statistics(fresh, norms)
        self.moving = frozenset(statistics(norms))

    def results(self, samples: ProbeSamples, gradients: bool = True) -> _Results:
        """Logits, losses, and the gradients of the mean loss, of one pass. Raises ExportError if it fails."""
        try:
            return self._results(samples, gradients)
        except Exception as error:  # the module's own code runs here
            what = advice(error, "; look for Python code of the module that depends on the batch size")
            raise ExportError(f"the network or its loss fails on {len(samples.x)} samples: {what}") from error

    def _results(self, samples: ProbeSamples, gradients: bool) -> _Results:
        module, stored = self.subject.module, stored_tensors(self.subject.module)
        tensors = {name: value.clone() for name, value in stored.items()}
        hidden = {n: b for n, b in module.named_buffers() if n not in stored and not n.endswith(COUNTERS)}
        before = {name: value.clone() for name, value in hidden.items()}
        free = {name: p.requires_grad for name, p in module.named_parameters()}
        trained = {n: tensors[n].requires_grad_() for n in tensors if gradients and free.get(n)}
        x, y = samples.x.clone(), samples.y.clone()
        with torch.set_grad_enabled(gradients):
            passed = run(self.subject, x, tensors)
            logits = passed.logits.detach().clone()
            losses = self.subject.loss(passed.logits, y, x)
            grads = (
                torch.autograd.grad(losses.mean(), list(trained.values()), allow_unused=True)
                if trained and losses.requires_grad
                else ()
            )
        values = {"logits": logits, "features": passed.features.detach(), "losses": losses.detach()}
        values |= {f"grad.{n}": g for n, g in zip(trained, grads, strict=False) if g is not None}
        pairs = {"its input": (x, samples.x), "its targets": (y, samples.y)}
        pairs |= {n: (tensors[n].detach(), v) for n, v in stored.items() if n not in self.moving}
        pairs |= {n: (value, before[n]) for n, value in hidden.items()}
        changed = tuple(name for name, (now, then) in pairs.items() if not _same(now, then))
        return _Results(values, changed)


def check_function(
    subject: FunctionalModule, norms: tuple[str, ...], draw: Callable[[int], ProbeSamples]
) -> None:
    """Runs the network and its loss on equal inputs again and again.

    subject: as it was given, not called before; it is copied. norms: the layers that use batch statistics in
    training. draw: gives so many random samples. Raises ExportError, with the cause, if outputs, losses or
    gradients differ beyond rounding, depend on a sample's place in its batch, or a buffer or input changes.
    """
    samples, others = draw(4), draw(3)
    for batch_norms in {(), norms}:
        called = _Subject(subject, batch_norms)
        with seeded(1):
            first = _checked_run(called, samples)
        attributes = _attributes(called.subject.module)
        with seeded(2), recorded(called.subject.module, python=True) as draws:
            called.results(others)
            again = called.results(samples)
        _check_equal(first, again, draws, _changed(attributes, _attributes(called.subject.module)))
        _check_draws(called, samples, draws)
        _check_first_call(_Subject(subject, batch_norms), samples, others, first)
        if not batch_norms:
            _check_own_tensors(subject, samples, others)
            _check_batches(called, samples, first)
            _say_changing(called.subject.module, attributes)


def _checked_run(called: _Subject, samples: ProbeSamples) -> _Results:
    results = called.results(samples)
    for name in results.changed:
        whose = f"{name} in place" if name.startswith("its ") else f"its tensor {name}, in eval mode too"
        raise ExportError(
            f"the network or its loss changes {whose}, which no graph can do: "
            f"{_way_out_of_change(called.subject.module, name)}"
        )
    return results


def _way_out_of_change(module: nn.Module, name: str) -> str:
    if name.startswith("its "):
        return "write x = x * 2 for x.mul_(2)"
    layer = module.get_submodule(name.rpartition(".")[0])
    if getattr(layer, "max_norm", None) is not None:
        return "give the embedding no max_norm"
    return "change it only where self.training is true"


def _check_equal(first: _Results, again: _Results, draws: RandomDraws, attributes: list[str]) -> None:
    """Raises ExportError where two runs differ, naming what was drawn, read or changed."""
    name, off = _worst(first.values, again.values)
    if off <= ROUNDING and not _nan_differs(first, again):
        return
    what = _what(first.values, again.values)
    if draws.torch:
        raise ExportError(_random(what, draws.torch))
    if draws.python:
        raise ExportError(f"the {what} depends on {_listed(draws.python)}, not on input and weights alone")
    state = (
        f"its attribute {', '.join(attributes[:3])} changes in each call"
        if attributes
        else "it keeps something between calls, such as a global variable"
    )
    raise ExportError(
        f"the {what} is no function of its input and weights: {state}, "
        f"and equal inputs give {name} that are {off:.2g} of the largest value apart"
    )


def _check_draws(called: _Subject, samples: ProbeSamples, draws: RandomDraws) -> None:
    """Raises ExportError if numbers that are drawn matter, though two runs gave the same."""
    if draws.torch:
        with seeded(1):
            usual = called.results(samples)
        for outcome in (LOWEST, HIGHEST):
            try:
                with seeded(1), recorded(called.subject.module, outcome):
                    results = called.results(samples)
            except ExportError as error:
                raise ExportError(_random("network", draws.torch)) from error
            if any(not _same(results.values[n], value) for n, value in usual.values.items()):
                raise ExportError(_random(_what(usual.values, results.values), draws.torch))
    if draws.python:
        usual = called.results(samples, gradients=False)
        for seed in range(MORE_RUNS):
            with seeded(seed):
                results = called.results(samples, gradients=False)
            if _worst(usual.values, results.values)[1] > ROUNDING:
                raise ExportError(
                    f"the {_what(usual.values, results.values)} depends on {_listed(draws.python)}, "
                    "not on input and weights alone"
                )


def _check_first_call(fresh: _Subject, samples: ProbeSamples, others: ProbeSamples, first: _Results) -> None:
    """Raises ExportError if what came first changes the results of what comes later."""
    before = _attributes(fresh.subject.module)
    with seeded(3):
        fresh.results(others)
        later = fresh.results(samples)
    name, off = _worst(first.values, later.values)
    if off > ROUNDING:
        attributes = _changed(before, _attributes(fresh.subject.module))
        state = f"its attribute {', '.join(attributes[:3])}" if attributes else "something"
        raise ExportError(
            f"the {_what(first.values, later.values)} is no function of its input and weights: it keeps "
            f"{state} from its first call, and equal inputs give {name} that are {off:.2g} of the largest "
            "value apart"
        )


def _check_own_tensors(subject: FunctionalModule, samples: ProbeSamples, others: ProbeSamples) -> None:
    """Raises ExportError if the module goes on with tensors that a call put in place of its buffers.

    A pass with tensors that are given, as all others here, forgets these.
    """
    module = copy.deepcopy(subject.module).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.no_grad(), seeded(1):
        first, _, again = (module(probe.x.clone()) for probe in (samples, others, samples))
    if all(isinstance(result, Tensor) for result in (first, again)):
        name, off = _worst({"logits": first}, {"logits": again})
        now = module.state_dict()
        if off > ROUNDING and (changed := [n for n, tensor in before.items() if not _same(now[n], tensor)]):
            raise ExportError(
                f"the network puts something else in place of its tensor {changed[0]} in each call, in eval "
                f"mode too, which no graph can do, and equal inputs give {name} that are {off:.2g} of the "
                f"largest value apart: {_way_out_of_change(module, changed[0])}"
            )


def _say_changing(module: nn.Module, attributes: Mapping[str, str]) -> None:
    """Warns of attributes that calls change without an effect so far, such as counters."""
    changed = [
        name
        for name in _changed(attributes, _attributes(module))
        if isinstance(_attribute(module, name), bool | int | float | str | list | dict | deque)
    ]
    if changed:
        logger.warning(
            "calls change its attribute %s, without an effect in the first few: a bundle has the network of "
            "these calls",
            ", ".join(changed[:3]),
        )


def _attribute(module: nn.Module, name: str) -> Any:
    layer, _, own = name.rpartition(".")
    return getattr(module.get_submodule(layer), own, None)


def _check_batches(called: _Subject, samples: ProbeSamples, first: _Results) -> None:
    """Raises ExportError if a sample's place in the batch matters; other samples may, which is said."""
    turned = torch.arange(len(samples.x) - 1, -1, -1)
    results = called.results(samples.at(turned), gradients=False)
    per_sample = {name: first.values[name] for name in ("logits", "losses")}
    back = {name: results.values[name][turned] for name in per_sample}
    if any(len(value) != len(turned) for value in results.values.values()):
        return  # said with its shape elsewhere
    name, off = _worst(per_sample, back)
    if off > REORDERED:
        raise ExportError(
            f"the {_what(per_sample, back)} depends on a sample's place in its batch: in another order "
            f"{name} are {off:.2g} of the largest value off; compute each sample by itself"
        )
    whole = torch.arange(len(samples.x))
    depends = False
    for places in (whole[:2], whole[2:]):  # what is the largest of all is in one of them
        few = called.results(samples.at(places), gradients=False).values
        some = {name: value[places] for name, value in per_sample.items()}
        name, off = _worst(some, {n: few[n] for n in some})
        logits_off = _worst({"logits": some["logits"]}, {"logits": few["logits"]})[1]
        if off > REORDERED and name == "losses" and logits_off <= REORDERED:
            raise ExportError(
                "the loss of a sample depends on which others are in its batch: return the loss of each "
                "sample by itself, (n,), with no mean or sum over the batch"
            )
        depends |= off > REORDERED
    if not depends:
        return
    logger.warning(
        "what the network gives for a sample depends on which others are in its batch; "
        "devices have other batches"
    )


def _random(what: str, drawn: list[Draw]) -> str:
    return f"the {what} draws random numbers, and is no function of its input: {_listed(drawn)}; {_WAY_OUT}"


def _listed(drawn: list[Draw]) -> str:
    more = f", {len(drawn) - 3} more" if len(drawn) > 3 else ""
    return ", ".join(draw.description for draw in drawn[:3]) + more


def _what(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    return "loss" if _same(a["logits"], b["logits"]) else "network"


def _worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[str, float]:
    """The name of the values that are furthest apart, relative to the largest; gradients among themselves."""
    largest = max((_largest(v) for n, v in a.items() if n.startswith("grad.")), default=0.0)
    worst = ("", 0.0)
    for name, value in a.items():
        if name not in b or b[name].shape != value.shape:
            return name, float("inf")
        scale = largest if name.startswith("grad.") else max(_largest(value), _largest(b[name]))
        off = _largest(value.double() - b[name].double()) / max(scale, 1e-30)
        worst = max(worst, (name, off), key=lambda item: item[1])
    return worst


def _largest(value: Tensor) -> float:
    finite = value[value.isfinite()] if value.is_floating_point() else value
    return float(finite.abs().max()) if finite.numel() else 0.0


def _nan_differs(first: _Results, again: _Results) -> bool:
    return any(not torch.equal(v.isfinite(), again.values[n].isfinite()) for n, v in first.values.items())


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _attributes(module: nn.Module) -> dict[str, str]:
    """The plain attributes of all submodules, each as text."""
    own = vars(nn.Module())
    return {
        f"{layer}.{name}" if layer else name: _text(value)
        for layer, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in own
    }


def _text(value: Any, depth: int = 0) -> str:
    """The value as text that changes with it; of an object, the text of its attributes."""
    if isinstance(value, Tensor):
        return str(value.detach().double().sum().item()) + str(tuple(value.shape))
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random | np.random.RandomState):
        return str(value.getstate() if isinstance(value, random.Random) else value.get_state())
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    if depth == DEEPEST or isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, Mapping):
        return str({str(key): _text(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple | deque):
        return str([_text(item, depth + 1) for item in value])
    if hasattr(value, "__dict__") and not callable(type(value).__dict__.get("__get__")):
        return _text(vars(value), depth + 1)
    return str(value) if isinstance(value, bool | int | float | str | bytes) else type(value).__name__


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [name for name, value in after.items() if before.get(name) != value]
