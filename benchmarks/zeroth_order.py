"""What zeroth-order work takes and gives; each subcommand is a file of benchmarks/zeroth.

.venv/bin/python benchmarks/zeroth_order.py step --help        # time, memory and loss against MeZO in torch
.venv/bin/python benchmarks/zeroth_order.py replay             # steps of a log a second
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

MODULES = {
    "step": "step",
    "replay": "replay",
    "bytes": "wire",
    "accuracy": "accuracy",
    "options": "options",
    "scales": "scales",
    "biases": "beside_head",
    "late": "late",
    "liars": "liars",
}


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("what", choices=MODULES)
    what = parser.parse_args(sys.argv[1:2]).what
    module = import_module(f"benchmarks.zeroth.{MODULES[what]}")
    chosen = argparse.ArgumentParser(
        f"{parser.prog} {what}", description=module.__doc__, formatter_class=formatter
    )
    module.add_arguments(chosen)
    module.run(chosen.parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
