from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation
from samples import CLIENTS, network, samples, test
from torch.nn.functional import cross_entropy

DRAWN = {"fraction_train": 0.5, "fraction_evaluate": 0.0}
client = ClientApp()


def module_of(arrays: ArrayRecord) -> torch.nn.Module:
    module = network()
    module.load_state_dict(arrays.to_torch_state_dict())
    return module


def trained(
    message: Message, context: Context, term: Callable = lambda module: 0.0, place: str = "cpu"
) -> dict:
    module = module_of(message.content["arrays"]).to(place)
    x, y = (torch.from_numpy(part).to(place) for part in samples(int(context.node_config["partition-id"])))
    optimizer = torch.optim.SGD(module.parameters(), lr=message.content["config"]["lr"])
    for _ in range(5):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            (cross_entropy(module(x[batch]), y[batch]) + term(module)).backward()
            optimizer.step()
    return module.cpu().state_dict()


def reply(message: Message, state: dict, examples: int = 40) -> Message:
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": examples})}
    return Message(content=RecordDict(content), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    return reply(message, trained(message, context))


@torch.no_grad()
def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    x, y = map(torch.from_numpy, test())
    right = (module_of(arrays)(x).argmax(1) == y).float().mean()
    return MetricRecord({"accuracy": float(right)})


def run(
    strategy: FedAvg,
    app: ClientApp = client,
    lr: float = 0.1,
    evaluate: Callable = evaluate,
    backend: dict | None = None,
) -> Result:
    server, results = ServerApp(), []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start, config = ArrayRecord(network().state_dict()), ConfigRecord({"lr": lr})
        results.append(strategy.start(grid, start, num_rounds=3, train_config=config, evaluate_fn=evaluate))

    run_simulation(server, app, CLIENTS, backend_config=backend)
    return results[0]


def accuracy(result: Result) -> list[float]:
    return [record["accuracy"] for record in result.evaluate_metrics_serverapp.values()]


if __name__ == "__main__":
    print("accuracy", accuracy(run(FedAvg(**DRAWN))))
