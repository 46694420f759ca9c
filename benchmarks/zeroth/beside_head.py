"""Biases by scalars, beside a head that was trained by gradient, as ElasticZO divides the work.

    .venv/bin/python benchmarks/zeroth_order.py biases                 # SqueezeNet 1.0, CIFAR-10 at 32 pixels
    .venv/bin/python benchmarks/zeroth_order.py biases --data speech
    .venv/bin/python benchmarks/zeroth_order.py biases --size 64 --first 12 --passes 300

The head begins as class means and is trained on features, which one pass gives, to the smallest loss on a
part that is held back. The biases of the layers from `first` on then take steps by scalars, written out by
themselves, in torch; the network is balanced, so that one unit, 1/32, is right for all of them. At last the
head is trained anew, on the features that there are then. First order trains both, by SGD. Of several rates
that of the smallest loss on the part held back is shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

from .pretrained import backbone, balance, loaded, pictures, prepared

EPS, UNIT, DIRECTIONS, PART = 1e-3, 1 / 32, 4, 100
HELD_BACK, TEST = 800, 1500
Biases = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """`sampled`: the part of the samples that a round's losses are of. `by_tensor`: in units of each tensor's
    own root mean square, 1/1024 or more, a power of two."""

    rates: tuple[float, ...]
    sides: int = 1
    sampled: float = 1.0
    by_tensor: bool = False


OPTIONS: Mapping[str, Option] = {
    "one side": Option((0.03, 0.1)),
    "one side, a tenth of the samples": Option((0.03, 0.1), sampled=0.1),
    "two sides, a tenth of the samples": Option((0.03, 0.1), sides=2, sampled=0.1),
    "one side, a tenth, by tensor": Option((1.0, 4.0), sampled=0.1, by_tensor=True),
}
FIRST_ORDER, EPOCHS = (0.003, 0.01), (3, 10)


@dataclass(frozen=True)
class Reached:
    """Loss on the part held back; accuracy there and on the test part."""

    loss: float
    held_back: float
    test: float


class Network:
    """What lies before `first` is computed once. x, y: those trained on, held back, tested on."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        data = loaded(args.data, args.size if args.data == "cifar10" else 32)
        rows = np.random.default_rng(args.seed).permutation(len(data.train_y))[: args.samples + HELD_BACK]
        parts = {
            "train": (data.train_x[rows[: args.samples]], data.train_y[rows[: args.samples]]),
            "held back": (data.train_x[rows[args.samples :]], data.train_y[rows[args.samples :]]),
            "test": (data.test_x[:TEST], data.test_y[:TEST]),
        }
        images = {
            name: torch.from_numpy(np.concatenate([prepared(part) for part in pictures(x, args.size)]))
            for name, (x, _) in parts.items()
        }
        module = backbone(len(data.labels)).requires_grad_(False)
        balance(module, images["train"][:200])
        layers = list(module.features)
        before, self._late = (
            torch.nn.Sequential(*layers[: args.first]),
            torch.nn.Sequential(*layers[args.first :]),
        )
        self.x = {name: torch.cat([before(part) for part in x.split(PART)]) for name, x in images.items()}
        self.y = {name: torch.from_numpy(y.astype(np.int64)) for name, (_, y) in parts.items()}
        self.classes = len(data.labels)
        self.biases: Biases = {n: p.clone() for n, p in self._late.named_parameters() if n.endswith("bias")}
        raw = torch.cat([self._maps(x, self.biases) for x in self.x["train"].split(PART)])
        self._scale = 1 / float(raw.square().mean().sqrt())

    def _maps(self, x: Any, biases: Biases) -> Any:
        from torch.func import functional_call

        return functional_call(self._late, dict(biases), (x,)).mean((2, 3))

    def features(self, x: Any, biases: Biases) -> Any:
        """float32 (n, 513): of a root mean square of about 1, and a column of ones."""
        import torch

        maps = [self._maps(part, biases) * self._scale for part in x.split(PART)]
        return torch.nn.functional.pad(torch.cat(maps), (0, 1), value=1.0)

    def all_features(self, biases: Biases) -> dict[str, Any]:
        import torch

        with torch.no_grad():
            return {name: self.features(x, biases) for name, x in self.x.items()}

    def loss(self, x: Any, y: Any, biases: Biases, head: Any) -> Any:
        import torch

        return torch.nn.functional.cross_entropy(self.features(x, biases) @ head.T, y)

    def class_means(self) -> Any:
        import torch

        of, y = self.all_features(self.biases)["train"], self.y["train"]
        rows = torch.stack([of[y == label].mean(0) for label in range(self.classes)])
        rows[:, -1] = 0
        return rows / rows.norm(dim=1, keepdim=True)

    def trained(self, head: Any, biases: Biases) -> Any:
        """The head after steps of momentum: that of the smallest loss on the part held back."""
        import torch

        of, velocity, best = self.all_features(biases), torch.zeros_like(head), (np.inf, head)
        targets = torch.nn.functional.one_hot(self.y["train"], self.classes)
        for step in range(400):
            slope = ((of["train"] @ head.T).softmax(1) - targets).T @ of["train"] / len(targets)
            velocity = 0.9 * velocity + slope
            head = head - 0.03 * velocity
            if step % 5 == 4:
                logits = of["held back"] @ head.T
                loss = float(torch.nn.functional.cross_entropy(logits, self.y["held back"]))
                best = min(best, (loss, head), key=lambda each: each[0])
        return best[1]

    def reached(self, head: Any, biases: Biases) -> Reached:
        import torch

        of = {name: (x @ head.T, self.y[name]) for name, x in self.all_features(biases).items()}
        right = {name: float((logits.argmax(1) == y).float().mean()) for name, (logits, y) in of.items()}
        loss = float(torch.nn.functional.cross_entropy(*of["held back"]))
        return Reached(loss, right["held back"], right["test"])


