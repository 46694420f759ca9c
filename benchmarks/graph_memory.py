"""What a bundle's graphs hold against what their shapes say: each in a fresh process, one whole run in it.

    .venv/bin/python benchmarks/graph_memory.py digits-wrn-10-1 FOLDER/squeezenet ..

`grown` is by how much the process is larger after three runs than with the engine loaded and no graph open;
`off` is that over `shaped`, predicted from live activations, the samples of a run and the file's size.
`as said`: what a device says that has measured the forward pass and train.all alone, over `grown`; below 1 it
would be too little.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import psutil
from tabulate import tabulate

from device_runtime.device.engine.engine_guard import MARGIN, MARGIN_BYTES
from device_runtime.device.engine.profiling import BATCH, held_bytes, random_samples, ready, runnable
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.manifest import Graph
from device_runtime.profiles.cost import session_bytes

RUNS = 3
KNOWN = ("forward", "train.all")
WHAT = ("forward", "loss", "train")


def grown(bundle: str, name: str) -> int:
    """Bytes, of this process."""
    model = open_model(Bundle.open(find_bundle(bundle)))
    ready(model)
    before = psutil.Process().memory_info().rss
    rows = model.manifest.graphs[name].rows(BATCH)
    x, y = random_samples(model.manifest, rows)
    run = runnable(model, name, x, y)
    for _ in range(RUNS):
        run()
    return int(psutil.Process().memory_info().rss) - before


def in_a_process(bundle: str, name: str) -> int:
    return int(subprocess.check_output([sys.executable, __file__, bundle, "--graph", name]))


def shaped(graph: Graph) -> int:
    return session_bytes(graph.bytes) + graph.memory_bytes(graph.rows(BATCH))


def table(bundle: str) -> list[tuple[object, ...]]:
    graphs = Bundle.open(find_bundle(bundle)).manifest.graphs
    peaks = {name: in_a_process(bundle, name) for name in graphs if name.partition(".")[0] in WHAT}
    measured = {name: round(MARGIN * peaks[name]) + MARGIN_BYTES for name in KNOWN}
    estimates = held_bytes(measured, graphs, {name: graph.rows(BATCH) for name, graph in graphs.items()})
    return [
        (
            bundle.rpartition("/")[2],
            name,
            graphs[name].rows(BATCH),
            f"{size / 1e6:.1f}",
            f"{shaped(graphs[name]) / 1e6:.1f}",
            f"{size / shaped(graphs[name]):.2f}",
            f"{estimates[name] / size:.2f}",
        )
        for name, size in peaks.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="folders, zips, shipped ones")
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.graph:
        print(grown(options.bundles[0], options.graph))
        return
    rows = [row for bundle in options.bundles for row in table(bundle)]
    headers = ("bundle", "graph", "samples", "grown MB", "shaped MB", "off", "as said")
    print(tabulate(rows, headers, disable_numparse=True))


if __name__ == "__main__":
    main()
