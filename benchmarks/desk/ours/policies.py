from fedavg import data
from samples import network

import device_runtime as dr

policies = ["fedavg", "fedavg+fedprox", "fedavg+fedadam"]
result = dr.simulate(network(), data=data, policies=policies, devices=20, rounds=3)
print(result.table())
