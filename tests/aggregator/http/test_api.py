"""What REST reads of a run beside the aggregator, where that is in PostgreSQL."""

from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")

from fastapi import HTTPException, Request

from device_runtime.aggregator.http.api import TaskRoutes, TokenGuard
from device_runtime.aggregator.http.metrics import ProcessMetrics
from device_runtime.aggregator.http.security import Token
from device_runtime.aggregator.http.watch import ServedTask
from device_runtime.aggregator.machine.ports import LoopClock
from device_runtime.aggregator.storage import tables as place
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.task import Task


class Broker:
    bytes_up = bytes_down = 0
    connected = True


REQUEST = Request({"type": "http", "client": ("192.0.2.7", 5000)})


@pytest.fixture
def api(postgres, tmp_path, clock):
    """Of a run whose folder names a user who must give a password, which the folder does not hold."""
    with closing(Store(tmp_path, database=postgres.url)):
        earlier = place.database_place_of(tmp_path)
    server = f"host=127.0.0.1 port={postgres.port} user=locked dbname=fl"
    place.store_database_place(tmp_path, place.DatabasePlace(server, earlier.schema))

    def make(database):
        hosted = ServedTask(
            Task(bundle="digits-wrn-10-1", name="digits"),
            tmp_path,
            Broker(),
            LoopClock(clock),
            clock,
            database,
        )
        return TaskRoutes([hosted], TokenGuard(Token("sixteen-or-more-letters")), ProcessMetrics())

    return make


def test_versions_are_read_as_the_service_s_own_settings_say(api, postgres):
    with_settings = api(postgres.url)
    assert with_settings.versions("digits") == []
    with pytest.raises(HTTPException, match="no model of round 1 is kept") as none:
        with_settings.rollback("digits", 1, REQUEST)
    assert none.value.status_code == 409


def test_a_database_that_does_not_answer_is_said(api):
    without = api("")
    for call in (lambda: without.versions("digits"), lambda: without.rollback("digits", 1, REQUEST)):
        with pytest.raises(HTTPException, match="PostgreSQL at 127.0.0.1:.* no password supplied") as caught:
            call()
        assert caught.value.status_code == 503
