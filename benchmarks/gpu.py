"""Simulated rounds on a GPU: ours beside bare torch and pfl, in turns in one process. About five minutes.

    pip install torch==2.13.0 && pip install -e '.[simulation,networks]'  # pip install pfl: one more peer
    python benchmarks/gpu.py                         # all rows; the first time makes bundles: 2 minutes more
    python benchmarks/gpu.py --rows A wrn --rounds 9 --out gpu.json
    python benchmarks/gpu.py --precision tf32        # of ours and of bare torch
    python benchmarks/gpu.py --device cpu --tiny     # the same code at a tiny scale, where there is no GPU

A: CNN of 1.63 M parameters, 50 of 1,000 devices a round, each with 50 images 3x32x32. wrn: WRN-16-1 with
batch norm, 50 devices of 100 images 3x32x32. squeezenet, mobilenet: SqueezeNet 1.1, MobileNetV2 with batch
norm, 50 devices of 40 images 3x64x64. minilm: BERT of MiniLM-L6's size, 50 devices of 40 texts of 64 tokens.
All train one epoch of SGD on batches of 10, without momentum. cpu: A on 2 and 16 cores, as in simulation.py.

Ours is all of a simulated round, by the batched executor and engine torch. Bare torch keeps samples, weights
and their mean on the GPU: all devices at once by `vmap`, or one after another, where every step is a call of
its own. After each round of ours each peer has one; a figure is the median. Two rounds of ours, and one of
each peer, come before and do not count. pfl runs in a process of its own, afterwards.

"over" is ours over the peer of the goal. "apart" is the largest difference of a weight from the plain
executor's after a round of 8 devices at a learning rate of 0.01. "bytes" says whether a second run of the
same seed gave the same. GPU MB is the most that torch held at a time. Below the table stands where the time
of a round goes, in rounds that wait for the GPU at every border, so that their parts can be told apart; and
the time of an evaluation on 500 samples.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).parent.parent
PEERS = Path(__file__).parent / "peers"
sys.path[0] = str(PEERS)  # its modules import each other

import ours
import processes
from round_profile import RoundProfile
from work import SCALE, SEED, Job, write

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.batched import Batched
from device_runtime.simulation.executors.choice import ExecutorRequest, make
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, PlainExecutor
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import PreparedRun, simulate

WARM, PROFILED, TESTS = 2, 3, 500
BATCH, LR = 10, 0.01
CHECKED, CHECKED_TO = 8, 1e-5
CORES = (2, 16)
LIMIT_S = 600.0
VMAP, LOOP, PFL, OURS = "vmap", "one by one", "pfl", "ours"


@dataclass(frozen=True)
class Row:
    """A network that `cohort` of `devices` train in a round, each on `samples` samples in batches of BATCH.

    goal: what ours over the peer `against` is to be at most.
    """

    name: str
    network: str
    settings: Mapping[str, Any]
    input: InputSpec
    against: str
    goal: float
    devices: int = 50
    cohort: int = 50
    samples: int = 40
    lr: float = LR
    batch_statistics: bool = False

    def tiny(self) -> Row:
        """The same of few devices, and of a small network where there is one."""
        settings, size = TINY.get(self.name, ({}, ()))
        shape = msgspec.structs.replace(self.input, shape=size or self.input.shape)
        if self.input.vocabulary:
            shape = msgspec.structs.replace(shape, vocabulary=settings["vocabulary"])
        small = replace(self, settings={**self.settings, **settings}, input=shape)
        return replace(small, devices=4, cohort=3, samples=min(self.samples, 50 if self.name == "A" else 20))


def _images(side: int) -> InputSpec:
    return InputSpec((3, side, side), scale=float(SCALE))


MINILM = {"vocabulary": 30522, "classes": 10, "length": 64, "dim": 384, "depth": 6, "heads": 12}
TEXTS = InputSpec((64,), dtype="int64", vocabulary=30522)
ROWS = {
    row.name: row
    for row in (
        Row("A", "cnn", {}, _images(32), VMAP, 1.5, devices=1000, samples=50, lr=0.1),
        Row(
            "wrn", "wrn", {"depth": 16, "norm": "batch"}, _images(32), LOOP, 0.2,
            samples=100, batch_statistics=True,
        ),
        Row("squeezenet", "squeezenet", {"classes": 10}, _images(64), LOOP, 0.5),
        Row("mobilenet", "mobilenet_v2", {"classes": 10}, _images(64), LOOP, 0.5, batch_statistics=True),
        Row("minilm", "bert", MINILM, TEXTS, LOOP, 0.5),
    )
}  # fmt: skip
TINY: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "wrn": ({"depth": 10}, (3, 8, 8)),
    "squeezenet": ({}, (3, 32, 32)),
    "mobilenet": ({"width": 0.25}, (3, 32, 32)),
    "minilm": ({"vocabulary": 50, "length": 8, "dim": 24, "depth": 3, "heads": 2}, (8,)),
}
CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """The processor, the precision, where bundles and samples lie, and how many rounds count."""

    device: str
    precision: str
    folder: Path
    rounds: int
    tiny: bool

    @property
    def on_gpu(self) -> bool:
        return self.device != CPU

    def settle(self) -> None:
        """Waits until the GPU is done."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize(self.device)

    def allocated_bytes(self, peak: bool = False) -> int:
        """The memory of the GPU that torch holds, or held at most since `forget_peak`; 0 on a CPU."""
        if not self.on_gpu:
            return 0
        import torch

        return int((torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated)(self.device))

    def forget_peak(self) -> None:
        gc.collect()
        if self.on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        self.settle()
        began = time.perf_counter()
        work()
        self.settle()
        return time.perf_counter() - began


