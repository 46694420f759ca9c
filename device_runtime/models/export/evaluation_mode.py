"""Finds what a module does only in training mode, and its random draws; a bundle leaves them out."""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls

import copy
import datetime
import gc
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from device_runtime.models.torch_modules.functional_module import (
    FunctionalModule,
    batch_norms,
    run,
    stored_tensors,
)

LOWEST, HIGHEST = 0.0, 1 - 2**-24
"""The least and the largest number that torch.rand draws in float32."""

_HERE = Path(__file__).parent
_OURS = (str(_HERE), str(_HERE.parent / "torch_modules"))
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(np.__file__).parent), sysconfig.get_path("stdlib"))
_NOW = ("now", "today", "utcnow")


@dataclass(frozen=True)
class Draw:
    """One use of randomness or of another source: the function, the user's line, the layer around it."""

    function: str  # "torch.nn.functional.dropout", "random.random"
    line: str  # "net.py, line 12", or empty
    layer: str  # name of the submodule, or empty for the module itself
    kind: str = ""  # the submodule's class

    @property
    def description(self) -> str:
        """As people read it: "torch.randn_like (net.py, line 12)"."""
        layer = f"layer {self.layer} ({self.kind})" if self.layer else ""
        places = ", ".join(place for place in (layer, self.line) if place)
        return f"{self.function} ({places})" if places else self.function


@dataclass
class RandomDraws:
    """What was drawn while `recorded` ran, in order, each place once."""

    torch: list[Draw] = field(default_factory=list)
    python: list[Draw] = field(default_factory=list)  # random, numpy, the clock, the system
    _layers: list[tuple[str, str]] = field(default_factory=list)
    _function: str = ""

    def add(self, drawn: list[Draw], function: str) -> None:
        """Adds a draw with the line and the layer that are running."""
        layer, kind = self._layers[-1] if self._layers else ("", "")
        if (draw := Draw(function, _users_line(), layer, kind)) not in drawn:
            drawn.append(draw)


