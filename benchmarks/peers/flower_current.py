"""Flower's present API: a ServerApp with the strategy FedAvg and a ClientApp, simulated on Ray.

As many Ray actors as processes are asked for, of one core each (its own default is two cores for each client,
which would be one actor here), and one thread in each. Its message API; every client trains on the module's
own copy of the network, which a process makes once. No evaluation, no log, no telemetry, no dashboard.
A round ends when the strategy asks for the evaluation on the server, which only takes the time.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import flower_client
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Arrays, Job, report, weights


def main() -> None:
    job = Job.read(__doc__)
    os.environ |= {flower_client.VARIABLE: job.json(), "FLWR_TELEMETRY_ENABLED": "0"}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    started, marks, finals = weights(job), [], []
    server = ServerApp()

    def mark(round_: int, arrays: ArrayRecord) -> None:
        marks.append(time.perf_counter())

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=(job.cohort + 0.5) / job.users if job.cohort < job.users else 1.0,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.users,
        )
        start = ArrayRecord(list(started.values()))
        result = strategy.start(grid, start, num_rounds=job.rounds, evaluate_fn=mark)
        finals.append(result.arrays)

    resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0.0}
    config: dict[str, Any] = {
        "client_resources": resources,
        "init_args": {"num_cpus": job.workers, "log_to_driver": False, "logging_level": "error"},
    }
    run_simulation(server, flower_client.app, job.users, backend_config=config)

    def final() -> Arrays:
        return dict(zip(started, finals[0].to_numpy_ndarrays(), strict=True))

    report(job, marks, final, ("flwr", "ray", "torch", "numpy"))


if __name__ == "__main__":
    main()
