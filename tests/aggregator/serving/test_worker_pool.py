"""Workers: what they find is what the aggregator would have found; killed, they lose nothing."""

import argparse
import os
import queue
import select
import signal
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import closing, suppress

import numpy as np
import pytest

from device_runtime import cli
from device_runtime.aggregator.configuration.config import LogSection
from device_runtime.aggregator.delivery.router import Router
from device_runtime.aggregator.errors import ConfigError, DatabaseError, WorkerError, exit_code
from device_runtime.aggregator.intake.check import CheckedMessage
from device_runtime.aggregator.serving import worker_main as worker
from device_runtime.aggregator.serving.process import Process
from device_runtime.aggregator.serving.worker_main import ContributionChecker, check_received
from device_runtime.aggregator.serving.worker_pool import (
    CheckedContribution,
    MessageOfWorker,
    WorkerOrder,
    WorkerReady,
    Workers,
    read_message,
    write_message,
)
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.servers import mosquitto
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import Metrics
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.operator import serve as command
from device_runtime.service_process import Exit

DATABASES = ("sqlite", "postgres")
KINDS = ("full", "few-shot", "zeroth-order", "class-means")


@pytest.fixture
def looked_at(bench, make_task):
    """A bench whose contributions a checker has looked at, as a worker would, or (`alone`) none has."""
    checkers = []

    def make(*kinds, alone, **settings):
        b = bench(make_task(*kinds, **settings))
        b.join("pi-01", "pi-02")
        checker = ContributionChecker(b.folder, b.database)
        checkers.append(checker)
        if not alone:
            raw = b.raw

            def looked(topic, payload, retain=False):
                if not topic.endswith("/contribution"):
                    return raw(topic, payload, retain)
                b.looks.append(check_received(Received(topic, payload, retain), {b.task.name: checker}))
                b.service.handle(b.looks[-1])
                return b.service.tick()

            b.raw = looked
        b.looks, b.checker = [], checker
        return b

    yield make
    for checker in checkers:
        checker.close()


def strange(b, update_of):
    """Contributions of all sorts, by what is the matter with them."""
    good, examples = update_of("few-shot", 1)
    name, head = next((name, value) for name, value in good.items() if value.ndim == 2)
    bad = Metrics(train_loss=-5.0, train_time_ms=1, energy_mj=1, peak_memory_kib=1)
    yield "sound", b.contribution("few-shot", (good, examples))
    yield "again", b.contribution("few-shot", (good, examples))
    yield "shape", b.contribution("few-shot", ({**good, name: head[:-1]}, examples), seq=8)
    yield "far", b.contribution("few-shot", ({**good, name: head + 100}, examples))
    yield "nan", b.contribution("few-shot", ({**good, name: head * np.nan}, examples))
    yield "rubbish", b.contribution("few-shot", (b"rubbish", examples))
    yield "metrics", b.contribution("few-shot", (good, examples), metrics=bad)
    yield "examples", b.contribution("few-shot", (good, 0))
    yield "kind", b.contribution("class-means", update_of("class-means"))
    yield "run", b.contribution("few-shot", (good, examples), run="another")
    yield "future", b.contribution("few-shot", (good, examples), number=2)
    yield "never", b.contribution("few-shot", (good, examples), number=0)
    yield "blob", b.contribution("full", update_of("full", 1))


KIND_SETTINGS = (
    (KindSettings(name="few-shot"), KindSettings(name="full")),
    (KindSettings(name="few-shot", max_norm=20.0), KindSettings(name="full")),
)


@pytest.mark.parametrize("kinds", KIND_SETTINGS, ids=["plain", "bounded"])
def test_what_a_worker_has_looked_at_has_the_same_receipts_as_what_it_has_not(looked_at, update_of, kinds):
    answers = {}
    for alone in (True, False):
        b = looked_at(*kinds, alone=alone, min_contributions=99)
        answers[alone] = [
            (what, receipt.status, receipt.reason.replace(b.service.run_id, "RUN"))
            for what, message in strange(b, update_of)
            for receipt in b.contribute("sound" if what == "again" else what, message)
        ]
    assert answers[False] == answers[True]
    refusals = {what: look.refusal for (what, *_), look in zip(answers[False], b.looks, strict=True)}
    statuses = Counter(status for _, status, _ in answers[True])
    assert statuses == {
        "accepted": 2 + (not kinds[0].max_norm),
        "duplicate": 1,
        "refused": 10 - (not kinds[0].max_norm),
    }
    assert refusals["sound"] == ""
    assert {what for what, refusal in refusals.items() if refusal is None} == (
        {"run", "never", "blob"} | ({"future"} if kinds[0].max_norm else set())
    )


