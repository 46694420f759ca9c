"""Flower's legacy API: start_simulation with server.strategy.FedAvg and NumPy clients, simulated on Ray.

As many Ray actors as processes are asked for, of one core and one thread each. No evaluation, no log, no
telemetry, no dashboard. A round ends when the server asks the strategy to evaluate, which takes the time.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import flower_client
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import start_simulation
from work import Job, report, weights


class Timed(FedAvg):
    """FedAvg that notes when rounds end, and the last weights."""

    def __init__(self, job: Job, start: Parameters) -> None:
        share = (job.cohort + 0.5) / job.users if job.cohort < job.users else 1.0
        super().__init__(
            fraction_fit=share,
            fraction_evaluate=0.0,
            min_fit_clients=job.cohort,
            min_evaluate_clients=0,
            min_available_clients=job.users,
            initial_parameters=start,
            on_fit_config_fn=lambda round_: {"round": round_},
        )
        self.marks: list[float] = []
        self.last = start

    def evaluate(self, server_round: int, parameters: Parameters) -> Any:
        self.marks.append(time.perf_counter())
        self.last = parameters


def main() -> None:
    job = Job.read(__doc__)
    os.environ |= {flower_client.VARIABLE: job.json(), "FLWR_TELEMETRY_ENABLED": "0"}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    started = weights(job)
    strategy = Timed(job, ndarrays_to_parameters(list(started.values())))
    start_simulation(
        client_fn=flower_client.client_of,
        num_clients=job.users,
        client_resources={"num_cpus": 1, "num_gpus": 0.0},
        config=ServerConfig(num_rounds=job.rounds),
        strategy=strategy,
        ray_init_args={
            "num_cpus": job.workers,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        },
    )
    report(
        job,
        strategy.marks,
        lambda: dict(zip(started, parameters_to_ndarrays(strategy.last), strict=True)),
        ("flwr", "ray", "torch", "numpy"),
    )
    os._exit(0)  # its timer of ten seconds would keep the process


if __name__ == "__main__":
    main()
