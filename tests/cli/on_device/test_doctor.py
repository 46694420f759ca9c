import ast
import json
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from device_runtime.cli import main
from device_runtime.cli.on_device.doctor import examine
from device_runtime.device.doctor import installation as examining
from device_runtime.device.doctor.installation import energy, rules
from device_runtime.device.energy import FoundMeter, find_meter
from device_runtime.device.policy import work_gate as owner
from device_runtime.device.policy.privacy_budget import SpentPrivacy
from device_runtime.device.policy.rules import DayWindow, Policy
from device_runtime.models.available_engines.available import EngineChoice
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.errors import EngineError
from device_runtime.strategies.terms.accountant import PrivacyBudget, PrivacySpending, total_epsilon

BUNDLE = "digits-wrn-10-1"


def states(findings):
    return {finding.what: finding.state for finding in findings}


def test_a_sound_installation_can_take_part_and_says_why(capsys, tmp_path):
    assert main(["doctor", "--state", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    for line in ("ok +python", "ok +engine onnxruntime .*chosen", "ok +training step .*the loss fell by"):
        assert re.search(f"^{line}", output, re.M), line
    assert output.endswith("This device can take part.\n")


def test_json_holds_every_finding_with_its_state(capsys, tmp_path):
    assert main(["doctor", "--state", str(tmp_path), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} <= {"ok", "missing"}
    assert {"python", "platform", "numpy", "bundle", "memory", "storage", "mosquitto"} <= {
        row["what"] for row in rows
    }


def test_a_bundle_that_is_not_there_is_a_problem_and_the_rest_is_still_examined(capsys, tmp_path):
    assert main(["doctor", "--bundle", "nothing", "--state", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "problem  bundle" in output
    assert "name a sound one with --bundle" in output
    assert "mosquitto" in output
    assert output.endswith("This device cannot take part: bundle.\n")


def test_without_an_engine_the_device_is_told_what_to_install(bundle, monkeypatch):
    none = tuple(EngineChoice(name, "", False, "not installed") for name in ("onnxruntime", "torch"))
    monkeypatch.setattr(examining, "engine_choices", lambda bundle: none)
    findings = list(examining.engines(bundle))
    assert states(findings) == {
        "engine onnxruntime": "missing",
        "engine torch": "missing",
        "engine": "problem",
    }
    assert findings[-1].advice == "pip install onnxruntime"


def test_nothing_is_tried_without_an_engine(capsys, monkeypatch, tmp_path):
    none = (EngineChoice("onnxruntime", "", False, "not installed"),)
    monkeypatch.setattr(examining, "engine_choices", lambda bundle: none)
    assert main(["doctor", "--state", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "forward pass" not in output
    assert output.endswith("This device cannot take part: engine.\n")


def test_an_engine_that_does_not_open_is_a_problem(bundle):
    def broken(bundle):
        raise EngineError("ONNX Runtime cannot be loaded: libgomp.so.1 is missing")

    [finding] = examining.work(bundle, broken)
    assert (finding.state, "libgomp.so.1" in finding.found) == ("problem", True)


def test_gradients_that_are_wrong_are_found(bundle):
    class Wrong(OnnxModel):
        def trainer(self, tunable="all", objective="train", batch=0):
            trainer = super().trainer(tunable, objective)
            right = trainer.loss_and_grads

            def half_missing(x, y):
                loss = right(x, y)
                trainer.grads.vector *= np.float32(2)  # the loss then falls by half of what they promise
                return loss

            trainer.loss_and_grads = half_missing
            return trainer

    assert states(examining.work(bundle, Wrong)) == {"forward pass": "ok", "training step": "problem"}
    assert states(examining.work(bundle)) == {"forward pass": "ok", "training step": "ok"}


def test_logits_that_are_not_the_head_s_are_found(bundle):
    class Wrong(OnnxModel):
        def forward(self, x):
            passed = super().forward(x)
            passed.logits[3, 2] += 0.01
            return passed

    assert states(examining.work(bundle, Wrong))["forward pass"] == "problem"


@pytest.mark.parametrize(
    "free_of, state", [(lambda need: need["forward"] - 1, "problem"), (lambda need: 10**9, "ok")]
)
def test_memory_is_held_against_what_the_graphs_need(bundle, monkeypatch, free_of, state):
    need = {
        name: examining.session_bytes(graph.bytes) + graph.memory_bytes(examining.BATCH)
        for name, graph in bundle.manifest.graphs.items()
    }
    monkeypatch.setattr(examining, "resident_bytes", lambda: 5)
    monkeypatch.setattr(examining, "limit_bytes", lambda emulation, memory: free_of(need) + 5)
    assert examining.memory(bundle).state == state


def test_with_memory_for_some_graphs_only_these_are_named(bundle, monkeypatch):
    graphs = bundle.manifest.graphs
    monkeypatch.setattr(examining, "resident_bytes", lambda: 0)
    enough = examining.session_bytes(graphs["train.all"].bytes)
    enough += graphs["train.all"].memory_bytes(1) - 1  # not even one sample
    monkeypatch.setattr(examining, "limit_bytes", lambda emulation, memory: enough)
    finding = examining.memory(bundle)
    assert finding.state == "missing"
    assert "train.head" in finding.advice
    assert "train.all" not in finding.advice


def test_a_folder_that_cannot_be_made_or_has_no_room_is_a_problem(bundle, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert examining.storage(tmp_path / "file" / "below", bundle).state == "problem"
    assert examining.storage(tmp_path / "not" / "yet", bundle).state == "ok"
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("disk", "total free")(1000, 1000))
    assert "free some space" in examining.storage(tmp_path, bundle).advice
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("disk", "total free")(0, 0))  # FUSE
    assert examining.storage(tmp_path, bundle).state == "ok"


def test_what_was_spent_of_privacy_is_told_of_each_device_that_keeps_things_here(tmp_path):
    assert not list(examining.privacy(tmp_path))
    (tmp_path / "pi-1").mkdir()
    event, limit = PrivacySpending(10.0, 1.0, 10, 3), PrivacyBudget(5.0, 1e-3)
    SpentPrivacy(tmp_path / "pi-1" / "privacy.json", frozenset([b"a" * 16])).spend(event, [limit])
    (tmp_path / "privacy.json").write_bytes(b"")
    device, whole = examining.privacy(tmp_path)
    assert (whole.what, whole.state) == ("privacy", "missing")
    assert "cannot be read" in whole.found
    text = (
        f"epsilon {total_epsilon([event], 1e-3):.2f} at delta 0.001 spent, 3 rounds at most with any sample"
    )
    assert (device.what, device.state, device.found) == ("privacy of pi-1", "ok", text)


def test_an_extra_that_is_not_installed_is_named_with_its_use(monkeypatch):
    find_spec = examining.util.find_spec
    monkeypatch.setattr(
        examining.util, "find_spec", lambda name: None if name == "amqtt" else find_spec(name)
    )
    [aggregator] = [finding for finding in examining.extras() if finding.what == "extra aggregator"]
    assert aggregator.state == "missing"
    assert aggregator.found == "no amqtt"
    assert "pip install 'device-runtime[aggregator]' for `serve`" in aggregator.advice


def test_examining_imports_neither_torch_nor_aggregator_nor_simulation(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom device_runtime.cli.on_device.doctor import examine\n"
        f"assert len(list(examine({BUNDLE!r}, Path({str(tmp_path)!r})))) > 10\n"
        "print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(out.stdout))
    assert "onnxruntime" in loaded
    assert not loaded & {
        "torch",
        "onnx",
        "onnxscript",
        "device_runtime.aggregator",
        "device_runtime.simulation",
        "amqtt",
        "rich",
        "sklearn",
        "scipy",
        "dp_accounting",
    }


def test_findings_are_in_the_order_in_which_they_matter(tmp_path):
    whats = [finding.what for finding in examine(BUNDLE, Path(tmp_path))]
    assert whats.index("python") < whats.index("bundle") < whats.index("engine onnxruntime")
    assert whats.index("training step") < whats.index("extra torch")


def test_the_meter_of_energy_is_named_with_those_that_cannot_be_read():
    findings = list(energy(FoundMeter(None, ("rapl: /sys/x may be read by root only: sudo chmod",))))
    assert states(findings) == {"energy meter": "missing", "energy meter rapl": "missing"}
    assert findings[0].found == "modelled: from 2 W idle, 8 W under load (assumed: no profile), ± 100%"
    assert findings[1].found == "/sys/x may be read by root only: sudo chmod"
    [ok] = energy(find_meter("command:echo 3 W"))
    assert (ok.state, ok.found) == ("ok", "command: what the command measures, ± 5%")


def test_rules_of_the_devices_here_are_told_with_what_they_say_now(tmp_path, capsys):
    (tmp_path / "free").mkdir()
    owner.keep(Policy(), tmp_path / "free")
    (tmp_path / "busy").mkdir()
    owner.keep(Policy(daily_bytes=10**6, windows=(DayWindow.of("00:00-24:00"),)), tmp_path / "busy")
    owner.keep(Policy(daily_bytes=0), tmp_path)
    alone, busy = rules(tmp_path)
    assert (alone.what, alone.state, alone.found) == (
        "rules", "missing", "no work may be done now: 0.00 of 0 MB sent and received today",
    )  # fmt: skip
    assert (busy.what, busy.state) == ("rules of busy", "ok")
    assert busy.found.startswith("work may be done now: it is ")
    assert busy.found.endswith("in 00:00-24:00; 0.00 of 1 MB sent and received today")
    assert main(["explain", "--samples", "20", "--kinds", "class-means", "--state", str(tmp_path)]) == 0
    assert "\nrules: no work may be done now: 0.00 of 0 MB" in capsys.readouterr().out


def test_rules_that_cannot_be_read_are_said(tmp_path):
    (tmp_path / owner.POLICY).write_text("{")
    [finding] = rules(tmp_path)
    assert (finding.state, "policy.json cannot be read" in finding.found) == ("missing", True)
