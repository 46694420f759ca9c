"""pfl (apple/pfl-research) with torch: FederatedAveraging over SimulatedBackend, on a GPU if there is one.

Two processes with one thread each, as its guide "Fast distributed simulations" starts them without torchrun
(which would be a third): PFL_WORKER_ADDRESSES and PFL_WORKER_RANK, joined by gloo. Users are drawn with its
own "random" sampler; no evaluation, no metrics to the platform, no postprocessors, no weights of users (all
have equally many samples, so that sorting them would only cost a third process). Each user is a
pfl.data.dataset.Dataset in memory, which the guide calls the fastest, cut from the mapped files when the user
is trained. Local optimiser: torch.optim.SGD with foreach; central one: SGD with lr 1.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from work import Job


def main() -> None:
    """Starts the other processes, unless this is one of them."""
    job = Job.read(__doc__)
    others = [] if "PFL_WORKER_RANK" in os.environ else start_others(job)
    from pfl_task import run  # now: pfl reads the environment, and joins the others, when it is imported

    run(job)
    for other in others:
        other.wait()


def start_others(job: Job) -> list[subprocess.Popen[bytes]]:
    """Processes 1, 2, ..; afterwards the environment says that this one is 0."""
    if job.workers == 1:
        return []
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port}" for _ in range(job.workers))
    command = [sys.executable, __file__, *job.flags()]
    ranks = [{**os.environ, "PFL_WORKER_RANK": str(rank)} for rank in range(1, job.workers)]
    others = [subprocess.Popen(command, env=environment) for environment in ranks]
    os.environ["PFL_WORKER_RANK"] = "0"
    return others


if __name__ == "__main__":
    main()
