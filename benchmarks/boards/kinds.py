"""Every kind of update as a task of one round, on small networks for digits of 8x8, or a given bundle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
DIGITS = ("--input", "1,8,8", "--scale", "0.0625", "--labels", "0,1,2,3,4,5,6,7,8,9")
TEACHING = ("train", "attention", "prototype", "distil")
LEVELS = ("low", "mid", "up")
TAUGHT = ("attention-transfer", "prototypes")
"""Kinds whose aggregator teaches on samples that are nobody's."""


@dataclass(frozen=True)
class Trial:
    """A kind with settings, of a bundle (and smaller ones) by name; `more`: kinds offered after it."""

    kind: str
    bundle: str
    settings: dict[str, object] = field(default_factory=dict)
    family: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind} {self.settings.get('tunable', '')}".rstrip()

    def task(self, bundles: Path) -> str:
        """TOML of a task of one round."""
        settings = ", ".join(f"{key} = {value!r}" for key, value in self.settings.items())
        nobodys = bundles / "generic.npz"
        generic = f'generic = "{nobodys}"' if self.kind in TAUGHT else ""
        more = "".join(f'[[kinds]]\nname = "{kind}"\n' for kind in self.more)
        return f"""
name = "trial"
rounds = 1
round_deadline_s = 900.0
bundle = "{bundles / self.bundle}"
family = [{", ".join(f'"{bundles / name}"' for name in self.family)}]
{generic}
[[kinds]]
name = "{self.kind}"
settings = {{ {settings} }}
{more}"""


EVERY_BUNDLE = (
    "full",
    "full+few-shot",
    "entropy-subset",
    "few-shot",
    "local-zeroth-order",
    "zeroth-order",
    "class-means",
)
SETS = {"tuned": ("head", "bias", "lora"), "vit": ("adapter", "prompt", "prefix", "lora")}
TRIALS = (
    *(Trial(kind, "tuned") for kind in EVERY_BUNDLE),
    Trial("sparse", "tuned"),
    *(Trial("peft", bundle, {"tunable": tunable}) for bundle, sets in SETS.items() for tunable in sets),
    Trial("width-slice", "plain", {"members": ["half"]}, ("half",)),
    Trial("representatives", "taught"),
    Trial("attention-transfer", "taught", {}, ("small",)),
    Trial("prototypes", "taught", {}, ("small",)),
)
"""All of the registry, on the networks below."""


def export(folder: Path) -> None:
    """The networks of TRIALS, 80 digits as a device's data and 120 as nobody's, unless they are there."""
    if (folder / "generic.npz").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sets = ("all", "mid", "head", "bias", "lora", "sparse")
    _cnn(folder / "tuned", 0.25, sets)
    _cnn(folder / "plain", 0.25, ("all", "mid", "head"))
    _cnn(folder / "half", 0.125, ("all",))
    _cnn(folder / "taught", 0.25, ("all", "mid"), (*TEACHING, "above-low"), LEVELS)
    _cnn(folder / "small", 0.25, ("all",), TEACHING, LEVELS)
    vit = {"in_channels": 1, "image": 8, "patch": 4, "depth": 3, "dim": 16, "heads": 2}
    _exported(folder / "vit", "vit", vit, (*_repeated("--tunable", ("head", *SETS["vit"])), *DIGITS))
    from sklearn.datasets import load_digits

    digits = load_digits()
    for name, which in (("data", slice(80)), ("generic", slice(-120, None))):
        np.savez(folder / f"{name}.npz", x=digits.images[which].astype(np.uint8), y=digits.target[which])


def _cnn(
    out: Path,
    width: float,
    sets: Iterable[str],
    objectives: Iterable[str] = ("train",),
    maps: Iterable[str] = (),
) -> None:
    words = (("--tunable", sets), ("--objective", objectives), ("--features", maps))
    more = [word for name, values in words for word in _repeated(name, values)]
    _exported(out, "cnn", {"in_channels": 1, "size": 8, "width": width}, (*more, *DIGITS))


def _exported(
    out: Path, network: str, settings: dict[str, int] | dict[str, float], more: Iterable[str]
) -> None:
    settings_ = _repeated("--set", (f"{name}={value}" for name, value in settings.items()))
    subprocess.run(
        [COMMAND, "export", network, *settings_, *more, "--out", str(out)], check=True, capture_output=True
    )


def _repeated(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (name, value)]
