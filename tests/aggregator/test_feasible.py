import logging

import pytest

from aggregator.errors import TaskError
from aggregator.feasible import check_kinds
from aggregator.task import KindSettings
from strategies import registry

LORA = KindSettings(name="zeroth-order", settings={"tunable": "lora"})


def test_every_kind_can_be_done_with_the_shipped_bundle(make_task, manifest, caplog):
    check_kinds(make_task(*registry.USUAL), manifest)
    assert not caplog.records


def test_a_task_that_no_device_could_do_is_refused_when_it_is_served(make_task, manifest):
    with pytest.raises(
        TaskError,
        match="no device can do what round 1 offers: zeroth-order needs .*lora, the bundle has",
    ):
        check_kinds(make_task(LORA, KindSettings(name="full", from_round=2)), manifest)


def test_a_kind_that_the_bundle_lacks_graphs_for_is_named_beside_others(make_task, manifest, caplog):
    caplog.set_level(logging.WARNING)
    check_kinds(make_task(LORA, "full"), manifest)
    assert "no device can do this kind: zeroth-order needs" in caplog.text
