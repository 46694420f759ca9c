"""Steps of a bundle's graphs in Firefox and in WebKit: the quickest, and the memory of what runs them.

    PYTHONPATH=. .venv/bin/python benchmarks/other_browsers.py models/bundles/digits-wrn-10-1

As benchmarks/browser.py: 32 samples, one thread, wall milliseconds of the quickest step, after as many as fit
into three seconds. MB is the peak of the largest process that shows pages. Debian's
firefox-esr, webkit2gtk-driver, gir1.2-webkit2-4.1 and xvfb; needs web/vendor (npm run vendor). Linux.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from browser import PAGE, served
from tabulate import tabulate

from device_runtime.models.bundles.bundle import pack
from tests.web import driven

PATIENCE_S = 600.0
HTML = b"<!doctype html><title>...</title><script type=module src=/run.js></script>"
RUN = b"""
import { Trials } from "/benchmarks/browser_steps.js";
const bundle = new Uint8Array(await (await fetch("/bundle.zip")).arrayBuffer());
const trials = await Trials.open(bundle, { threads: 1, gpu: false });
const graphs = {};
for (const name of trials.names) {
  const first = await trials.first(name);
  graphs[name] = { first, ...(await trials.runs()) };
  await trials.close();
}
document.title = JSON.stringify(graphs);
"""


def _page_bytes(process: psutil.Process) -> int:
    """Of memory; 0 where it shows no page, or has just ended."""
    with suppress(psutil.NoSuchProcess):
        command = process.cmdline()
        if command[-1:] == ["tab"] or any("WebKitWebProcess" in word for word in command[:1]):
            return int(process.memory_info().rss)
    return 0


def measured(which: str, bundle: bytes) -> dict[str, Any]:
    """By graph: `first` and `least` in seconds; `MB`."""
    peak = 0

    def done(tab: driven.Tab) -> str:
        nonlocal peak
        peak = max(peak, *map(_page_bytes, psutil.Process().children(recursive=True)))
        title = str(tab.run("return document.title"))
        return title if title.startswith("{") else ""

    files = {
        PAGE: ("text/html", HTML),
        "/run.js": ("text/javascript", RUN),
        "/bundle.zip": ("application/zip", bundle),
    }
    with tempfile.TemporaryDirectory() as folder, served(files) as url:
        browser: driven.Browser = getattr(driven, which)
        with browser(Path(folder) / which) as tab:
            tab.open(url + PAGE)
            graphs: dict[str, Any] = json.loads(tab.until(lambda: done(tab), PATIENCE_S))
    return {"graphs": graphs, "MB": peak / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    rows = []
    for path in parser.parse_args().bundles:
        reports = [measured(which, pack(path)) for which in ("firefox", "webkit")]
        for name in reports[0]["graphs"]:
            least = [f"{1000 * report['graphs'][name]['least']:.3g}" for report in reports]
            rows.append([path.name, name, *least])
        rows.append([path.name, "peak MB", *(f"{report['MB']:.0f}" for report in reports)])
    print(tabulate(rows, headers=["bundle", "graph", "Firefox", "WebKit"], disable_numparse=True))


if __name__ == "__main__":
    main()
