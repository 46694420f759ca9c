from fedavg import data
from samples import network

import device_runtime as dr

metrics = ["f1-macro"]
result = dr.simulate(network(), data=data, policies=["fedavg"], devices=20, rounds=3, metrics=metrics)
print("f1", result.run("fedavg").columns()["f1-macro"])