@dataclass
class Figures:
    """What a row's peers took: seconds of the rounds that count, and the most bytes of the GPU."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    bytes: dict[str, int] = field(default_factory=dict)
    profile: dict[str, float] = field(default_factory=dict)  # ms of a round, by part
    apart: float = float("nan")
    same_bytes: bool | None = None
    failed: list[str] = field(default_factory=list)

    def ms(self, peer: str) -> float | None:
        return 1e3 * median(times) if (times := self.seconds.get(peer)) else None


def bundle_of(row: Row, machine: Machine) -> Bundle:
    """The row's bundle, exported unless it is there."""
    folder = machine.folder / f"{row.name}{'-tiny' if machine.tiny else ''}" / "bundle"
    if not (folder / "manifest.json").exists():
        import torch

        from device_runtime.models.export.export import ExportSpec, export
        from device_runtime.models.networks import build

        say(f"{row.name}: making the bundle")
        torch.manual_seed(SEED)
        spec = ExportSpec(
            row.name,
            row.input,
            ours.LABELS,
            sets={"all": {}},
            batchnorm="training" if row.batch_statistics else "frozen",
            source=Source(row.network, dict(row.settings)),
        )
        export(build(row.network, row.settings), spec, folder)
    return Bundle.open(folder)


def clients_of(row: Row) -> Clients:
    """Random samples, as many for each device."""
    rng, count = np.random.default_rng(SEED), row.devices * row.samples
    vocabulary, shape = row.input.vocabulary, (count, *row.input.shape)
    x = rng.integers(1, vocabulary, shape) if vocabulary else rng.integers(0, 256, shape, np.uint8)
    y = rng.integers(0, len(ours.LABELS), count)
    return Clients.of(x, y, list(np.arange(count).reshape(row.devices, row.samples)))


