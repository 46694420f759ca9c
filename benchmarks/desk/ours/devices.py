from fedavg import everyone, test
from samples import network

import device_runtime as dr

x, y, client = everyone()
own = {"partition": "natural", "device_test_share": 0.2}
data = dr.data.arrays(x, y, client=client, test=test(), **own)
result = dr.simulate(network(), data=data, policies=["fedavg"], devices=20, rounds=3)
print(result.devices().to_pandas())
print(result.devices().summary())
