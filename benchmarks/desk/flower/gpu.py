import torch
from fedavg import DRAWN, accuracy, reply, run, trained
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
place = "cuda" if torch.cuda.is_available() else "cpu"


@client.train()
def train(message, context):
    return reply(message, trained(message, context, place=place))


if __name__ == "__main__":
    resources = {"num_cpus": 1, "num_gpus": 0.1 if place == "cuda" else 0.0}
    print("accuracy", accuracy(run(FedAvg(**DRAWN), client, backend={"client_resources": resources})))
