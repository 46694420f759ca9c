"""The demo of the README: eight device processes over a real broker."""

import csv
import json
import subprocess
import sys
from collections import Counter

from device_runtime.strategies.kinds import registry

ON_A_BUSY_MACHINE = """
import sys
from device_runtime.cli import main
from device_runtime.simulation.demo import calibration
calibration.SCALES = (4.0,)
sys.exit(main(["demo", *sys.argv[1:]]))
"""
"""The demo, as where others compute: they may well begin after it has measured."""


def test_the_demo_runs_on_every_device_and_keeps_its_figures(lines, tmp_path):
    folder = tmp_path / "demo"
    ended = subprocess.run(
        [sys.executable, "-c", ON_A_BUSY_MACHINE, "--rounds", "3", "--run-dir", folder],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Leaving no device behind is worth" in ended.stdout
    sent = lines(folder / "mixed-0" / "contributions.jsonl")
    by_device = Counter(contribution["device"] for contribution in sent)
    assert len(by_device) == 8
    assert {contribution["kind"] for contribution in sent} == set(registry.OFFERED_KINDS)
    dropped = lines(folder / "dropped-0" / "contributions.jsonl")
    assert {contribution["kind"] for contribution in dropped} == {"full"}
    assert len({contribution["device"] for contribution in dropped}) <= 3
    with (folder / "mixed-0" / "rounds.csv").open() as table:
        rounds = list(csv.DictReader(table))
    assert len(rounds) == 3
    assert float(rounds[-1]["eval_acc"]) > 0.7
    recalls = json.loads((folder / "runs.jsonl").read_text().splitlines()[0])["recalls"][-1]
    assert min(recalls[5:]) > 0.1, "a digit that only a weak device holds is not recognised"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
