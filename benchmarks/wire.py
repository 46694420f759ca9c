"""What the wire carries: the real aggregator behind Mosquitto, against the bare broker in the same run.

    .venv/bin/python benchmarks/wire.py                       # all, about 5 minutes
    .venv/bin/python benchmarks/wire.py small --count 20000   # one of: small, chunks, memory, idle, downloads
    .venv/bin/python benchmarks/wire.py small --profile       # where the aggregator's time goes

small   170-byte contributions of as many devices, from their first byte to the receipt of the last: each is
        committed to SQLite (synchronous=FULL) before its receipt. Beside it the same bytes through the
        broker alone, to a subscriber that answers each and keeps nothing.
chunks  contributions of several MB, pulled block by block, verified, synced; beside it the same bytes
        published in one go, to a subscriber that only counts, and to one on the aggregator's library.
memory  contributions of 1 MB: by how much the aggregator's resident memory grows.
idle    devices that are connected and say nothing: what they cost the broker and the aggregator, and how
        long a contribution takes among them.
downloads  devices that fetch a model at once, by windows of blocks.

The load is made by hand (bare_mqtt.py, wired/) in this process; the broker and the aggregator have their own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

from tabulate import tabulate

from benchmarks.wired.downloads import downloads
from benchmarks.wired.idle import idle
from benchmarks.wired.load import Row
from benchmarks.wired.small import small
from benchmarks.wired.uploads import chunks, memory

PARTS = {"small": small, "chunks": chunks, "memory": memory, "idle": idle, "downloads": downloads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="small, chunks, memory, idle, downloads (default: all)")
    add("--count", type=int, default=20_000, help="small contributions (default: 20000)")
    add("--uploads", type=int, default=50, help="uploads in blocks (default: 50)")
    add("--updates", type=int, default=1000, help="updates of 1 MB (default: 1000)")
    add("--idle", type=int, default=2000, help="idle devices (default: 2000)")
    add("--fetching", type=int, default=100, help="devices that fetch a model at once (default: 100)")
    add("--model-mb", type=int, default=50, help="that the model has (default: 50)")
    add("--workers", type=int, default=0, help="of the aggregator, under small contributions (default: 0)")
    add("--profile", action="store_true", help="profile the aggregator under small contributions")
    add("--folder", type=Path, help="where the run folders are (default: the system's temporary)")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in options.parts or PARTS:
        print(f"{part} ...", file=sys.stderr, flush=True)
        rows += PARTS[part](options)
    print(
        tabulate([(r.what, r.figure, r.beside, r.goal) for r in rows], ("", "measured", "beside it", "goal"))
    )


if __name__ == "__main__":
    main()
