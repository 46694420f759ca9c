from samples import everyone, network, test

import device_runtime as dr

x, y, client = everyone()
data = dr.data.arrays(x, y, client=client, test=test(), partition="natural")

if __name__ == "__main__":
    result = dr.simulate(network(), data=data, policies=["fedavg"], devices=20, rounds=3)
    print("accuracy", result.run("fedavg").accuracy)