def test_late_ones_count_or_not_as_ever(looked_at, update_of):
    statuses = {}
    for late in ("count", "discard"):
        b = looked_at("few-shot", alone=False, late=late, rounds=3)
        for device in ("pi-01", "pi-02"):
            b.contribute(device, b.contribution("few-shot", update_of("few-shot", 1)))
        assert b.service.state.round == 2
        b.join("pi-03")
        statuses[late] = b.contribute("pi-03", b.contribution("few-shot", update_of("few-shot", 2)))[0].status
    assert statuses == {"count": "accepted", "discard": "late"}


def test_nothing_is_held_against_the_base_of_a_round_that_is_not_open_yet(looked_at, update_of):
    """Going back to an earlier model may give it another."""
    b = looked_at(KindSettings(name="few-shot", max_norm=20.0), alone=True)
    early = b.contribution("few-shot", update_of("few-shot", 1), number=2)
    assert b.checker.refusal(early) is None
    for device in ("pi-01", "pi-02"):
        b.contribute(device, b.contribution("few-shot", update_of("few-shot", 1)))
    assert b.checker.refusal(early) == ""


def test_the_base_of_a_round_whose_updates_are_too_late_is_not_read(looked_at, update_of, monkeypatch):
    b = looked_at(KindSettings(name="few-shot", max_norm=20.0), alone=True, rounds=3)
    old = b.contribution("few-shot", update_of("few-shot", 1))
    assert b.checker.refusal(old) == ""
    for device in ("pi-01", "pi-02"):
        b.contribute(device, old)
    monkeypatch.setattr("device_runtime.aggregator.storage.bases.base_weights", None)
    assert b.checker.refusal(old) is None


def test_a_base_that_cannot_be_read_leaves_the_check_to_the_aggregator(looked_at, update_of, caplog):
    b = looked_at(KindSettings(name="few-shot", max_norm=20.0), alone=True)
    for part in b.store.rounds.start(1).base.checkpoint:
        path = b.store.models.path(part.sha)
        path.write_bytes(path.read_bytes()[::-1])
    assert b.checker.refusal(b.contribution("few-shot", update_of("few-shot", 1))) is None
    assert "is not checked by the worker" in caplog.text


def test_a_worker_whose_database_was_away_for_too_long_ends_and_another_begins_anew(
    looked_at, update_of, monkeypatch
):
    """One that stayed would not check anything ever again."""
    b = looked_at(KindSettings(name="few-shot", max_norm=20.0), alone=True)
    message = messages.encode(b.contribution("few-shot", update_of("few-shot", 1)))

    def away(number):
        raise DatabaseError("PostgreSQL at db is away for 60 s")

    monkeypatch.setattr(b.checker._store.rounds, "opened", away)
    with pytest.raises(DatabaseError):
        check_received(Received("t", message), {b.task.name: b.checker})


def test_what_is_no_message_is_handed_on(looked_at):
    b = looked_at("few-shot", alone=True)
    for payload in (b"", b"\x00" * 99, b"\xff" * 300_000):
        assert check_received(Received("t", payload), {"task": b.checker}) == CheckedMessage(
            "t", payload, False, None
        )


def test_what_was_looked_at_reaches_its_task_with_what_was_found(looked_at, update_of):
    b = looked_at("class-means", alone=True)
    inboxes = {b.task.name: queue.SimpleQueue(), "other": queue.SimpleQueue()}
    message = messages.encode(b.contribution("class-means", update_of("class-means", 1)))
    event = CheckedMessage(topics.up("pi-01", "contribution"), message, False, "it lies")
    Router(inboxes).route(event)
    assert inboxes[b.task.name].get_nowait() == event
    assert inboxes["other"].empty()
    b.service.handle(event)
    b.service.tick()
    [receipt] = b.receipts("pi-01")
    assert (receipt.status, receipt.reason) == ("refused", "update from pi-01 refused: it lies")


def test_words_of_a_worker_that_was_killed_in_the_middle_end_there(tmp_path):
    word = CheckedContribution("a/b", bytes(300), None)
    with (tmp_path / "pipe").open("wb") as out:
        write_message(out, word)
        write_message(out, word)
    content = (tmp_path / "pipe").read_bytes()
    (tmp_path / "pipe").write_bytes(content[:-1])
    with (tmp_path / "pipe").open("rb") as stream:
        assert read_message(stream, MessageOfWorker) == word
        assert read_message(stream, MessageOfWorker) is None


