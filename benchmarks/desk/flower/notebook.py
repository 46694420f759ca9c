import matplotlib.pyplot as plt
from fedavg import DRAWN, accuracy, run
from flwr.serverapp.strategy import FedAvg

if __name__ == "__main__":
    values = accuracy(run(FedAvg(**DRAWN)))
    figure, axes = plt.subplots()
    axes.plot(values)
    axes.set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
    figure.savefig("accuracy.png")
    print("accuracy", values)