def by_scalars(net: Network, head: Any, option: Option, rate: float, passes: int) -> Iterator[Biases]:
    """The biases after a third of the passes, and after all."""
    import torch

    drawn, count, biases = torch.Generator().manual_seed(0), len(net.y["train"]), dict(net.biases)
    units = {name: _own(value) if option.by_tensor else UNIT for name, value in biases.items()}
    batch, total, weight = round(option.sampled * count), 0.0, 0.0
    losses = DIRECTIONS + 1 if option.sides == 1 else 2 * DIRECTIONS
    rounds = round(passes * count / (losses * batch))
    for at in range(1, rounds + 1):
        rows = torch.randperm(count, generator=drawn)[:batch]
        x, y = net.x["train"][rows], net.y["train"][rows]

        def loss(z: Biases, length: float, x: Any = x, y: Any = y) -> float:
            moved = {name: biases[name] + length * units[name] * z[name] for name in biases}
            with torch.no_grad():
                return float(net.loss(x, y, moved, head).double())

        zs = [
            {
                name: torch.randint(0, 2, value.shape, generator=drawn) * 2.0 - 1
                for name, value in biases.items()
            }
            for _ in range(DIRECTIONS)
        ]
        base = loss(zs[0], 0.0) if option.sides == 1 else 0.0
        ends = [(loss(z, EPS), base if option.sides == 1 else loss(z, -EPS)) for z in zs]
        scalars = np.array([(up - down) / (option.sides * EPS) for up, down in ends])
        total, weight = 0.99 * total + 0.01 * np.square(scalars).mean(), 0.99 * weight + 0.01
        scalars *= rate / np.sqrt(DIRECTIONS * total / weight)
        for name in biases:
            step = sum(float(g) * z[name] for g, z in zip(scalars, zs, strict=True))
            biases[name] = biases[name] - units[name] * step
        if at in (rounds // 3, rounds):
            yield dict(biases)


def _own(value: Any) -> float:
    return float(2.0 ** np.round(np.log2(max(float(value.square().mean().sqrt()), 2.0**-10))))


def by_gradient(net: Network, head: Any, rate: float) -> Iterator[tuple[Any, Biases]]:
    """Head and biases after some epochs."""
    import torch

    biases = {name: value.clone().requires_grad_() for name, value in net.biases.items()}
    head = head.clone().requires_grad_()
    groups = [{"params": list(biases.values()), "lr": rate}, {"params": [head], "lr": rate / 10}]
    optimiser, drawn = torch.optim.SGD(groups, momentum=0.9), torch.Generator().manual_seed(0)
    for epoch in range(1, max(EPOCHS) + 1):
        for rows in torch.randperm(len(net.y["train"]), generator=drawn).split(32):
            optimiser.zero_grad()
            net.loss(net.x["train"][rows], net.y["train"][rows], biases, head).backward()
            optimiser.step()
        if epoch in EPOCHS:
            yield head.detach(), {name: value.detach() for name, value in biases.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", choices=("cifar10", "speech"), default="cifar10")
    add("--size", type=int, default=32, help="pixels of a side (default: 32)")
    add("--first", type=int, default=7, help="layer from which on biases are moved (default: 7, of 13)")
    add("--samples", type=int, default=1000, help="that are trained on (default: 1000)")
    add("--passes", type=int, default=300, help="over them, by scalars (default: 300)")
    add("--seed", type=int, default=0, help="of the division (default: 0)")
    add("--rates", type=float, nargs="+", default=[], help="in place of each option's own")
    add("--options", nargs="+", choices=tuple(OPTIONS), default=list(OPTIONS))


def run(args: argparse.Namespace) -> None:
    net = Network(args)
    means = net.class_means()
    head = net.trained(means, net.biases)
    rows: list[tuple[Any, ...]] = []

    def tell(name: str, rate: float | str, passes: int, reached: Reached) -> None:
        figures = (f"{reached.loss:.3f}", f"{100 * reached.held_back:.1f}", f"{100 * reached.test:.1f}")
        rows.append((name, rate, passes, *figures))
        print(*rows[-1], flush=True)

    tell("class means", "", 1, net.reached(means, net.biases))
    tell("and the head by gradient", "", 1, net.reached(net.trained(head, net.biases), net.biases))
    for name in args.options:
        tried = {
            rate: [
                net.reached(net.trained(head, biases), biases)
                for biases in by_scalars(net, head, OPTIONS[name], rate, args.passes)
            ]
            for rate in args.rates or OPTIONS[name].rates
        }
        rate, best = min(tried.items(), key=lambda each: each[1][-1].loss)
        for part, reached in zip((3, 1), best, strict=True):
            tell(f"biases by scalars: {name}", rate, args.passes // part, reached)
    ends = {
        rate: [net.reached(net.trained(*end), end[1]) for end in by_gradient(net, head, rate)]
        for rate in FIRST_ORDER
    }
    rate, best = min(ends.items(), key=lambda each: each[1][-1].loss)
    for epoch, reached in zip(EPOCHS, best, strict=True):
        tell("both by gradient", rate, 3 * epoch, reached)
    count = sum(value.numel() for value in net.biases.values())
    columns = (f"{count} biases", "rate", "passes", "loss held back", "accuracy there", "on the test part, %")
    print(tabulate(rows, columns, tablefmt="github", disable_numparse=True))
