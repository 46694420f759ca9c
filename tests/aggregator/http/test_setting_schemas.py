import dataclasses
from math import isfinite

import msgspec
import pytest

from device_runtime.aggregator.http.server import _app
from device_runtime.aggregator.http.shapes import Health, TaskInfo, setting_schemas
from device_runtime.aggregator.tasks.task import Task
from device_runtime.strategies.settings import REQUIRED, setting_fields

fastapi = pytest.importorskip("fastapi")
SCHEMAS = setting_schemas(Task)
TABLES = {entry.table.__name__: entry.table for entry in setting_fields(Task) if entry.table} | {"Task": Task}
FIELDS = [(name, entry) for name, table in TABLES.items() for entry in setting_fields(table)]


def answer(info: str) -> TaskInfo:
    raise NotImplementedError


def description():
    router = fastapi.APIRouter()
    router.add_api_route("/tasks", answer, response_model=TaskInfo)
    return _app([router], guard=None, look=lambda: Health(True, [])).openapi()


def test_the_rest_api_describes_the_settings_of_a_task():
    whole = description()
    schemas = whole["components"]["schemas"]
    assert schemas["TaskInfo"]["properties"]["settings"] == {"$ref": "#/components/schemas/Task"}
    assert {name: schemas[name] for name in SCHEMAS} == SCHEMAS
    assert SCHEMAS.keys() == TABLES.keys()


def test_what_the_service_says_of_a_task_has_exactly_the_described_keys():
    settings = msgspec.json.decode(Task(bundle="b").json())
    assert settings.keys() == SCHEMAS["Task"]["properties"].keys()
    assert settings["statistics"].keys() == SCHEMAS["ClassStatistics"]["properties"].keys()
    assert settings["server"].keys() == SCHEMAS["ServerOptimizer"]["properties"].keys()
    assert settings["kinds"][0].keys() == SCHEMAS["KindSettings"]["properties"].keys()


@pytest.mark.parametrize(("table", "entry"), FIELDS, ids=[f"{table}-{entry.name}" for table, entry in FIELDS])
def test_type_default_limits_and_meaning_are_those_of_the_declaration(table, entry):
    schema, setting = SCHEMAS[table]["properties"][entry.name], entry.setting
    assert schema["description"] == entry.meaning
    assert schema.get("x-unit", "-") == setting.unit
    if entry.default is REQUIRED:
        assert entry.name in SCHEMAS[table]["required"]
        assert "default" not in schema
    else:
        own = dataclasses.asdict(entry.default) if dataclasses.is_dataclass(entry.default) else entry.default
        assert schema["default"] == msgspec.to_builtins(own)
    value = schema["anyOf"][0] if "anyOf" in schema else schema
    value = value.get("items", value)
    assert sorted(value.get("enum", ())) == sorted(entry.choices)
    limits = {
        "minimum": setting.at_least,
        "exclusiveMinimum": setting.more_than,
        "maximum": setting.at_most,
        "exclusiveMaximum": setting.less_than,
    }
    finite = {key: limit for key, limit in limits.items() if isfinite(limit)}
    assert {key: value[key] for key in limits if key in value} == finite