@contextmanager
def recorded(module: nn.Module, outcome: float | None = None, python: bool = False) -> Iterator[RandomDraws]:
    """Records torch's draws while the module runs; with `python` those from other sources, too.

    outcome: every number that torch draws is replaced by this. The module has hooks meanwhile.
    """
    draws = RandomDraws()
    with ExitStack() as stack:
        for name, part in module.named_modules():
            entry = (name, type(part).__name__)
            before = part.register_forward_pre_hook(lambda *_, entry=entry: draws._layers.append(entry))
            after = part.register_forward_hook(lambda *_: _popped(draws), always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        stack.enter_context(_Names(draws))
        stack.enter_context(_Recorder(draws, outcome))
        if python:
            stack.enter_context(_python_recorded(draws))
        yield draws


@contextmanager
def _python_recorded(draws: RandomDraws) -> Iterator[None]:
    """Records calls of built-in functions; numpy's show in the state of its generator alone.

    Garbage is collected before and after, as callbacks of other libraries may read a clock then.
    """
    previous, state = sys.getprofile(), np.random.get_state(legacy=False)
    collected = gc.isenabled()
    gc.disable()
    sys.setprofile(_profile(draws))
    try:
        yield
    finally:
        sys.setprofile(previous)
        if collected:
            gc.enable()
        if str(np.random.get_state(legacy=False)) != str(state):
            draws.python.append(Draw("numpy.random", "", ""))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch, numpy and Python; puts their states back afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _popped(draws: RandomDraws) -> None:
    draws._layers.pop()


class _Names(TorchFunctionMode):
    """Notes the function that the user's code called, as the user writes it."""

    def __init__(self, draws: RandomDraws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._draws._function = resolve_name(func) or getattr(func, "__name__", "")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._draws._function = ""


class _Recorder(TorchDispatchMode):
    """Adds each operator that draws from a generator; one with dropout of 0 or in eval mode draws nothing."""

    def __init__(self, draws: RandomDraws, outcome: float | None) -> None:
        super().__init__()
        self._draws, self._outcome = draws, outcome

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        sources = [torch.default_generator]
        sources += [
            generator for generator in (*args, *kwargs.values()) if isinstance(generator, torch.Generator)
        ]
        states = [source.get_state() for source in sources]
        result = func(*args, **kwargs)
        if all(torch.equal(source.get_state(), state) for source, state in zip(sources, states, strict=True)):
            return result
        self._draws.add(self._draws.torch, self._draws._function or f"torch.ops.{func}")
        if self._outcome is not None:
            for value in tree_leaves(result):
                if isinstance(value, Tensor):
                    value.fill_(self._outcome)
        return result


def _profile(draws: RandomDraws) -> Callable[[FrameType, str, Any], None]:
    def called(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and (source := _source(function)):
            draws.add(draws.python, source)

    return called


def _source(function: Any) -> str:
    """The name of a built-in function that gives something else at each call; empty for others."""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or ""
    if isinstance(owner, random.Random):
        return f"random.{name}"
    if type(owner).__module__.startswith("numpy.random"):
        return f"numpy.random.{name}"
    if module == "time" or getattr(owner, "__name__", "") == "time":
        return f"time.{name}"
    if name in ("urandom", "getrandom"):
        return f"os.{name}"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _NOW:
        return f"datetime.{name}"
    return ""


def _users_line() -> str:
    """The innermost line that is neither a library's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_OURS, *_LIBRARIES, "<")):
            return f"{Path(file).name}, line {frame.f_lineno}"
        if file.endswith("functional_module.py"):
            return ""
        frame = frame.f_back
    return ""


CLOSE = 1e-4  # a module that differs by more of the largest value does something else in training
SHOWN = 3

Layers = Mapping[str, nn.Module]


@dataclass(frozen=True)
class _Outputs:
    """The logits of a pass, and whether it changed a stored tensor, such as the vector of a spectral norm."""

    logits: Tensor
    moved: bool


def left_out(subject: FunctionalModule) -> str:
    """What the module's layers do in training mode alone, as "Dropout (drop, body.3)"; empty for nothing.

    Batch norms are not counted. Runs copies of the module on its example; a layer that fails in training mode
    counts.
    """
    module = copy.deepcopy(subject.module).eval()
    subject = replace(subject, module=module)
    usual = _outputs(subject, {})
    layers = {name: part for name, part in module.named_modules() if _may_differ(part)}
    drawing = {name: layers[name] for name in _drawing(subject, layers)}
    others = {name: part for name, part in layers.items() if name not in drawing}
    different = dict(drawing)
    if _differs(subject, others, usual):
        for kind in {type(part) for part in others.values()}:
            alike = {name: part for name, part in others.items() if type(part) is kind}
            if _differs(subject, alike, usual):
                different |= alike
    return _listing({name: part for name, part in layers.items() if name in different})


def frozen_norms(module: nn.Module) -> str:
    """The batch norms that a bundle keeps frozen, as people read them; empty for none."""
    norms = batch_norms(module)
    if not norms:
        return ""
    fresh = all(not bool(module.get_submodule(name).running_mean.any()) for name in norms)
    values = "mean 0 and variance 1, as they are new" if fresh else "the mean and variance that they have"
    return f"{len(norms)} batch norms stay at {values}: --batchnorm training has them follow the batches"


def _may_differ(part: nn.Module) -> bool:
    """Layers of torch that look at `training`, layers with hooks, and all layers of others."""
    if isinstance(part, _BatchNorm) and type(part).__module__.startswith("torch."):
        return False
    plain = type(part).__module__.startswith("torch.nn.modules.") and not part._forward_pre_hooks
    return not plain or isinstance(part, _LOOK_AT_TRAINING)


_LOOK_AT_TRAINING = (
    nn.modules.dropout._DropoutNd,
    nn.modules.instancenorm._InstanceNorm,
    nn.RReLU,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


def _drawing(subject: FunctionalModule, layers: Layers) -> Sequence[str]:
    """The layers that draw random numbers in training mode."""
    with _training(layers), seeded(0), recorded(subject.module) as draws:
        try:
            _run(subject)
        except Exception:  # the module's own code runs here; `_differs` finds the layer
            return ()
    inside = {draw.layer for draw in draws.torch}
    return [name for name in layers if name in inside]


def _outputs(subject: FunctionalModule, layers: Layers) -> _Outputs | None:
    """The logits with these layers in training mode; None where that fails."""
    with _training(layers), seeded(0):
        try:
            return _run(subject)
        except Exception:  # the module's own code runs here
            return None


def _run(subject: FunctionalModule) -> _Outputs:
    stored = stored_tensors(subject.module)
    tensors = {name: value.clone() for name, value in stored.items()}
    with torch.no_grad():
        logits = run(subject, subject.example.clone(), tensors).logits
    return _Outputs(logits, any(not torch.equal(tensors[name], value) for name, value in stored.items()))


def _differs(subject: FunctionalModule, layers: Layers, usual: _Outputs | None) -> bool:
    if not layers or usual is None:
        return False
    outputs = _outputs(subject, layers)
    if outputs is None or outputs.logits.shape != usual.logits.shape or outputs.moved:
        return True
    return bool((outputs.logits - usual.logits).abs().max() > CLOSE * usual.logits.abs().max())


@contextmanager
def _training(layers: Layers) -> Iterator[None]:
    """Puts these layers alone, not those within them, into training mode meanwhile."""
    for part in layers.values():
        part.training = True
    try:
        yield
    finally:
        for part in layers.values():
            part.training = False


def _listing(layers: Layers) -> str:
    kinds: dict[str, list[str]] = {}
    for name, part in layers.items():
        kinds.setdefault(type(part).__name__, []).append(name or "the module itself")
    return "; ".join(
        f"{kind} ({', '.join(names[:SHOWN])}{f', {len(names) - SHOWN} more' if len(names) > SHOWN else ''})"
        for kind, names in kinds.items()
    )
