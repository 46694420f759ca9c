"""What the network of a bundle of benchmarks/language_rounds.py learns in one place, by Adam on all weights.

python benchmarks/language_pooled.py --bundle runs/language/word-40-0
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from device_runtime.models import networks
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.data import DataSpec, load

DATA = os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data")


def main() -> None:
    """Says the loss and the accuracy on test sentences after each epoch."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--samples", type=int, default=4000)
    options.add_argument("--tests", type=int, default=600)
    options.add_argument("--epochs", type=int, default=3)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bundle = Bundle.open(arguments.bundle)
    spec = DataSpec(source="sst2", path=DATA, max_train=arguments.samples, max_test=arguments.tests)
    data = load(spec, 0, bundle)
    x, test_x = (torch.from_numpy(part.astype(np.int64)) for part in (data.train_x, data.test_x))
    y, test_y = torch.from_numpy(data.train_y), torch.from_numpy(data.test_y)
    source, weights = bundle.manifest.source, bundle.weights()
    module = networks.build(source.network, source.settings).eval()
    own = {name: torch.from_numpy(weights[name]) for name in module.state_dict() if name in weights}
    module.load_state_dict(own, strict=False)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for epoch in range(1, arguments.epochs + 1):
        losses = []
        for rows in torch.randperm(len(x)).split(32):
            loss = torch.nn.functional.cross_entropy(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            right = (module(test_x).argmax(1) == test_y).double().mean().item()
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, accuracy {right:.1%}", flush=True)


if __name__ == "__main__":
    main()
