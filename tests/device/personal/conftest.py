import numpy as np
import pytest

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.models.bundles.tensors import encode


@pytest.fixture
def offer(bundle):
    """An offer of a round of the shipped bundle."""

    def new_offer(number=1, **changes):
        blob = blob_of(encode(bundle.weights()))
        usual = {
            "task": "t", "run": "r", "round": number, "seed": 5, "deadline_s": 9.0, "remaining_s": 9.0,
            "bundle": blob, "base": Base(checkpoint=(blob,), sha=blob.sha), "kinds": (),
        }  # fmt: skip
        return Offer(**{**usual, **changes})

    return new_offer


@pytest.fixture(scope="session")
def digits():
    """Images uint8 (n, 1, 8, 8) of 0 to 16, and labels."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    return dataset.images.astype(np.uint8)[:, None], dataset.target.astype(np.int64)
