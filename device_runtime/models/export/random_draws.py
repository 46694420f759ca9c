"""Finds what a network and its loss draw at random, or read from outside, while they run."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

import datetime
import gc
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
