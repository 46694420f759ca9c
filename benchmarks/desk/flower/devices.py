import torch
from fedavg import DRAWN, module_of, run, train
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from samples import CLIENTS, samples

client, by_device = ClientApp(), {}
client.train()(train)


@client.evaluate()
@torch.no_grad()
def evaluate(message, context):
    user = int(context.node_config["partition-id"])
    x, y = map(torch.from_numpy, samples(user))
    right = (module_of(message.content["arrays"])(x).argmax(1) == y).float().mean()
    metrics = MetricRecord({"user": user, "accuracy": float(right), "num-examples": len(y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def gathered(contents, weighted_by_key):
    for content in contents:
        by_device[content["metrics"]["user"]] = content["metrics"]["accuracy"]
    return MetricRecord({"accuracy": sum(by_device.values()) / len(by_device)})


if __name__ == "__main__":
    every = {**DRAWN, "fraction_evaluate": 1.0}
    run(FedAvg(**every, min_available_nodes=CLIENTS, evaluate_metrics_aggr_fn=gathered), client)
    for user, accuracy in sorted(by_device.items()):
        print(user, accuracy)
    worst = sorted(by_device.values())[: max(1, CLIENTS // 10)]
    print("accuracy of the worst tenth", sum(worst) / len(worst))
