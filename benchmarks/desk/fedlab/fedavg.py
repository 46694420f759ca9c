import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from samples import CLIENTS, network, samples, test
from torch.utils.data import DataLoader, TensorDataset


class OwnDataset(FedDataset):
    def get_dataloader(self, id, batch_size=None):  # noqa: A002
        x, y = map(torch.from_numpy, samples(id))
        return DataLoader(TensorDataset(x, y), batch_size=batch_size or len(y), shuffle=True)


def run(trainer=None, handler=None, lr=0.1, **optim):
    trainer = trainer or SGDSerialClientTrainer(network(), CLIENTS)
    handler = handler or SyncServerHandler(network(), global_round=3, sample_ratio=0.5)
    handler.num_clients = CLIENTS
    trainer.setup_dataset(OwnDataset())
    trainer.setup_optim(5, 32, lr, **optim)
    accuracies = []
    while not handler.if_stop:
        drawn = handler.sample_clients()
        trainer.local_process(handler.downlink_package, drawn)
        for package in trainer.uplink_package:
            handler.load(package)
        x, y = map(torch.from_numpy, test())
        with torch.no_grad():
            accuracies.append((handler.model(x).argmax(1) == y).float().mean().item())
    return accuracies


if __name__ == "__main__":
    print("accuracy", run())