def test_what_a_worker_has_looked_at_does_not_wait_for_a_message_that_is_worth_looking_at(monkeypatch):
    """The next one to come is of nobody."""
    inboxes, (reading, writing) = [], os.pipe()
    good = Received(topics.up("pi-01", "contribution"), b"rubbish", False)

    class Wire:
        def __init__(self, _url, _name, inbox, _options):
            inboxes.append(inbox)

        def connect(self):
            for event in (good, Received("no/topic/of/ours", b"", False)):
                inboxes[0].put(event)

    monkeypatch.setattr(worker, "Link", Wire)
    monkeypatch.setattr(worker, "_leave_at_the_end", lambda link: None)
    order = WorkerOrder(BrokerUrl.parse("mqtt://127.0.0.1:1"), "t", (), "", LogSection())

    def work():
        with suppress(BrokenPipeError), os.fdopen(writing, "wb") as out:
            worker._serve(order, out)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    with os.fdopen(reading, "rb", buffering=0) as reports:
        assert read_message(reports, MessageOfWorker) == WorkerReady()
        assert select.select([reports], [], [], 60)[0]
        assert read_message(reports, MessageOfWorker) == CheckedContribution(good.topic, good.payload, None)
    inboxes[0].put(good)  # nobody hears of it any more
    working.join(120)
    assert not working.is_alive()


def test_an_embedded_broker_that_cannot_share_is_refused(make_task, tmp_path, monkeypatch):
    monkeypatch.setattr(mosquitto, "find", lambda: None)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--workers", "2", "--run-dir", str(tmp_path / "run")])
    with pytest.raises(
        ConfigError, match=r"workers need shared subscriptions, which amqtt .* lacks: install Mosquitto"
    ):
        Process(command.server_config(args), [make_task("few-shot")]).run()


@pytest.mark.slow
def test_workers_that_cannot_begin_are_the_end_in_words(tmp_path):
    url = BrokerUrl.parse("mqtt://127.0.0.1:1")
    order = WorkerOrder(url, topics.shared("g", topics.CONTRIBUTIONS), (tmp_path,), "", LogSection())
    with pytest.raises(WorkerError, match="worker 1 cannot work: .*No such file") as failed:
        Workers(1, order, queue.SimpleQueue()).__enter__()
    assert exit_code(failed.value) == Exit.FOLDER


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("sys.exit(7)", "status 7"),
        ("sys.stdout.write('no such word' * 999)", "status 0"),
        (
            "sys.stdout.buffer.write(b'\\0\\0\\0\\3abc'); sys.stdout.flush(); sys.stdin.read()",
            "its message is invalid",
        ),
    ],
    ids=["ends", "talks", "confuses"],
)
def test_a_worker_that_is_none_is_ended_and_said(tmp_path, monkeypatch, does, why):
    monkeypatch.setattr("device_runtime.aggregator.serving.worker_pool._PROGRAM", f"import sys; {does}")
    order = WorkerOrder(BrokerUrl.parse("mqtt://127.0.0.1:1"), "t", (tmp_path,), "", LogSection())
    with pytest.raises(WorkerError, match=f"worker 1 cannot work: .*{why}") as failed:
        Workers(1, order, queue.SimpleQueue()).__enter__()
    assert exit_code(failed.value) == Exit.MISTAKE


TALKER = """
import sys
from device_runtime.aggregator.serving.worker_pool import CheckedContribution, WorkerReady, write_message
out = sys.stdout.buffer
for word in (*[WorkerReady()] * 20_000, CheckedContribution("t", b"", None)):
    write_message(out, word)
out.flush()
sys.stdin.read()
"""


@pytest.mark.slow
def test_however_often_a_worker_says_that_it_is_ready_nothing_of_it_is_kept(monkeypatch):
    """It says so at each start."""
    monkeypatch.setattr("device_runtime.aggregator.serving.worker_pool._PROGRAM", TALKER)
    order, inbox = (
        WorkerOrder(BrokerUrl.parse("mqtt://127.0.0.1:1"), "t", (), "", LogSection()),
        queue.SimpleQueue(),
    )
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with Workers(1, order, inbox):
            assert inbox.get(timeout=120) == CheckedMessage("t", b"", False, None)
            assert tracemalloc.get_traced_memory()[0] - before < 60_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_worker_that_is_not_let_in_says_so_and_ends_in_order(closed_broker, capfd):
    url = BrokerUrl.parse(closed_broker()("aggregator").replace("secret", "wrong"))
    order = WorkerOrder(url, topics.shared("g", topics.CONTRIBUTIONS), (), "", LogSection())
    with pytest.raises(WorkerError, match="worker 1 cannot work: .*wrong user name or password"):
        Workers(1, order, queue.SimpleQueue()).__enter__()
    assert "Fatal" not in capfd.readouterr().err


