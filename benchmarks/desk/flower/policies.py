from fedavg import DRAWN, accuracy, reply, run, trained
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx

client = ClientApp()


@client.train()
def train(message, context):
    start = message.content["arrays"].to_torch_state_dict()
    mu = message.content["config"].get("proximal-mu", 0.0)

    def proximal(module):
        far = ((value - start[name]).square().sum() for name, value in module.named_parameters())
        return mu / 2 * sum(far)

    return reply(message, trained(message, context, proximal))


if __name__ == "__main__":
    strategies = {
        "fedavg": FedAvg(**DRAWN),
        "fedprox": FedProx(**DRAWN, proximal_mu=0.1),
        "fedadam": FedAdam(**DRAWN, eta=0.01),
    }
    for name, strategy in strategies.items():
        print("accuracy", name, accuracy(run(strategy, client)))
