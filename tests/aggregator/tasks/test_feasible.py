import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.feasible import check_kinds
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.plugins import own_code

LORA = KindSettings(name="zeroth-order", settings={"tunable": "lora"})


def test_every_kind_can_be_done_with_the_shipped_bundle(make_task, manifest, caplog):
    check_kinds(make_task(*registry.DEFAULT_KINDS), manifest)
    assert not caplog.records


def test_a_task_that_no_device_could_do_is_refused_when_it_is_served(make_task, manifest):
    with pytest.raises(
        TaskError,
        match="no device can do what round 1 offers: zeroth-order needs .*lora, the bundle has .*"
        "head: export it with --tunable lora$",
    ):
        check_kinds(make_task(LORA, KindSettings(name="full", from_round=2)), manifest)


def test_a_kind_that_the_bundle_lacks_graphs_for_is_named_beside_others(make_task, manifest, caplog):
    caplog.set_level(logging.WARNING)
    check_kinds(make_task(LORA, "full"), manifest)
    assert "no device can do this kind: zeroth-order needs" in caplog.text


def test_what_later_rounds_lack_is_not_said_of_the_first(make_task, manifest):
    tuned = KindSettings(name="peft", settings={"tunable": "bias"}, from_round=2)
    with pytest.raises(TaskError) as refused:
        check_kinds(make_task(LORA, tuned), manifest)
    assert "lora" in str(refused.value)
    assert "peft" not in str(refused.value)


def test_an_objective_that_the_bundle_lacks_is_named_with_the_options_that_export_it(make_task, manifest):
    moon = KindSettings(name="full", settings={"terms": {"moon": {"mu": 1.0}}})
    with pytest.raises(
        TaskError, match=r"full needs graph moon\.all, .*: export it with --objective moon --"
    ):
        check_kinds(make_task(moon), manifest)


def test_a_width_slice_of_no_family_would_be_a_full_update_by_another_name(make_task, manifest):
    with pytest.raises(
        TaskError, match="cannot be merged: it has no narrower models: export the network with its parts"
    ):
        check_kinds(make_task("full", "width-slice"), manifest)


@pytest.mark.parametrize("kind", ["few-shot", "representatives", "prototypes", "attention-transfer"])
def test_a_kind_that_works_by_class_is_named_for_a_bundle_of_another_loss(make_task, exported, kind, caplog):
    houses = Bundle.open(exported.of_loss("mse")).manifest
    reason = f"{kind} works by class, and the bundle's loss is mse of price, area"
    with pytest.raises(TaskError, match=f"no device can do what round 1 offers: {reason}"):
        check_kinds(make_task(kind), houses)
    check_kinds(make_task("full", kind), houses)
    assert reason in caplog.text


def fail(*_):
    return 1 / 0


@pytest.mark.parametrize("hook", ["variants", "expected", "cost"])
def test_an_own_kind_that_fails_when_it_is_asked_what_it_is_is_named_by_file_and_line(
    hook, make_task, manifest, monkeypatch
):
    methods = {hook: fail, "name": "mine", "__annotations__": {"name": ClassVar[str]}, "__module__": __name__}
    kind = dataclass(frozen=True)(type("Mine", (FedAvg,), methods))
    monkeypatch.setitem(FedAvg.registry, "mine", kind)
    with pytest.raises(OwnCodeError, match=r"test_feasible.py:\d+: ZeroDivisionError: division by zero"):
        check_kinds(make_task("mine"), manifest)


def test_code_that_has_no_file_is_named_by_its_class():
    code = {}
    exec(compile("class Typed:\n    def fail(self):\n        1 / 0", "<string>", "exec"), code)  # noqa: S102
    with pytest.raises(OwnCodeError, match="^class Typed: ZeroDivisionError"), own_code(code["Typed"]):
        code["Typed"]().fail()
