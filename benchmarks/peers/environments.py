"""A virtual environment for each peer, made once; ours is the one that runs this."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
NEEDS = {
    "bare": (),
    "flower": ("flwr[simulation]", "matplotlib"),
    "pfl": ("pfl[pytorch]", "matplotlib"),
    "fedlab": ("fedlab",),
}
"""What is installed beside torch, numpy and psutil; the newest versions, which the tables name."""
IMPORTED = {"fedlab": "fedlab.contrib.algorithm.basic_client"}  # where torchvision is not torch's, this fails
MADE = "made"


def python_of(environment: str, folder: Path) -> str:
    """The Python of a peer; of "ours" this one. Its environment is made in `folder`, unless it is there."""
    if environment == "ours":
        return sys.executable
    home = folder / environment
    python = home / "bin" / "python"
    if not (home / MADE).exists():
        print(f"making {home}", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, TORCH, "numpy", "psutil"], check=True)  # first: the build for this machine
        if NEEDS[environment]:
            subprocess.run([*install, TORCH, *NEEDS[environment]], check=True)
        if module := IMPORTED.get(environment):
            subprocess.run([str(python), "-c", f"import {module}"], check=True)
        (home / MADE).touch()
    return str(python)
