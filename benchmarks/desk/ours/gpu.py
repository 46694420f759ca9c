import torch
from fedavg import data
from samples import network

import device_runtime as dr

device = "cuda" if torch.cuda.is_available() else "cpu"
result = dr.simulate(network(), data=data, policies=["fedavg"], devices=20, rounds=3, device=device)
print("accuracy", result.run("fedavg").accuracy)
