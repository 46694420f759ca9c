"""Devices of JavaScript modules, in Node, in real federated runs, beside devices in Python."""

import csv
import json
import queue
import shutil
from collections import Counter
from contextlib import ExitStack, closing

import pytest

from device_runtime.aggregator.storage.store import Store
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import WEB_USER, BrokerOptions, WebSockets
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import closed_form, held_out

from .conftest import DEVICES
from .services import Services, task
from .serving_pages import WEB

KINDS = ("full", "peft", "entropy-subset", "few-shot", "zeroth-order", "class-means")
BUNDLE = "digits-wrn-10-1"


@pytest.fixture
def broker():
    """With WebSockets."""
    running = brokers.start(options=BrokerOptions(web=WebSockets(password="web")))
    yield running
    running.stop()


@pytest.fixture
def serve(broker, launched, tmp_path):
    """A service; `flags` are its options and their values, `files` its tasks."""

    def start(*files, run="run", **flags):
        options = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]
        where = ("--broker", broker.url, "--run-dir", tmp_path / run)
        return launched(tmp_path / f"{run}.log", "serve", *options, *where, *files)

    return start


@pytest.fixture
def join(broker, launched, digits, tmp_path):
    """A device in Node, over WebSockets (`web`) or TCP, or in Python: with the samples of this number."""
    node = shutil.which("node")
    if node is None or not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("needs Node, and: npm ci && npm run vendor in web/")

    def start(name, number, *extra, program="node", web=True, run="run"):
        state = tmp_path / f"{run}-{name}"
        settings = (
            "--name",
            name,
            "--data",
            digits / f"{number}.npz",
            "--state",
            state,
            "--until-done",
            *extra,
        )
        log = tmp_path / f"{run}-{name}.log"
        if program == "python":
            return launched(log, "join", broker.url, *settings)
        url = broker.web_url.replace("://", f"://{WEB_USER}:web@") if web else broker.url
        return launched(log, "--broker", url, *settings, other=(node, str(WEB / "node" / "run.js")))

    return start


class Overheard:
    """What devices and the aggregator say on a broker."""

    def __init__(self, broker):
        self.inbox = queue.SimpleQueue()
        self.link = Link(
            BrokerUrl.parse(broker.url),
            "overhears",
            self.inbox,
            LinkOptions(subscriptions=(f"{topics.ROOT}/#",)),
        )
        self.link.connect()

    def until(self, leaf, timeout_s=120):
        """Wait for the next message whose topic ends so."""
        while True:
            event = self.inbox.get(timeout=timeout_s)
            if isinstance(event, Received) and event.topic.endswith(leaf):
                return event


@pytest.fixture
def overheard(broker):
    messages = Overheard(broker)
    yield messages
    messages.link.close()


def table(run):
    with (run / "rounds.csv").open() as rounds:
        return list(csv.DictReader(rounds))


def counted(lines, run):
    """How often each (round, device) was counted."""
    return Counter((row["round"], row["device"]) for row in lines(run / "contributions.jsonl"))


def test_a_javascript_and_a_python_device_finish_a_run(serve, join, digits, lines, tmp_path):
    options = {"kinds": "few-shot,full", "deadline": 600, "min-devices": 2, "eval-data": digits / "held.npz"}
    started = serve(bundle=BUNDLE, rounds=2, **options), join("js", 0), join("py", 3, program="python")
    with ExitStack() as stack:
        processes = [stack.enter_context(process) for process in started]
        assert [process.wait(600) for process in processes] == [0, 0, 0]
    run = tmp_path / "run"
    assert counted(lines, run) == {(number, name): 1 for number in (1, 2) for name in ("js", "py")}
    assert float(table(run)[-1]["eval_acc"]) > 0.5
    sent = [row["bytes_up"] for row in lines(run / "contributions.jsonl") if row["round"] == 2]
    assert max(sent) - min(sent) < 30  # of times and losses, written in as few bytes as they take


@pytest.mark.slow
def test_a_javascript_device_contributes_every_kind_one_task_after_the_other(serve, join, lines, tmp_path):
    files = []
    for number, kind in enumerate(KINDS):
        settings = "tunable = 'head'" if kind == "peft" else ""
        form = f"{{ name = '{kind}', settings = {{ {settings} }} }}"
        files.append(tmp_path / f"{number}-{kind}.toml")
        files[-1].write_text(f"bundle = '{BUNDLE}'\nrounds = 2\nround_deadline_s = 600\nkinds = [{form}]\n")
    with serve(*files) as service, join("js", 0, web=False):
        assert service.wait(600) == 0
    sent = [row for path in (tmp_path / "run").rglob("contributions.jsonl") for row in lines(path)]
    assert {(row["kind"], row["round"]) for row in sent} == {(kind, n) for kind in KINDS for n in (1, 2)}


def closed_form_task(path, statistics):
    """Two rounds of full updates with these class statistics, as a file."""
    text = f"bundle = '{BUNDLE}'\nrounds = 2\nround_deadline_s = 600\nhead = 'closed-form'\n"
    text += f"kinds = [{{ name = 'full', settings = {{ epochs = 1 }} }}]\nstatistics = {{ {statistics} }}\n"
    (path / "task.toml").write_text(text)


