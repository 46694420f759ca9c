"""Newer ONNX Runtimes tell their maker of each start, also on Linux: not on a device of ours."""

import os
import subprocess
import sys

RUN = """
import numpy as np
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.available_engines.onnx_engine import OnnxModel
OnnxModel(Bundle.open(shipped_folder("digits-wrn-10-1"))).forward(np.zeros((1, 1, 8, 8), np.float32))
"""


def test_an_engine_leaves_no_trace_in_its_owner_s_home(tmp_path):
    """It would keep a device id and a queue of events there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    subprocess.run([sys.executable, "-c", RUN], check=True, env={**env, "HOME": str(tmp_path)})
    assert list(tmp_path.rglob("*")) == []
