from functools import partial

import torch
from fedavg import run
from pfl.algorithm.fedprox import FedProx, FedProxParams

print("fedavg", run())
print("fedprox", run(algorithm=FedProx(), params=partial(FedProxParams, mu=0.1)))
print("fedadam", run(central=partial(torch.optim.Adam, lr=0.01, betas=(0.9, 0.99), eps=1e-3)))