class Turns(ours.Marks):
    """Takes the time of each round of ours, and gives each peer a round after it.

    The first WARM rounds of ours are alone, so that the GPU's memory is that of ours; the last are profiled.
    """

    def __init__(self, row: Row, machine: Machine, inputs: ExecutorInputs, figures: Figures) -> None:
        super().__init__([], row.devices)
        self._row, self._machine, self._inputs, self.figures = row, machine, inputs, figures
        self._rng = np.random.default_rng(SEED)
        self._peers: dict[str, Any] = {}
        self._profile, self._patches = RoundProfile(machine.settle), ExitStack()
        self._profiled_s = 0.0
        machine.forget_peak()
        self._allocated, self._began = machine.allocated_bytes(), time.perf_counter()

    def closed(self, line: SimulatedRound) -> None:
        self._machine.settle()
        took_s = time.perf_counter() - self._began
        counted = line.round - WARM
        if counted == 0:
            self.figures.bytes[OURS] = self._machine.allocated_bytes(peak=True) - self._allocated
            self._open_peers()
        elif 0 < counted <= self._machine.rounds:
            self.figures.seconds[OURS].append(took_s)
            for name, peer in self._peers.items():
                self.figures.seconds[name].append(
                    self._machine.seconds(lambda peer=peer: peer.round(self._cohort()))
                )
        else:
            self._profiled_s += took_s if counted > 0 else 0.0
        if counted == self._machine.rounds:
            self._peers.clear()
            self._patches.enter_context(self._profile.patched())
        self._began = time.perf_counter()

    def end(self) -> None:
        """Notes the profile."""
        self._patches.close()
        seconds, figures = dict(self._profile.seconds), self.figures
        evaluated_s = seconds.pop("evaluation", 0.0)
        parts = {part: 1e3 * each / PROFILED for part, each in seconds.items()}
        whole = 1e3 * (self._profiled_s - evaluated_s) / PROFILED
        figures.profile = {"round": whole, **parts, "rest": whole - sum(parts.values())}
        figures.profile["evaluation"] = 1e3 * evaluated_s
        figures.failed += [f"profile without {name}, which is no more" for name in self._profile.missing]

    def _cohort(self) -> list[int]:
        return sorted(self._rng.choice(self._row.devices, self._row.cohort, replace=False).tolist())

    def _open_peers(self) -> None:
        """Makes each peer, and lets it do a round that does not count; its memory is what it adds."""
        from bare_torch import OneByOne, Vmapped

        for name, kind in ((VMAP, Vmapped), (LOOP, OneByOne)):
            self._machine.forget_peak()
            before = self._machine.allocated_bytes()
            try:
                peer = kind(self._bare_job())
                peer.round(self._cohort())
            except RuntimeError as error:  # of torch, which lacks an operator or memory
                self.figures.failed.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            self._peers[name] = peer
            self.figures.bytes[name] = self._machine.allocated_bytes(peak=True) - before

    def _bare_job(self) -> Any:
        import torch
        from bare_torch import BareJob

        from device_runtime.models.networks import build

        row, clients = self._row, self._inputs.clients
        x, y = (
            torch.from_numpy(values).to(self._machine.device).unflatten(0, (row.devices, row.samples))
            for values in (clients.x, clients.y)
        )
        torch.manual_seed(SEED)
        module, precision = build(row.network, row.settings), self._machine.precision
        return BareJob(module, x, y, float(SCALE), BATCH, row.lr, row.batch_statistics, precision)


def measured(row: Row, machine: Machine) -> Figures:
    """The figures of a row. Raises what torch and the simulator raise."""
    figures, bundle = Figures(), bundle_of(row, machine)
    engine = EngineSettings(engine="torch", device=machine.device, precision=machine.precision)
    inputs = ExecutorInputs(bundle, clients_of(row), engine)
    say(f"{row.name}: rounds")
    rounds = WARM + machine.rounds + PROFILED
    run = ours.Rounds(rounds, row.devices, row.cohort, eval_every=rounds)
    tests = min(TESTS, len(inputs.clients.y))
    turns = Turns(row, machine, inputs, figures)
    try:
        run_of(ours.alike(inputs, ours.trained_in_full(BATCH, row.lr), run, tests), "batched", turns)
    finally:
        turns.end()
    if row.name == "A":
        by_pfl(row, machine, figures)
    say(f"{row.name}: check")
    few = min(CHECKED, row.cohort)
    once = ours.alike(inputs, ours.trained_in_full(BATCH, LR), ours.Rounds(1, row.devices, few))
    plain, batched, again = (run_of(once, name) for name in ("plain", "batched", "batched"))
    figures.apart = max(float(np.abs(plain[name] - batched[name]).max()) for name in plain)
    figures.same_bytes = all(np.array_equal(batched[name], again[name]) for name in batched)
    return figures


