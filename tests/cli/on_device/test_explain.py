"""What `explain` says of the privacy of each kind, and of rounds with masks."""

import json
from dataclasses import replace

import msgspec
import pytest

from device_runtime.aggregator.tasks.feasible import trained_parts, with_members
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli import main
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.delivery.offered_task import OfferedTask
from device_runtime.device.policy import work_gate
from device_runtime.device.policy.rules import AllowList, Policy
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.kinds import registry

CLUB, OTHER = (f"{name}={digits * 32}" for name, digits in (("club", "5b"), ("other", "7c")))
TASK = ("explain", "--board", "pi-5", "--samples", "180")


@pytest.fixture
def explained(capsys):
    def rows(*words):
        assert main([*TASK, "--format", "json", *words]) == 0
        return {row["kind"]: row for row in json.loads(capsys.readouterr().out)}

    return rows


def test_explain_says_what_each_kind_reveals_with_and_without_masks_in_one_line_a_kind(capsys):
    assert main([*TASK, "--kinds", "full,few-shot,prototypes,class-means"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [first] = [at for at, line in enumerate(lines) if line.startswith("it reveals")]
    reasons = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines[first + 2 : -2]}
    assert reasons == {
        "full": "the sum of several devices",
        "few-shot": "the sum of several devices",
        "prototypes": "cannot be masked",
        "class-means": "the sum of several devices",
    }
    assert "sum of features and number of samples of each class" in lines[first + 5]
    assert lines[-1].startswith("Masked or not, the aggregator sees the kind, the number of samples")


def test_every_kind_says_what_it_reveals():
    assert [name for name, kind in registry.kinds().items() if not kind.traits.reveals] == []


def test_a_masked_round_is_planned_with_its_own_bytes_and_without_kinds_that_do_not_add_up(explained):
    kinds = ("--kinds", "full+few-shot,few-shot,class-means", "--head", "trained")
    clear, masked = explained(*kinds), explained(*kinds, "--mask-helpers", CLUB)
    assert masked["few-shot"]["taken"]
    assert masked["few-shot"]["cost"]["bytes_up"] == 120 + 4 * (650 + 4) + 8 * 2
    assert masked["class-means"]["cost"]["bytes_up"] == 120 + 4 * 4 + 8 * (2 + 650)
    assert clear["full+few-shot"]["taken"]
    assert masked["full+few-shot"]["why"] == "cannot be masked: its updates do not fold as a sum"


def test_the_rules_of_a_device_for_masks_are_told(explained, tmp_path):
    work_gate.keep(Policy(allowed=AllowList(mask_helpers=(CLUB,), only_masked=True)), tmp_path)
    task = ("--kinds", "class-means", "--state", str(tmp_path))
    clear = "the aggregator would see this device's own update, the owner allows masked ones only"
    assert explained(*task)["class-means"]["why"] == clear
    why = explained(*task, "--mask-helpers", OTHER)["class-means"]["why"]
    assert why == f"its updates are masked for other={'7c' * 8}, the owner allows club={'5b' * 8}"
    assert explained(*task, "--mask-helpers", CLUB)["class-means"]["taken"]


def test_it_plans_for_the_kinds_and_the_order_of_a_task_that_names_none(explained):
    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    task = with_members(Task(bundle="digits-wrn-10-1"), tuple(trained_parts(Task(bundle="b"), bundle)))
    labels = [f"{form.name} {form.variant}".rstrip() for form in task.preferred(1)]
    assert list(explained()) == labels
    assert [name.split(" ")[0] for name in explained("--kinds", "width-slice,full")][:2] == [
        "width-slice"
    ] * 2


def test_it_says_when_the_device_would_rest(capsys):
    says = 'If the task has rest = "on", it rests in rounds that want nothing of its classes'
    for words, least in (("full", ""), ("class-means", "10%"), ("full,class-means", "")):
        assert main([*TASK, "--kinds", words, "--head", "closed-form"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(says)]
        assert lines == ([f"{says}, and takes part in {least} of them."] if least else [])
    assert main([*TASK, "--kinds", "class-means", "--head", "trained"]) == 0
    assert says not in capsys.readouterr().out


def test_it_says_what_is_in_the_figures(capsys):
    assert main([*TASK]) == 0
    output = capsys.readouterr().out
    assert "digits-wrn-10-1, deadline 60 s" in output
    assert "kB up count the update, its class statistics and the message around them" in output
    assert "of transfer by a link of " in output


def test_the_task_of_a_device_is_planned_for_as_it_is_offered_with_its_deadline(
    capsys, tmp_path, monkeypatch
):
    bundle = Bundle.open(shipped_folder("digits-wrn-10-1"))
    blob = blob_of(b"")
    offer = Offer(
        task="lab", run="r", round=1, seed=1, deadline_s=33.0, remaining_s=9.0, bundle=blob,
        base=Base(checkpoint=(blob,), sha=blob.sha), kinds=(registry.write(registry.make("few-shot")),),
        title="Read the lab", about="We read.", ask="Draw a digit.",
    )  # fmt: skip
    task = OfferedTask(offer, bundle, {}, None)
    monkeypatch.setattr("device_runtime.cli.on_device.planned_task.fetch", lambda *_: task)
    monkeypatch.setattr("device_runtime.device.connection.connecting.is_enrolled", lambda _: True)
    url = BrokerUrl.parse("mqtt://127.0.0.1")
    monkeypatch.setattr(
        "device_runtime.device.connection.connecting.connect", lambda _: Connection(url, "pi", tmp_path, "pi")
    )
    assert main(["explain", "--samples", "20"]) == 0
    output = capsys.readouterr().out
    assert "task 'lab' (Read the lab) as it is offered, deadline 33 s\nWe read. Draw a digit.\n" in output
    assert "few-shot" in output and "zeroth-order" not in output
    assert main(["explain", "--samples", "20", "--deadline", "44"]) == 0
    assert "task 'lab' (Read the lab) as it is offered, deadline 44 s" in capsys.readouterr().out
    lobby = replace(task, offer=msgspec.structs.replace(offer, round=0, kinds=()))
    monkeypatch.setattr("device_runtime.cli.on_device.planned_task.fetch", lambda *_: lobby)
    assert main(["explain", "--samples", "20"]) == 0
    output = capsys.readouterr().out
    assert "(Read the lab), which has no round open for this device: the usual kinds, deadline 33" in output
    assert "zeroth-order" in output
