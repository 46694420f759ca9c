"""Partitions of the digits, a device's run on a clock that stands still, a family of two networks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData, Run


@pytest.fixture
def run() -> Callable[..., Run]:
    def make(device: str = "pi-1", seed: int = 77) -> Run:
        return Run(seed, device, clock=lambda: 0.0, upload_at=1.0)

    return make


def part(data: LocalData, indices: object) -> LocalData:
    return LocalData(data.x[indices], data.y[indices])


@pytest.fixture
def partitions(digits: LocalData) -> dict[str, list[LocalData]]:
    """One device; three of very different sizes; by class; a device with a single sample."""
    data, n = digits, len(digits)
    order = np.random.default_rng(5).permutation(n)
    return {
        "one device": [data],
        "unequal": [part(data, order[:17]), part(data, order[17:100]), part(data, order[100:])],
        "by class": [part(data, np.isin(data.y, pair)) for pair in ((0, 1), (2, 3, 4), (5, 6, 7, 8, 9))],
        "single sample": [part(data, order[:1]), part(data, order[1:])],
    }


class Tools:
    """What an aggregator has, over bundles by member."""

    def __init__(self, bundles: Mapping[str, Bundle], generic: LocalData | None) -> None:
        self.generic, self._bundles = generic, bundles
        self._opened: dict[str, OnnxModel] = {}

    def model(self, member: str = "") -> OnnxModel:
        if member not in self._opened:
            self._opened[member] = OnnxModel(self._bundles[member])
        return self._opened[member]

    def manifest(self, member: str = "") -> Manifest:
        return self._bundles[member].manifest


@dataclass(frozen=True)
class Family:
    """A network of three levels for digits, and a smaller one, "small", whose maps have the same shapes."""

    bundles: Mapping[str, Bundle]
    data: LocalData

    def tools(self, generic: LocalData | None = None) -> Tools:
        return Tools(self.bundles, generic)

    def round(self, generic: LocalData | None, number: int = 1, **changes: Any) -> RoundModel:
        """A round that distributes what the bundles hold, unless `changes` say otherwise."""
        main, small = self.bundles[""], self.bundles["small"]
        model = RoundModel(main.manifest, main.weights(), number, 77 + number)
        family = {"small": small.weights()}
        return replace(model, **{"family": family, "tools": self.tools(generic), **changes})


@pytest.fixture(scope="session")
def family(digits: LocalData, once: Callable[[str, Callable[[Path], object]], Path]) -> Family:
    """Plain convolutions with tanh, whose graphs are made soonest."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    from device_runtime.models.export.export import ExportSpec, export

    def level(inner: int, outer: int, blocks: int, stride: int) -> Any:
        first = nn.Conv2d(inner, outer, 3, stride, padding=1)
        more = (nn.Conv2d(outer, outer, 3, padding=1) for _ in range(blocks - 1))
        return nn.Sequential(*(part for layer in (first, *more) for part in (layer, nn.Tanh())))

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        levels = {"low": "low", "mid": "mid", "up": "up", "head": "head"}  # noqa: RUF012
        level_outputs = {"low": "low", "mid": "mid", "up": "up"}  # noqa: RUF012

        def __init__(self, blocks: int) -> None:
            super().__init__()
            self.low, self.mid = level(1, 6, blocks, 1), level(6, 8, 1, 2)
            self.up, self.head = level(8, 10, blocks, 1), nn.Linear(10, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.up(self.mid(self.low(x))).mean((2, 3)))

    bundles = {}
    for name, blocks in (("", 2), ("small", 1)):
        torch.manual_seed(blocks)
        above: dict[str, Any] = {} if name else {"mid": {}}
        objectives = (
            "train",
            "attention",
            "attention-norm",
            "prototype",
            "distil",
            *(() if name else ("above-low",)),
        )
        spec = ExportSpec(
            name or "main", InputSpec((1, 8, 8)), tuple("0123456789"),
            sets={"all": {}, **above}, objectives=objectives, features=("low", "mid", "up"),
        )  # fmt: skip
        path = once(f"family-{name or 'main'}", partial(export, Net(blocks), spec))
        bundles[name] = Bundle.open(path)
    return Family(bundles, digits)


@pytest.fixture(scope="session")
def wide_family(
    bundle: Bundle, digits: LocalData, once: Callable[[str, Callable[[Path], object]], Path]
) -> Family:
    """WRN-16-1, and WRN-10-1 as "small"; it takes a minute or so."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    bundles = {}
    for name, depth in (("", 16), ("small", 10)):
        torch.manual_seed(depth)
        module = build("wrn", {"depth": depth, "width": 1, "in_channels": 1, "classes": 10})
        above: dict[str, Any] = {} if name else {"mid": {}}
        objectives = ("attention", "train") if name else ("attention", "above-low")
        spec = ExportSpec(
            name or "main", bundle.manifest.input, bundle.manifest.labels,
            sets={"all": {}, **above}, objectives=objectives, features=("low", "mid", "up"),
        )  # fmt: skip
        bundles[name] = Bundle.open(once(f"wide-{name or 'main'}", partial(export, module, spec)))
    return Family(bundles, digits)
