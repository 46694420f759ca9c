"""Choice tables: devices, rounds and samples, and what is chosen for them and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import replace as replace_masks

from device_runtime.broker.wire.messages import HelperKey, Masks, Shortages
from device_runtime.device.masking.upload_terms import upload_terms
from device_runtime.device.selection.choose import MAIN, Candidate, UpdateChoice, choose
from device_runtime.device.selection.resting import RestRule
from device_runtime.device.training.work import Timing, WorkOutcome, corrected
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Speed
from device_runtime.profiles import shipped as board
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

BUNDLE = "digits-wrn-10-1"
USUAL = [(name, {}) for name in registry.DEFAULT_KINDS]
EVENLY, ONE_CLASS, NONE = (18,) * 10, (0, 0, 40, *(0,) * 7), (0,) * 10
RICH = [
    ("full", {"epochs": 5, "graded": True}),
    ("peft", {"tunables": ["bias", "head"]}),
    ("peft", {"tunable": "head", "epochs": 3}),
    ("entropy-subset", {"shares": [0.1, 0.5, 0.25], "codec": "delta+int8+deflate", "graded": True}),
    ("entropy-subset", {"shares": [0.125], "select": "random", "least_samples": 25}),
    ("few-shot", {"shots": 3, "codec": "half"}),
    ("zeroth-order", {"num_z": 3}),
    ("class-means", {"head": "nearest-mean"}),
]
CODED = [
    ("full", {"codec": word}) for word in ("int8", "delta+half", "deflate", "delta+deflate", "half+deflate")
]
MEASURED = {"numbers": "float16", "smallest_count": 10, "samples": 30}
WANTED = Shortages(bytes([0, 20, 40, *[10] * 7]), bytes([0, 0, 45, *[60] * 7]))
SEEDS = (3, 17, 2**40, 2**63 + 5)
MASKS = ("capacity", "noise_milli", "alone")
"""What matters of masks to a choice."""
NEAR = {"cost": 1e-14, "after": 1e-14}
"""Sums of a few float64 numbers, which Python 3.12 and later add without the error that 3.11 makes."""


@dataclass(frozen=True)
class Case:
    profile: DeviceProfile
    kinds: Sequence[tuple[str, dict[str, Any]]]
    counts: tuple[int, ...]
    remaining_s: float
    masks: Masks | None = None


def measured(profile: DeviceProfile) -> DeviceProfile:
    """As one that has timed some of the graphs, seen what they hold, and been wrong before."""
    speed = Speed(
        2.5e9,
        {"forward": 0.0004, "train.all": 0.0021, "train.mid": 0.0015, "loss.all": 0.00041},
        "measured on this bundle",
        {"forward": 0.03, "train.all": 0.11, "train.mid": 0.08, "loss.all": 0.035},
        1.5e-5,
        {"forward": 14_000_000, "train.all": 23_456_789},
        2 << 20,
    )
    memory = Memory(2**31, 180_500_000, 100_000_000)
    corrections = {"full": 1.7, "few-shot": 0.4}
    return replace(profile, speed=speed, memory=memory, corrections=corrections, growth={"full": 1.3})


def cases() -> Iterator[Case]:
    for name in ("pi-zero-2w", "pi-4", "phone-mid"):
        for remaining_s in (60.0, 3.0, 0.25):
            yield Case(board(name), USUAL, EVENLY, remaining_s)
    here = measured(board("pi-4"))
    small = replace(here, memory=Memory(2**29, 118_000_000, 100_000_000))
    for profile in (here, small):
        for kinds in (USUAL, RICH, CODED):
            for counts in (EVENLY, ONE_CLASS, NONE):
                yield Case(profile, kinds, counts, 2.0)
    yield Case(here, [*RICH[1:], ("peft", {"tunable": "lora"})], (500,) * 10, 1.0)
    pooled = [(name, {**settings, "statistics": MEASURED}) for name, settings in RICH]
    short = [(name, {**settings, "statistics": {"numbers": "int8"}}) for name, settings in USUAL]
    with_statistics = [(name, {**settings, "statistics": {"hold_out": 0.15}}) for name, settings in USUAL]
    for profile in (here, small):
        for kinds in (pooled, short):
            for counts in (EVENLY, ONE_CLASS, NONE):
                yield Case(profile, kinds, counts, 2.0)
    for counts in (EVENLY, ONE_CLASS):
        yield Case(here, with_statistics, counts, 2.0)
    slow = replace(here, bandwidth=Bandwidth(300.0, 300.0))
    for remaining_s in (3.0, 12.0, 60.0):
        yield Case(slow, short, EVENLY, remaining_s)
    few = [(name, {"statistics": {"most_classes": 6}}) for name in ("class-means", "zeroth-order")]
    for up in (5.0, 14.0, 30.0, 50.0, 70.0):
        narrow = replace(here, bandwidth=Bandwidth(up, 300.0))
        for kinds in (few, short[-2:], short):
            yield Case(narrow, kinds, EVENLY, 20.0)
    joined = [(name, {"join_base": True} if name == "few-shot" else {}) for name, _ in USUAL]
    masks = Masks(helpers=(HelperKey("a", bytes(32)),), min_group=2, capacity=64, most_weight=100)
    for alone in ((), ("full",), ("full", "entropy-subset", "few-shot"), registry.DEFAULT_KINDS):
        for kinds in (USUAL, joined, short):
            yield Case(here, kinds, EVENLY, 2.0, replace_masks(masks, alone=alone))
    noisy = replace_masks(masks, noise_milli=1000, clip_milli=1000)
    yield Case(here, RICH, EVENLY, 2.0, noisy)
    yield Case(small, pooled, EVENLY, 2.0, noisy)
    for up in (30.0, 1e3, 1e4):
        narrow = replace(here, bandwidth=Bandwidth(up, 300.0))
        for kinds in (pooled, short):
            yield Case(narrow, kinds, EVENLY, 20.0, masks)


def vectors() -> dict[str, Any]:
    bundle = Bundle.open(shipped_folder(BUNDLE))
    return {
        "bundle": BUNDLE,
        "workload": _workload(bundle),
        "shortages": [list(WANTED.statistics), list(WANTED.training)],
        "tables": [_table(case, bundle) for case in cases()],
        "corrected": [_corrected(*round_) for round_ in _rounds()],
    }


def _workload(bundle: Bundle) -> dict[str, Any]:
    load = workload(bundle.manifest, EVENLY)
    graphs = {
        name: [g.flops, g.fixed_bytes, g.bytes_per_sample, g.rows, g.file_bytes]
        for name, g in load.graphs.items()
    }
    return {
        "counts": EVENLY,
        "graphs": graphs,
        "parameters": dict(load.parameters),
        "tensors": dict(load.tensors),
        "sizes": [load.weights_bytes, load.download_bytes, load.feature_width, load.sample_bytes],
    }


def _table(case: Case, bundle: Bundle) -> dict[str, Any]:
    load = replace(workload(bundle.manifest, case.counts), download_bytes=0)
    kinds = [registry.make(name, settings) for name, settings in case.kinds]
    terms = upload_terms(case.masks, kinds, lambda _: bundle.manifest) if case.masks else None
    plan = choose(case.profile, kinds, {MAIN: load}, case.remaining_s, upload_terms=terms)
    return {
        "profile": _profile(case.profile),
        "kinds": case.kinds,
        "counts": case.counts,
        "remaining_s": case.remaining_s,
        "masks": case.masks and {name: getattr(case.masks, name) for name in MASKS},
        "chosen": plan.chosen.label if plan.chosen else "",
        "straggler": plan.straggler.reasons,
        "rests": {str(seed): RestRule.of(WANTED, seed, "pi-ü").reason(plan, load) for seed in SEEDS},
        "reasons": plan.reasons,
        "candidates": [_candidate(candidate) for candidate in plan.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    cost = candidate.cost
    figures = cost and [
        *(cost.seconds, cost.compute_s, cost.peak_memory_bytes),
        *(cost.bytes_up, cost.bytes_down, cost.energy_j, cost.flops),
    ]
    return {"label": candidate.label, "cost": figures, "misfits": candidate.misfits}


def _profile(profile: DeviceProfile) -> dict[str, Any]:
    memory, speed, link, power = profile.memory, profile.speed, profile.bandwidth, profile.power
    return {
        "name": profile.name,
        "cores": profile.cores,
        "memory": [memory.total_bytes, memory.limit_bytes, memory.resident_bytes],
        "speed": {
            "flops_per_s": speed.flops_per_s,
            "seconds": dict(speed.seconds),
            "opening": dict(speed.opening),
            "step_s": speed.step_s,
            "held_bytes": dict(speed.held_bytes),
            "run_bytes": speed.run_bytes,
        },
        "bandwidth": [link.up, link.down],
        "power": [power.idle_w, power.load_w],
        "corrections": dict(profile.corrections),
        "growth": dict(profile.growth),
    }


def _rounds() -> Iterator[tuple[dict[str, float], list[Timing]]]:
    yield {}, [Timing("full", 2.0, 3.0)]
    yield {"full": 1.5, "few-shot": 3.0, "peft": 0.5}, [Timing("full", 2.0, 90.0), Timing("full", 1.0, 0.5)]
    yield {"zeroth-order": 9.9}, [Timing("class-means", 1.0, 0.001)]


def _corrected(before: dict[str, float], timings: list[Timing]) -> dict[str, Any]:
    profile = replace(board("pi-4"), corrections=before)
    nothing = UpdateChoice(None, (), None)  # type: ignore[arg-type]
    after = corrected(profile, WorkOutcome(nothing, None, timings=tuple(timings)))
    return {
        "before": before,
        "timings": [[timing.kind, timing.predicted_s, timing.seconds] for timing in timings],
        "after": dict(after),
    }
