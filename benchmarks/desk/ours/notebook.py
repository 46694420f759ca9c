from fedavg import data
from samples import network

import device_runtime as dr

result = dr.simulate(network(), data=data, policies=["fedavg"], devices=20, rounds=3)
result.plot("accuracy", "accuracy.png")
print("accuracy", result.run("fedavg").accuracy)