def run_of(prepared: PreparedRun, executor: str, observer: Any = None) -> Tensors:
    """Simulates a run by an executor; the model that it ends with, copied."""
    kinds = [kind.strategy for kind in prepared.scenario.task.kinds]

    def trains(inputs: ExecutorInputs) -> Executor:
        if executor == "batched" and inputs.engine.device == CPU:  # as on a GPU, where it always pays
            return Batched(inputs, PlainExecutor(inputs), networks=True)
        return make(inputs, ExecutorRequest(executor), kinds)

    served = simulate(prepared, trains, observer or NullObserver())
    return {name: np.array(value) for name, value in served.items()}


def by_pfl(row: Row, machine: Machine, figures: Figures) -> None:
    """pfl's rounds of A, in a process."""
    if importlib.util.find_spec(PFL) is None:
        figures.failed.append("pfl is not installed")
        return
    seconds = by_script("pfl_runner.py", row, machine, 1, WARM + machine.rounds)
    figures.seconds[PFL] = seconds[WARM:]


def by_script(script: str, row: Row, machine: Machine, workers: int, rounds: int) -> list[float]:
    """The seconds of rounds of A, done by a script of benchmarks/peers in a process of its own."""
    data = machine.folder / f"A-{row.devices}"
    write("A", row.devices, 0, data)
    out = machine.folder / f"{Path(script).stem}-{workers}.json"
    job = Job("A", row.devices, row.cohort, rounds, str(data), str(out), workers)
    processes.run([sys.executable, str(PEERS / script), *job.flags()], out.with_suffix(".log"), LIMIT_S)
    seconds: list[float] = json.loads(out.read_text())["seconds"]
    return seconds


def on_cores(machine: Machine) -> Iterator[tuple[str, Row, Figures]]:
    """A on the CPU, at each number of cores that there is; scripts take turns, and start anew each time."""
    row = ROWS["A"].tiny() if machine.tiny else ROWS["A"]
    for cores in CORES:
        figures = Figures()
        goal = {2: 0.8, 16: 1.0}[cores]
        if cores > usable_cores():
            figures.failed.append(f"{usable_cores()} cores are usable")
        else:
            warm = 1 if machine.tiny else WARM
            for peer, script in ((OURS, "ours.py"), (LOOP, "bare_loop.py")):
                say(f"A on {cores} cores: {peer}")
                figures.seconds[peer] = by_script(script, row, machine, cores, warm + machine.rounds)[warm:]
        yield f"A, {cores} cores", replace(row, against=LOOP, goal=goal), figures


def cells(name: str, row: Row, figures: Figures) -> dict[str, str]:
    """A line of the table."""
    over = ratio(row, figures)
    peaks = [figures.bytes.get(peer) for peer in (OURS, VMAP, LOOP)]
    return {
        "row": name,
        **{f"{peer} ms": _number(figures.ms(peer)) for peer in (VMAP, LOOP, PFL, OURS)},
        "over": "-" if over is None else f"{over:.2f} of {row.against}",
        "goal": f"{row.goal:g}",
        "apart": "-" if np.isnan(figures.apart) else f"{figures.apart:.0e}",
        "bytes": {True: "same", False: "DIFFER", None: "-"}[figures.same_bytes],
        "GPU MB": " / ".join("-" if not each else f"{each / 1e6:.0f}" for each in peaks),
    }


def ratio(row: Row, figures: Figures) -> float | None:
    """Ours over the peer of the goal."""
    ours_ms, peer_ms = figures.ms(OURS), figures.ms(row.against)
    return ours_ms / peer_ms if ours_ms and peer_ms else None


