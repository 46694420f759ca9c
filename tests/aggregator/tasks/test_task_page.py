import json
import re
import runpy
from pathlib import Path

import msgspec
import pytest

from device_runtime.aggregator.tasks import task as tasks
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.content import tomllib
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.statistics import kind_statistics

ROOT = Path(__file__).parents[3]
PAGE = runpy.run_path(str(ROOT / "docs" / "task.py"))
KEYS = [(Task, row) for row in ranges.list_settings(Task)] + [
    (KindSettings, row) for row in ranges.list_settings(KindSettings)
]


def test_the_page_of_a_task_s_settings_is_what_the_command_writes():
    written = (ROOT / "docs" / "task.md").read_text("utf-8")
    assert written == PAGE["page"](), "run: python docs/task.py"


def test_the_page_of_kinds_has_the_table_that_the_command_prints():
    assert PAGE["overview"]() in (ROOT / "docs" / "kinds.md").read_text("utf-8")


@pytest.mark.parametrize(("owner", "row"), KEYS, ids=[f"{owner.__name__}-{row.name}" for owner, row in KEYS])
def test_every_key_is_described_and_its_example_is_accepted(owner, row):
    assert row.meaning.endswith(".")
    assert row.unit
    needed = {"bundle": "b", "kinds": [{"name": "full"}]} if owner is Task else {"name": "full"}
    settings = tomllib.loads(row.example)
    assert settings == json.loads(msgspec.json.encode(row.settings))
    msgspec.convert({**needed, **settings}, owner)


def test_the_task_file_of_the_deployment_is_read_also_with_all_that_it_proposes(tmp_path):
    text = (ROOT / "deploy" / "site" / "task.toml").read_text("utf-8")
    assert tasks.load(ROOT / "deploy" / "site" / "task.toml", {}).rounds == 100
    whole = re.sub(r"^# (?=\w+ = |\[)", "", text, flags=re.M)
    (tmp_path / "task.toml").write_text(whole, "utf-8")
    task = tasks.load(tmp_path / "task.toml", {})
    assert (task.robust, task.server.name, task.devices_per_round) == ("median", "fedadam", 10)
    assert [kind.strategy for kind in task.kinds] == [
        kind_statistics.with_class_statistics(
            FedAvg(graded=True, weigh_epochs=True, epochs=5, lr=0.05, batch=32), task.statistics
        ),
        kind_statistics.with_class_statistics(FewShot(join_base=True, least_samples=40), task.statistics),
    ]
