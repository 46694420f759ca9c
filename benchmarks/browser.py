"""Steps of a bundle's graphs natively, in Node and in Chromium: processor time, the quickest, memory.

    .venv/bin/python benchmarks/browser.py                         # the shipped bundle and a larger WRN
    .venv/bin/python benchmarks/browser.py --bundle vit --threads 1 2 --gpu
    .venv/bin/python benchmarks/browser.py --only native node --json browser.json

A step of training is forward, cross-entropy, backward and SGD with momentum, a step of a loss one mean over
the samples; all on 32 samples. `cpu` is the mean processor time of a step, of all threads of the process,
which a busy machine changes least; `least` the wall time of the quickest. `first` is the time until a graph
was open and had run once. Memory is the peak of a process that ran every graph, one after the other. In
Chromium the page is isolated, so that there are threads; `--gpu` tries WebGPU on a processor's emulation
(SwiftShader), which shows whether it agrees, not how fast it is. Needs web/vendor (npm run vendor). Linux.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from predicting.tasks import bundles
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, pack
from device_runtime.models.training.optimizer import Sgd

ROOT = Path(__file__).parents[1]
SAMPLES, LEAST, MOST, BUDGET_S = 32, 5, 60, 3.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
PAGE = "/bench.html"

Graphs = dict[str, dict[str, float]]


def native(bundle: Path) -> dict[str, Any]:
    """In this process, on one thread."""
    model, graphs = OnnxModel(Bundle.open(bundle)), Graphs()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, *model.manifest.input.shape)).astype(np.float32)
    y = np.arange(SAMPLES) % len(model.manifest.labels)
    for name in model.manifest.graphs:
        if name.startswith("features"):
            continue
        began = time.perf_counter()
        run = _step(model, name, x, y)
        run()
        first, times, used = time.perf_counter() - began, [], time.process_time()
        while len(times) < LEAST or (len(times) < MOST and sum(times) < BUDGET_S):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        cpu = (time.process_time() - used) / len(times)
        graphs[name] = {"first": first, "least": min(times), "cpu": cpu}
        del run
        model.unload()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"engine": "onnxruntime", "graphs": graphs, "memory": memory}


def _step(model: OnnxModel, name: str, x: Any, y: Any) -> Any:
    what, _, tunable = name.partition(".")
    if what == "forward":
        return lambda: model.logits(x)
    if what == "loss":
        return partial(model.probe(tunable).loss, x, y)
    trainer = model.trainer(tunable, what)
    steps = Sgd(1e-4, 0.9, 5e-4).start(trainer.params.vector)

    def step() -> None:
        trainer.loss_and_grads(x, y)
        steps.step(trainer.params.vector, trainer.grads.vector)

    return step


def in_node(zipped: Path) -> dict[str, Any]:
    """On one thread: there is no more in Node."""
    command = [shutil.which("node") or "node", str(ROOT / "benchmarks" / "browser_steps.js"), str(zipped)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


class _Handler(SimpleHTTPRequestHandler):
    """The repository's files, isolated from other sites, a page that is empty, and the bundle."""

    protocol_version = "HTTP/1.1"
    files: Mapping[str, tuple[str, bytes]] = {}  # by path: what it is, and its content
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def end_headers(self) -> None:
        self.send_header("cross-origin-opener-policy", "same-origin")
        self.send_header("cross-origin-embedder-policy", "require-corp")
        super().end_headers()

    def do_GET(self) -> None:
        if self.path not in self.files:
            super().do_GET()
            return
        kind, content = self.files[self.path]
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def served(files: Mapping[str, tuple[str, bytes]]) -> Iterator[str]:
    """Where the repository's files are, and these by path: of what type, and their content."""
    handler = type("Handler", (_Handler,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@contextmanager
def isolated_page(flags: Sequence[str], files: Mapping[str, tuple[str, bytes]]) -> Iterator[Any]:
    """Opens an empty page of a new Chromium, which can import the project's modules and fetch `files`."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)))
    with served({PAGE: ("text/html", b""), **files}) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *flags])
        page = browser.new_page()
        page.goto(url + PAGE)
        yield page
        browser.close()


def renderers() -> list[psutil.Process]:
    """The processes of pages, and of the GPU, that this process has started."""
    kinds = ("--type=renderer", "--type=gpu-process")
    started = psutil.Process().children(recursive=True)
    return [process for process in started if any(kind in process.cmdline() for kind in kinds)]


def in_chromium(zipped: Path, threads: int, gpu: bool) -> dict[str, Any]:
    """Processor time and memory are those of the page's own process, and of the GPU's."""
    files = {"/bundle.zip": ("application/zip", zipped.read_bytes())}
    with isolated_page(GPU if gpu else (), files) as page:
        opening = """async (how) => {
          const module = await import("/benchmarks/browser_steps.js");
          const bundle = new Uint8Array(await (await fetch("/bundle.zip")).arrayBuffer());
          globalThis.trials = await module.Trials.open(bundle, how);
          return [trials.names, trials.engine, crossOriginIsolated];
        }"""
        names, engine, isolated = page.evaluate(opening, {"threads": threads, "gpu": gpu})
        workers = renderers()
        graphs, memory = Graphs(), 0
        for name in names:
            first = page.evaluate("name => trials.first(name)", name)
            used = _cpu(workers)
            runs = page.evaluate("() => trials.runs()")
            cpu = (_cpu(workers) - used) / runs["count"]
            graphs[name] = {"first": first, "least": runs["least"], "cpu": cpu}
            memory = max(memory, sum(worker.memory_info().rss for worker in workers))
            page.evaluate("() => trials.close()")
    return {"engine": f"{engine}{' isolated' if isolated else ''}", "graphs": graphs, "memory": memory}


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A table: graphs down, places across; cpu, least and first in ms."""
    places = list(results)
    names = list(results[places[0]]["graphs"])
    rows = []
    for name in names:
        cells = [results[place]["graphs"][name] for place in places]
        rows.append(
            [
                name,
                *(
                    " / ".join(f"{1000 * cell[key]:.3g}" for key in ("cpu", "least", "first"))
                    for cell in cells
                ),
            ]
        )
    rows.append(["peak MB", *(f"{results[place]['memory'] / 1e6:.0f}" for place in places)])
    return tabulate(rows, headers=["ms: cpu / least / first", *places], tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", nargs="*", type=Path, help="folders; the shipped one and a larger one")
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--only", nargs="*", default=["native", "node", "chromium"])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = (
            {path.name: path.resolve() for path in options.bundle}
            if options.bundle
            else bundles(Path(folder), None)
        )
        for called, path in chosen.items():
            zipped = Path(folder) / f"{called}.zip"
            zipped.write_bytes(pack(path))
            results = everything[called] = _measured(path, zipped, options)
            print(f"\n{called}\n{table(results)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


def _measured(bundle: Path, zipped: Path, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    if "native" in options.only:
        command = [
            sys.executable,
            "-c",
            f"import browser, json; print(json.dumps(browser.native(browser.Path({str(bundle)!r}))))",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
        results["native"] = json.loads(ran.stdout)
    if "node" in options.only:
        results["node"] = in_node(zipped)
    for threads in options.threads:
        if "chromium" in options.only:
            results[f"chromium, {threads}"] = in_chromium(zipped, threads, gpu=False)
    if options.gpu:
        results["chromium, WebGPU"] = in_chromium(zipped, 1, gpu=True)
    return results


if __name__ == "__main__":
    main()
