"""SGD and proximal terms on a vector, bit for bit. Vectors are those of `noise`, which is written twice."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.training.optimizer import Sgd
from device_runtime.strategies.terms.proximal import Proximal

SIZE, STEPS = 37, 4
SETTINGS = ((0.1, 0.5, 1e-5), (0.01, 0.9, 1e-3), (0.3, 0.0, 0.0), (0.05, 0.0, 0.1), (1e-3, 0.999, 0.0))
WEIGHT = 0.1


def noise(seed: int, count: int) -> NDArray[np.float32]:
    """x <- (75 x + 74) mod 65537; (x - 32768) / 10000, rounded to float32."""
    values = []
    for _ in range(count):
        seed = (75 * seed + 74) % 65537
        values.append((seed - 32768) / 10000)
    return np.array(values, np.float32)


def vectors() -> dict[str, Any]:
    return {
        "size": SIZE,
        "sgd": [
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": decay,
                "after": _stepped(Sgd(lr, momentum, decay)),
            }
            for lr, momentum, decay in SETTINGS
        ],
        "pulled": {"weight": WEIGHT, "grads": _pulled()},
    }


def _stepped(sgd: Sgd) -> list[bytes]:
    """The parameters after each step, float32, little-endian."""
    params, after = noise(1, SIZE), []
    run = sgd.start(params)
    for step in range(STEPS):
        run.step(params, noise(100 + step, SIZE))
        after.append(params.astype("<f4").tobytes())
    return after


def _pulled() -> bytes:
    specs = [TensorSpec("w", (SIZE,))]
    params, grads = Flat(specs), Flat(specs)
    params.load({"w": noise(1, SIZE)})
    grads.load({"w": noise(2, SIZE)})
    Proximal(WEIGHT, {"w": noise(3, SIZE)}).start(params).add(params, grads)
    return grads.vector.astype("<f4").tobytes()