def _number(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"


def all_figures(names: list[str], machine: Machine) -> Iterator[tuple[str, Row, Figures]]:
    """Each row with its figures, as they come; a row that fails says why."""
    for name in names:
        if name == CPU:
            try:
                yield from on_cores(machine)
            except RuntimeError as error:
                yield "A, cpu", ROWS["A"], Figures(failed=[str(error)])
            continue
        row = ROWS[name].tiny() if machine.tiny else ROWS[name]
        try:
            figures = measured(row, machine)
        except Exception as error:  # the other rows go on
            figures = Figures(failed=[f"{type(error).__name__}: {str(error) or 'no reason'}".splitlines()[0]])
        yield name, row, figures


def summary(machine: Machine, lines: list[tuple[str, Row, Figures]]) -> str:
    """A sentence, the table, where the time goes, and a line for all that could not run."""
    precision = machine.precision
    where = f"{processor_of(machine.device)}, torch {metadata.version('torch')}, {precision}"
    table = [cells(*line) for line in lines]
    text = [f"Milliseconds of a round on {where}: medians of {machine.rounds} rounds, in turns.", ""]
    text += [tabulate(table, headers="keys", disable_numparse=True, stralign="right"), ""]
    text += ["GPU MB: ours / vmap / one by one."]
    for name, _, figures in lines:
        if profile := dict(figures.profile):
            evaluation, whole = profile.pop("evaluation"), profile.pop("round")
            parts = ", ".join(f"{part} {ms:.0f}" for part, ms in profile.items())
            text.append(
                f"{name}: a profiled round of {whole:.0f} ms: {parts}; an evaluation {evaluation:.0f}."
            )
    text += [f"{name}, not run: {why}." for name, _, figures in lines for why in figures.failed]
    off = [
        name for name, _, figures in lines if machine.precision == "float32" and figures.apart > CHECKED_TO
    ]
    text += [f"{name}: further than {CHECKED_TO:g} from the plain executor." for name in off]
    return "\n".join(text)


def processor_of(device: str) -> str:
    """The name of the GPU, or of the CPU with its cores."""
    if device == CPU:
        return f"{usable_cores()} CPU cores"
    import torch

    return f"{torch.cuda.get_device_name(device)} ({device})"


def written(machine: Machine, lines: list[tuple[str, Row, Figures]]) -> str:
    """All figures, as JSON."""
    rows = [
        {
            "row": name,
            "goal": row.goal,
            "against": row.against,
            "over": ratio(row, figures),
            "ms": {peer: figures.ms(peer) for peer in figures.seconds},
            "seconds": dict(figures.seconds),
            "gpu_bytes": figures.bytes if machine.on_gpu else {},
            "profile_ms": figures.profile,
            "apart": None if np.isnan(figures.apart) else figures.apart,
            "same_bytes": figures.same_bytes,
            "not_run": figures.failed,
        }
        for name, row, figures in lines
    ]
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "device-runtime")}
    about = {"device": processor_of(machine.device), "precision": machine.precision, "tiny": machine.tiny}
    return json.dumps({**about, "versions": packages, "rows": rows}, indent=1)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def no_gpu(device: str) -> str:
    """Why the device cannot be used here; empty if it can."""
    if device == CPU:
        return ""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.partition(":")[2] or "0"
    return "" if int(index) < count else f"torch {torch.__version__} sees {count} GPUs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=(*ROWS, CPU), default=[*ROWS, CPU], help="(all)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (7)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (cuda)")
    parser.add_argument(
        "--precision", default="float32", help="of ours and of bare torch: float32, tf32 or bf16 (float32)"
    )
    parser.add_argument("--tiny", action="store_true", help="few devices and small networks, for a test")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".bench-environments" / "gpu", help="bundles, logs"
    )
    parser.add_argument("--out", type=Path, help="JSON file of all figures")
    options = parser.parse_args()
    if why := no_gpu(options.device):
        print(f"Nothing is measured on {options.device}: {why}. Small, on a CPU: --device cpu --tiny")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(options.device, options.precision, options.folder, options.rounds, options.tiny)
    lines = []
    for line in all_figures(options.rows, machine):
        lines.append(line)
        if options.out:
            options.out.write_text(written(machine, lines))
    print(summary(machine, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
