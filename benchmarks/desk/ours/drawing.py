from dataclasses import dataclass
from typing import ClassVar

from fedavg import data
from samples import network

import device_runtime as dr
from device_runtime.kinds import DrawingPolicy, register


@dataclass(frozen=True)
class InTurn(DrawingPolicy):
    name: ClassVar[str] = "in-turn"
    about: ClassVar[str] = "those first who have sent least"

    def draw(self, candidates, count, number, rng):
        return sorted(candidates, key=lambda device: (device.updates.rounds, device.name))[:count]


if __name__ == "__main__":
    register(InTurn)
    dr.export(network(), "own", input=(16,), labels="0123")
    task = dr.Task(bundle="own", rounds=3, devices_per_round=10, draw="in-turn")
    result = dr.simulate(task, data=data, policies=["fedavg"], devices=20)
    print("accuracy", result.run("fedavg").accuracy)