@pytest.mark.slow
def test_class_statistics_of_a_javascript_device_make_the_head_that_is_served(serve, join, lines, tmp_path):
    closed_form_task(tmp_path, "smallest_count = 1")
    with serve(tmp_path / "task.toml") as service, join("js", 0, web=False):
        assert service.wait(600) == 0
    run = tmp_path / "run"
    sent = [row["num_examples"] for row in lines(run / "contributions.jsonl")]
    with closing(Store(run, reading=True)) as store:
        memory = tensors.decode(store.models.get(store.rounds.start(3).carried.memory[closed_form.MEMORY]))
        assert [store.rounds.closed(number)[0].note for number in (1, 2)] == ["", ""]
    pool = closed_form.StatisticsPool.of(memory, 10, ClassStatistics().projection(64))
    assert (pool.rounds, pool.samples) == (2, sum(sent) / 2)


@pytest.mark.slow
def test_a_javascript_device_counts_what_it_held_out_by_the_head_that_came_beside_the_base(
    serve, join, lines, tmp_path
):
    closed_form_task(tmp_path, "hold_out = 0.5")
    with serve(tmp_path / "task.toml") as service, join("js", 0, web=False):
        assert service.wait(600) == 0
    run = tmp_path / "run"
    trained = [row["num_examples"] for row in lines(run / "contributions.jsonl")]
    with closing(Store(run, reading=True)) as store:
        memory = tensors.decode(store.models.get(store.rounds.start(3).carried.memory[closed_form.MEMORY]))
        note = store.rounds.closed(2)[0].note
    total, closed, _ = memory["right"]
    assert abs(total - trained[1]) <= 1
    assert 0 <= closed <= total and note == held_out.trained_is_better(memory["right"])


@pytest.mark.slow
def test_a_javascript_device_killed_while_it_uploads_counts_once_when_it_is_there_again(
    serve, join, overheard, lines, tmp_path
):
    with serve(bundle=BUNDLE, rounds=2, kinds="full", deadline=600) as service:
        with join("js", 0, web=False) as device:
            overheard.until("up/contribution")
            device.kill()
            device.wait(600)
        with join("js", 0, web=False) as again:
            assert service.wait(600) == 0
            assert again.wait(600) == 0
    assert counted(lines, tmp_path / "run") == {(1, "js"): 1, (2, "js"): 1}
    [first] = [row for row in lines(tmp_path / "run" / "contributions.jsonl") if row["round"] == 1]
    log = (tmp_path / "run-js.log").read_text()
    assert log.count("round 1: full") == 1
    assert "round 1: full accepted" in log
    assert first["kind"] == "full"


@pytest.mark.slow
def test_a_round_goes_on_with_a_javascript_device_when_the_aggregator_is_killed(
    serve, join, overheard, lines, tmp_path
):
    flags = {"bundle": BUNDLE, "rounds": 3, "kinds": "full", "deadline": 600}
    with join("js", 0, web=False) as device:
        for leaf in ("up/plan", "up/contribution"):
            with serve(**flags) as service:
                overheard.until(leaf)
                service.kill()
        with serve(**flags) as service:
            assert service.wait(600) == 0
        assert device.wait(600) == 0
    assert counted(lines, tmp_path / "run") == {(number, "js"): 1 for number in (1, 2, 3)}


@pytest.mark.slow
def test_half_the_devices_in_javascript_learn_as_well_as_all_in_python(serve, join, digits, tmp_path):
    options = {"kinds": "full", "deadline": 600, "min-devices": 6, "eval-data": digits / "held.npz"}
    accuracies = {}
    for javascript in (3, 0):
        run = f"with-{javascript}"
        with serve(bundle=BUNDLE, rounds=8, run=run, **options) as service, ExitStack() as stack:
            for n in range(DEVICES):
                program = "node" if n < javascript else "python"
                stack.enter_context(join(f"device-{n}", n, program=program, web=n == 0, run=run))
            assert service.wait(900) == 0
        accuracies[javascript] = [float(row["eval_acc"]) for row in table(tmp_path / run)]
    print(json.dumps(accuracies))
    assert accuracies[3][-1] > 0.9
    assert abs(accuracies[3][-1] - accuracies[0][-1]) < 0.02


@pytest.mark.slow
def test_a_device_in_node_takes_part_through_the_gateway_of_the_page(launched, eventually, digits, tmp_path):
    pytest.importorskip("fastapi", reason="HTTP needs pip install 'device-runtime[service]'")
    services = Services(launched, eventually, tmp_path)
    node = shutil.which("node")
    if node is None or not (WEB / "vendor" / "msgpack" / "index.mjs").exists():
        pytest.skip("needs Node, and: npm ci && npm run vendor in web/")
    with services(task(tmp_path / "task.toml", rounds=2, epochs=1)) as served:
        gateway = served.pages.origin.replace("http://", "ws://") + "/join/mqtt"
        settings = (
            "--name",
            "node",
            "--data",
            digits / "0.npz",
            "--state",
            tmp_path / "node",
            "--until-done",
        )
        log = tmp_path / "node.log"
        words = (node, str(WEB / "node" / "run.js"))
        with launched(log, "--broker", gateway, *settings, other=words) as device:
            assert served.process.wait(900) == 0
            assert device.wait(600) == 0, log.read_text()
    sent = served.contributions()
    assert [(row["device"], row["round"], row["kind"]) for row in sent] == [
        ("node", 1, "full"),
        ("node", 2, "full"),
    ]
