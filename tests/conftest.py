"""What tests of several packages share: the shipped bundle, real digits, a clock that stands still."""

from dataclasses import dataclass

import numpy as np
import pytest

from models.bundle import Bundle, shipped
from models.onnx_engine import OnnxModel
from strategies.kind import LocalData, RoundModel


@dataclass
class FakeClock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return Bundle.open(shipped("digits-wrn-10-1"))


@pytest.fixture
def model(bundle: Bundle) -> OnnxModel:
    return OnnxModel(bundle)


@pytest.fixture
def round_model(bundle: Bundle) -> RoundModel:
    return RoundModel(bundle.manifest, bundle.weights(), round=3, seed=77)


@pytest.fixture(scope="session")
def digits(bundle: Bundle) -> LocalData:
    """240 real digits, prepared."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = bundle.manifest.input.prepare(raw.images[:240, None])
    return LocalData(x, raw.target[:240].astype(np.int64))


@dataclass(frozen=True)
class Exported:
    """Small networks for digits of 8x8: one for every tunable set of convolutional networks, one with the
    objectives of the aggregator and its family, a transformer. `generic` are samples that are nobody's own.
    """

    tuned: str
    taught: str
    small: str
    half: str
    vit: str
    generic: str


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch = pytest.importorskip("torch")
    from sklearn.datasets import load_digits

    from models import torch_networks as networks
    from models.manifest import InputSpec, Source
    from models.torch_export import ExportSpec, export

    folder = tmp_path_factory.mktemp("exported")

    def written(name, network, settings, sets, objectives=("train",), features=()):
        torch.manual_seed(0)
        module = networks.build(network, settings)
        labels = tuple("0123456789")
        spec = ExportSpec(
            name,
            InputSpec((1, 8, 8), scale=1 / 16),
            labels,
            sets={name: {} for name in sets},
            objectives=objectives,
            features=features,
            source=Source(network, settings),
        )
        export(module, spec, folder / name)
        return str(folder / name)

    def cnn(name, width, *args, **more):
        return written(name, "cnn", {"in_channels": 1, "size": 8, "width": width}, *args, **more)

    teaching = ("train", "attention", "prototype", "distil")
    levels = ("low", "mid", "up")
    peft = ("all", "mid", "head", "bias", "lora", "sparse")
    image = {"in_channels": 1, "image": 8, "patch": 4, "depth": 3, "dim": 16, "heads": 2}
    raw = load_digits()
    np.savez(folder / "generic.npz", x=raw.images[-120:].astype(np.uint8), y=raw.target[-120:])
    return Exported(
        tuned=cnn("tuned", 0.25, peft, ("train", "moon")),
        taught=cnn("taught", 0.25, ("all", "mid"), (*teaching, "above-low"), features=levels),
        small=cnn("small", 0.25, ("all",), teaching, features=levels),
        half=cnn("half", 0.125, ("all",)),
        vit=written("vit", "vit", image, ("head", "adapter", "prompt", "prefix", "lora", "bias")),
        generic=str(folder / "generic.npz"),
    )
