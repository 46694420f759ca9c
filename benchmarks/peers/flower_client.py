"""What Flower's clients do, in both of its APIs: a module of its own, so that workers import it by name.

A worker's process opens the samples and makes the network once; the runner says in the environment what the
job is, which Ray's processes inherit.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from networks import Trainer
from numpy.typing import NDArray
from work import WORKS, Job

VARIABLE = "BENCHMARK_JOB"
EXAMPLES = "num-examples"

app = ClientApp()


@cache
def job() -> Job:
    return Job.of_json(os.environ[VARIABLE])


@cache
def trainer() -> Trainer:
    """This process's, for all of the clients that it plays."""
    return Trainer(job(), WORKS[job().work])


def trained(arrays: list[NDArray[Any]], user: int, round_: int) -> list[NDArray[Any]]:
    """A user's epoch; the arrays given back are the trainer's own."""
    own = trainer()
    for view, array in zip(own.views.values(), arrays, strict=True):
        np.copyto(view, array)
    own.train(user, round_)
    return list(own.views.values())


@app.train()
def train(message: Message, context: Context) -> Message:
    """The message API."""
    record = message.content["arrays"]
    if WORKS[job().work].trains:
        user, round_ = (
            int(context.node_config["partition-id"]),
            int(message.content["config"]["server-round"]),
        )
        record = ArrayRecord(trained(record.to_numpy_ndarrays(), user, round_ - 1))
    metrics = MetricRecord({EXAMPLES: max(1, WORKS[job().work].samples)})
    return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


class Legacy(NumPyClient):
    """The API of clients."""

    def __init__(self, user: int) -> None:
        self._user = user

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Any:
        if WORKS[job().work].trains:
            parameters = trained(parameters, self._user, config["round"] - 1)
        return parameters, max(1, WORKS[job().work].samples), {}


def client_of(context: Context) -> Client:
    return Legacy(int(context.node_config["partition-id"])).to_client()


torch.set_num_threads(1)