def test_a_worker_that_cannot_reach_the_database_ends_the_service_as_the_database_does(
    closed_broker, postgres, tmp_path, capfd
):
    url = f"postgresql://locked:secret%3A1@127.0.0.1:{postgres.port}/fl"
    options = f"--bundle digits-wrn-10-1 --broker {closed_broker()('aggregator')} --workers 1"
    postgres.sql("GRANT CREATE ON DATABASE fl TO locked; ALTER ROLE locked CONNECTION LIMIT 1")
    try:
        ended = cli.main(["serve", *options.split(), "--run-dir", str(tmp_path / "run"), "--database", url])
    finally:
        postgres.sql("ALTER ROLE locked CONNECTION LIMIT -1")
        postgres.sql("DROP OWNED BY locked CASCADE", "fl")
    error = capfd.readouterr().err
    assert ended == Exit.DATABASE
    assert "worker 1 cannot work: " in error and 'too many connections for role "locked"' in error


@pytest.mark.slow
def test_workers_and_aggregator_are_killed_and_nothing_is_lost_or_counted_twice(
    closed_broker, serve, alive, scripted, update_of, eventually, tmp_path
):
    rounds, folder = 40, tmp_path / "run"
    url_of = closed_broker(*(f"pi-{kind}" for kind in KINDS))
    options = (
        "--bundle digits-wrn-10-1 --deadline 60 --min-devices 4 --min-contributions 4 --workers 2 "
        "--head trained "
        f"--rounds {rounds} --kinds {','.join(KINDS)} --run-dir {folder} "
        f"--broker {url_of('aggregator')}"
    ).split()

    def script(kind):
        def contribute(offer):
            time.sleep(0.05)
            return kind, *update_of(kind, offer.round)

        return contribute

    devices = [scripted(f"pi-{kind}", url_of(f"pi-{kind}"), script(kind)) for kind in KINDS]

    def receipts():
        return sum(len(device.receipts) for device in devices)

    first = serve(*options)
    try:
        for count in (8, 24):
            assert eventually(lambda least=count: receipts() >= least, 120)
            victim = alive(first)[0]
            victim.send_signal(signal.SIGKILL)
            assert eventually(
                lambda dead=victim.pid: dead not in {process.pid for process in alive(first)}, 300
            )
        assert eventually(lambda: len(alive(first)) == 2 and receipts() >= 32, 120)
        orphans = alive(first)
    finally:
        first.kill()
        first.wait()
        log = first.stdout.read()
        first.stdout.close()
    assert log.count("has ended (status -9); starting another") == 2
    assert eventually(lambda: not alive(orphans), 300)
    last = serve(*options)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    assert eventually(lambda: all(device.done for device in devices))

    with closing(Store(folder)) as store:
        contributions = [entry for n in range(1, rounds + 1) for entry in store.contributions.of_round(n)]
        closed = store.rounds.closed()
    stored = Counter((entry.round, entry.device, entry.kind) for entry in contributions)
    assert stored == {(n, f"pi-{kind}", kind): 1 for n in range(1, rounds + 1) for kind in KINDS}
    assert {record.record.participants for record in closed} == {4}
    receipts_ = [(receipt, device) for device in devices for receipt in device.receipts]
    assert {receipt.status for receipt, _ in receipts_} <= {"accepted", "duplicate"}
    assert {(receipt.round, device.device) for receipt, device in receipts_} <= {key[:2] for key in stored}


@pytest.mark.slow
def test_each_contribution_goes_to_one_worker_and_rubbish_stops_none(
    closed_broker, bench, make_task, update_of, eventually
):
    b = bench(make_task("class-means", min_devices=1))
    b.join("pi-liar")
    url_of = closed_broker("pi-liar")
    order = WorkerOrder(
        BrokerUrl.parse(url_of("aggregator")),
        topics.shared("g", topics.CONTRIBUTIONS),
        (b.folder,),
        b.database,
        LogSection(),
    )
    inbox, events = queue.SimpleQueue(), []
    link = Link(BrokerUrl.parse(url_of("pi-liar")), "liar", queue.SimpleQueue(), LinkOptions())
    link.connect()
    topic = topics.up("pi-liar", "contribution")
    sound = messages.encode(b.contribution("class-means", update_of("class-means", 1)))
    with Workers(2, order, inbox):
        for number in range(60):
            link.publish(topic, (b"rubbish", sound, bytes(number))[number % 3])

        def all_heard():
            with suppress(queue.Empty):
                while True:
                    events.append(inbox.get_nowait())
            return len(events) >= 60

        assert eventually(all_heard, 300)
    link.close()
    assert len(events) == 60
    assert Counter(event.refusal for event in events) == {None: 40, "": 20}
    assert {event.topic for event in events} == {topic}
