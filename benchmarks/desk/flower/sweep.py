from fedavg import DRAWN, accuracy, run
from flwr.serverapp.strategy import FedAvg

if __name__ == "__main__":
    results = {lr: accuracy(run(FedAvg(**DRAWN), lr=lr)) for lr in (0.01, 0.03, 0.1)}
    for lr, accuracies in results.items():
        print("accuracy", lr, accuracies[-1])
    print("best", max(results, key=lambda lr: results[lr][-1]))
