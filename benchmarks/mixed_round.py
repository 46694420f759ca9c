"""Does each kind of cheap update help the round it joins? One kind at a time, against dropping stragglers.

    .venv/bin/python benchmarks/mixed_round.py             # 4 seeds, 12 rounds, about 6 minutes
    .venv/bin/python benchmarks/mixed_round.py --seeds 1   # a look

The demo's bundle and hyperparameters, on digits divided by Dirichlet(0.3), without broker or clock. The
trained head is served, so few-shot heads join the base. Five devices send full updates in every round; the
other three send nothing, or all of them one kind of cheap update. The figures are the
accuracy of the served model in the last round and its mean over all rounds (which rewards learning sooner).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.simulation import digits, partition
from device_runtime.simulation.demo.fleet import MIXED
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.merging.merge import merge

DEVICES, STRAGGLERS, ALPHA = 8, 3, 0.3


def learn(cheap: AnyStrategy | None, full: AnyStrategy, seed: int, rounds: int) -> list[float]:
    """Accuracy of the served model after each round."""
    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    model, prepare = OnnxModel(bundle), bundle.manifest.input.prepare
    split = digits.load(np.random.default_rng(seed))
    x, y = prepare(split.train.x), split.train.y
    parts = partition.dirichlet(y, DEVICES, ALPHA, np.random.default_rng([seed, 1]))
    fleet = [full] * (DEVICES - STRAGGLERS) + [cheap] * STRAGGLERS
    base, curve = bundle.weights(), []
    for number in range(1, rounds + 1):
        model.load(base)
        distributed = RoundModel(bundle.manifest, base, number, seed=1000 * seed + number)
        states = {kind: kind.start(distributed) for kind in (full, cheap) if kind}
        for name, (kind, part) in enumerate(zip(fleet, parts, strict=True)):
            if kind:
                run = Run(distributed.seed, str(name), lambda: 0.0, 1.0)
                sent = kind.train(model, LocalData(x[part], y[part]), run)
                states[kind] = kind.fold(states[kind], sent, sent.num_examples)
        merged = merge(
            distributed, {kind.name: kind.finish(state, distributed) for kind, state in states.items()}
        )
        base = dict(merged.base)
        model.load(merged.served)
        curve.append(accuracy_and_loss(model.logits(prepare(split.test.x)), split.test.y).eval_acc)
    return curve


def joining(kind: AnyStrategy) -> AnyStrategy:
    """The kind as rounds offer it whose trained head is served."""
    return replace(kind, join_base=True) if isinstance(kind, FewShot) else kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    full, *cheap = [joining(kind.strategy) for kind in MIXED]
    rows = []
    for kind in (None, *cheap, full):
        curves = [learn(kind, full, seed, options.rounds) for seed in range(options.seeds)]
        last = [100 * curve[-1] for curve in curves]
        spread = f" ± {stdev(last):.1f}" if len(last) > 1 else ""
        name = "nothing (dropped)" if kind is None else kind.name
        rows.append((name, f"{mean(last):.1f}{spread}", f"{100 * mean(map(mean, curves)):.1f}"))
        print(f"{name}: {', '.join(f'{value:.1f}' for value in last)}", flush=True)
    headers = ("three stragglers send", f"accuracy, round {options.rounds}, %", "mean over rounds, %")
    print()
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
