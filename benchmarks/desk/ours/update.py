from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from fedavg import data
from samples import network

import device_runtime as dr
from device_runtime.kinds import FedAvg, KindInfo


def largest(change):
    return change * (np.abs(change) >= np.quantile(np.abs(change), 0.9))


@dataclass(frozen=True)
class TopK(FedAvg):
    name: ClassVar[str] = "top-k"
    about: ClassVar[KindInfo] = KindInfo("everything", "the largest changes", "Aji and Heafield 2017")

    def train(self, model, data, run):
        base, update = model.weights, super().train(model, data, run)
        sent = {name: base[name] + largest(value - base[name]) for name, value in update.tensors.items()}
        return replace(update, tensors=sent)


if __name__ == "__main__":
    result = dr.simulate(network(), data=data, kinds=[TopK()], devices=20, rounds=3)
    print("accuracy", result.run("mixed").accuracy)
