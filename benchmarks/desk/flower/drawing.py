from collections import Counter
from typing import ClassVar

from fedavg import DRAWN, accuracy, run
from flwr.app import MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg


class InTurn(FedAvg):
    turns: ClassVar[Counter[int]] = Counter()

    def configure_train(self, server_round, arrays, config, grid):
        config["server-round"] = server_round
        nodes = sorted(grid.get_node_ids(), key=lambda node: (self.turns[node], node))[:10]
        self.turns.update(nodes)
        record = RecordDict({"arrays": arrays, "config": config})
        return self._construct_messages(record, nodes, MessageType.TRAIN)


if __name__ == "__main__":
    print("accuracy", accuracy(run(InTurn(**DRAWN))))
