"""Two tasks of one process in PostgreSQL, with workers: whatever is killed, each has all of its own."""

import signal
from collections import Counter
from contextlib import closing

import pytest

from device_runtime.aggregator.storage import tables as place
from device_runtime.aggregator.storage.store import Store

TASKS = {"digits": ("full", "few-shot"), "letters": ("zeroth-order", "class-means")}
ROUNDS = {"digits": 20, "letters": 60}
TASK = """bundle = "digits-wrn-10-1"
rounds = {rounds}
round_deadline_s = 60
min_devices = {devices}
min_contributions = {devices}
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def served(serve, closed_broker, postgres, scripted, update_of, tmp_path):
    """Start the service of both tasks, and its devices, each with a kind of its own."""
    url_of = closed_broker(*(f"pi-{kind}" for kinds in TASKS.values() for kind in kinds))
    for name, kinds in TASKS.items():
        text = TASK.format(rounds=ROUNDS[name], devices=len(kinds))
        (tmp_path / f"{name}.toml").write_text(
            text + "".join(f'[[kinds]]\nname = "{kind}"\n' for kind in kinds)
        )

    def contribute(kind):
        return lambda offer: (kind, *update_of(kind, offer.round))

    def start():
        files = [tmp_path / f"{name}.toml" for name in TASKS]
        where = ("--broker", url_of("aggregator"), "--run-dir", tmp_path / "runs", "--database", postgres.url)
        return serve(*files, *where, "--workers", 2)

    start.devices = [
        scripted(f"pi-{kind}", url_of(f"pi-{kind}"), contribute(kind), task)
        for task, kinds in TASKS.items()
        for kind in kinds
    ]
    return start


def test_what_is_killed_costs_no_task_anything_and_none_has_of_the_other_s(
    served, alive, postgres, eventually, tmp_path
):
    def more(count=3):
        """Every device of a task that is not over has so many more receipts."""
        before = [len(device.receipts) + count for device in served.devices]
        assert eventually(
            lambda: all(
                device.done or len(device.receipts) >= least
                for device, least in zip(served.devices, before, strict=True)
            )
        )

    first = served()
    more()
    victim = alive(first)[0]
    victim.kill()
    assert eventually(lambda: {process.pid for process in alive(first)} - {victim.pid})
    more()
    first.kill()
    first.wait()
    second = served()
    more()
    postgres.kill()
    postgres.start()
    more()
    second.send_signal(signal.SIGTERM)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert "letters: stopped in round" in output
    assert "is lost, trying again" in output
    last = served()
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    assert "Traceback" not in output
    assert eventually(lambda: all(device.done for device in served.devices))

    assert len({place.database_place_of(tmp_path / "runs" / task).schema for task in TASKS}) == 2
    for task, kinds in TASKS.items():
        numbers = range(1, ROUNDS[task] + 1)
        with closing(Store(tmp_path / "runs" / task, reading=True)) as store:
            contributions = [entry for number in numbers for entry in store.contributions.of_round(number)]
            closed = store.rounds.closed()
        stored = Counter((entry.round, entry.device, entry.kind) for entry in contributions)
        assert stored == {(number, f"pi-{kind}", kind): 1 for number in numbers for kind in kinds}
        assert [entry.record.round for entry in closed] == list(numbers)
    statuses = {receipt.status for device in served.devices for receipt in device.receipts}
    assert statuses <= {"accepted", "duplicate"}
