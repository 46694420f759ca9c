from fedavg import data
from samples import network

import device_runtime as dr

policy, lr = "fedavg", [0.01, 0.03, 0.1]
tuned = dr.sweep(network(), data=data, policy=policy, lr=lr, devices=20, rounds=3)
print(tuned.table())
