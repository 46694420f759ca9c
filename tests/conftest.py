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
