"""Real processes over a real broker: devices, aggregator, demo; killed, restarted, fed with rubbish."""

import queue
import subprocess
import time
from collections import Counter

import numpy as np
import psutil
import pytest

from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.broker_folder import AGGREGATOR_KEY
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import Base, Contribution, Member, Offer, Receipt, decode, encode
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.strategies.kinds import registry


@pytest.fixture
def serve(broker, launched, tmp_path):
    """A service of the shipped bundle; `flags` are options and their values."""

    def start(rounds=3, **flags):
        options = {"rounds": rounds, "deadline": 60, "min-devices": 2, **flags}
        option_words = [part for name, value in options.items() for part in (f"--{name}", value)]
        where = ("--broker", broker.url, "--run-dir", tmp_path / "run")
        return launched(tmp_path / "serve.log", "serve", "--bundle", "digits-wrn-10-1", *option_words, *where)

    return start


@pytest.fixture
def join(broker, launched, digits_in, tmp_path):
    """A device with data of its own, or with `data`."""

    def start(name, *extra, data=None):
        settings = ("--data", data or digits_in(tmp_path / f"{name}.npz"), "--state", tmp_path / name)
        return launched(tmp_path / f"{name}.log", "join", broker.url, "--name", name, *settings, *extra)

    return start


def test_an_aggregator_killed_in_a_round_goes_on_with_what_it_had_acknowledged(
    serve, join, lines, eventually, tmp_path
):
    stored = tmp_path / "run" / "contributions.jsonl"
    slow = ("--as", "pi-5", "--slow", "20")

    def accepted():
        return {name: (tmp_path / f"{name}.log").read_text().count("full accepted") for name in ("a", "b")}

    with join("a", *slow) as a, join("b", *slow) as b:
        for acknowledged in (1, 4):  # with one each in rounds 1 and 3, both devices are in rounds 2 and 3
            with serve(rounds=6) as service:
                eventually(lambda least=acknowledged: sum(accepted().values()) >= least)
                assert service.poll() is None
                service.kill()
        counts = accepted()
        with serve(rounds=6) as service:
            assert service.wait(900) == 0
        assert (a.poll(), b.poll()) == (None, None)
    counted = Counter((c["round"], c["device"]) for c in lines(stored))
    assert set(counted.values()) == {1}
    assert {number for number, _ in counted} == set(range(1, 7))
    for name, count in counts.items():
        assert sum(device == name for _, device in counted) >= count


@pytest.mark.slow
def test_bad_data_ends_the_device_in_one_line_and_the_others_go_on(serve, join, lines, tmp_path):
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x=np.zeros((3, 8, 8)), y=np.array([99, 99, 99]))
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    (unreadable / "a.npz").write_bytes(b"nothing of the kind")
    with serve(rounds=2) as service:
        for name, data, message in (
            ("bad-labels", wrong, "label '99' is not of the task"),
            ("bad-files", unreadable, "no readable samples in"),
        ):
            with join(name, data=data) as device:
                assert device.wait(600) == 2
            last = (tmp_path / f"{name}.log").read_text().splitlines()[-1]
            assert last.startswith("device-runtime: ")
            assert message in last
        with (
            join("a", "--until-done") as a,
            join("b", "--until-done") as b,
        ):
            assert (service.wait(600), a.wait(600), b.wait(600)) == (0, 0, 0)
    assert {c["device"] for c in lines(tmp_path / "run" / "contributions.jsonl")} == {"a", "b"}


PART = "width-0.5"
"""The part of half its width that the shipped bundle has."""
KIND_SETTINGS = {"width-slice": {"members": [PART]}}


def test_devices_fetch_train_and_send_a_narrower_part_alone(serve, join, lines, bundle, tmp_path):
    part, whole = (4 * of.manifest.num_parameters() for of in (bundle.parts()[PART], bundle))
    with serve(rounds=3, kinds="width-slice") as service, join("a") as a, join("b") as b:
        assert service.wait(600) == 0
        assert (a.poll(), b.poll()) == (None, None)
    counted = lines(tmp_path / "run" / "contributions.jsonl")
    assert sorted((c["round"], c["device"]) for c in counted) == [
        (n, name) for n in (1, 2, 3) for name in "ab"
    ]
    assert {c["kind"] for c in counted} == {"width-slice"}
    assert (tmp_path / "a.log").read_text().count(f"it sends width-slice {PART}") == 1
    for second in counted[2:4]:  # the bundle is there by then, and the last round has its final model
        assert part < second["bytes_up"] < whole / 2
        assert part < second["bytes_down"] < whole / 2


@pytest.mark.slow
def test_a_device_killed_while_it_trains_a_part_goes_on_and_the_model_is_as_without_that(
    serve, join, lines, eventually, tmp_path
):
    """It is killed in rounds 1, 2 and 4, with its worker at work; each round has to count it once."""
    slow, run = ("--as", "pi-5", "--slow", "60"), tmp_path / "run"
    flags = {"rounds": 4, "kinds": "width-slice", "min-contributions": 2}

    def closed():
        return len(lines(run / "rounds.jsonl"))

    def served():
        return tensors.decode((run / "served.safetensors").read_bytes())

    with serve(**flags) as service, join("a", *slow), join("b", *slow):
        assert service.wait(900) == 0
    expected = served()
    for name in ("run", "a", "b"):
        (tmp_path / name).rename(tmp_path / f"undisturbed-{name}")
    with serve(**flags) as service, join("b", *slow):
        for before in (0, 1, 3):
            with join("a", *slow) as device:
                eventually(lambda n=before: closed() >= n and psutil.Process(device.pid).children())
                assert closed() == before
                device.kill()
        with join("a", *slow):
            assert service.wait(900) == 0
    counted = Counter((c["round"], c["device"]) for c in lines(run / "contributions.jsonl"))
    assert counted == {(number, name): 1 for number in (1, 2, 3, 4) for name in "ab"}
    assert served().keys() == expected.keys()
    for name, value in served().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_wrong_password_is_said_in_one_line(digits_in, program, tmp_path):
    running = brokers.start("auto", BrokerOptions(users={"pi": "secret", "aggregator": "other"}))
    try:
        with_password, data = running.url.replace("mqtt://", "mqtt://pi:wrong@"), tmp_path / "pi.npz"
        ended = subprocess.run(
            [program, "join", with_password, "--data", digits_in(data), "--state", tmp_path / "pi"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        running.stop()
    assert ended.returncode == 2
    [warning, line] = ended.stderr.splitlines()
    assert "everybody on this machine can see the password on this command line" in warning
    assert "refused user 'pi': wrong user name or password" in line
    assert "wrong@" not in ended.stderr


def test_a_device_idle_after_joining_is_one_process_of_less_than_40_mb(serve, join, eventually, tmp_path):
    with serve(), join("a") as device:
        eventually(lambda: "samples of" in (tmp_path / "a.log").read_text())
        process = psutil.Process(device.pid)
        eventually(lambda: not process.children())
        assert process.memory_info().rss < 40e6


class ScriptedAggregator:
    """Just enough of an aggregator to withhold what the tests want withheld."""

    def __init__(self, broker, bundle):
        self.inbox = queue.SimpleQueue()
        options = LinkOptions(subscriptions=(topics.FROM_DEVICES,))
        self.link = Link(BrokerUrl.parse(broker.url), "aggregator", self.inbox, options)
        self.link.connect()
        packed = bundle.packed()
        weights = tensors.encode(bundle.weights())
        from device_runtime.broker.wire.blobs import blob_of

        self.contents = {blob_of(packed).sha: packed, blob_of(weights).sha: weights}
        self.base = Base(checkpoint=(blob_of(weights),), sha=blob_of(weights).sha)
        self.bundle = blob_of(packed)
        self.family = ()
        for name, part in bundle.parts().items():
            packed, weights = part.packed(), tensors.encode(part.weights())
            self.contents |= {blob_of(packed).sha: packed, blob_of(weights).sha: weights}
            base = Base(checkpoint=(blob_of(weights),), sha=blob_of(weights).sha)
            self.family = (*self.family, Member(name, blob_of(packed), base))

    def offer(self, number, kinds):
        return Offer(
            task="t",
            run="r",
            round=number,
            seed=5,
            deadline_s=120.0,
            remaining_s=120.0,
            bundle=self.bundle,
            base=self.base,
            kinds=tuple(registry.write(registry.make(kind, KIND_SETTINGS.get(kind))) for kind in kinds),
            family=self.family,
        )

    def answer(self, kinds, timeout_s=120):
        """Serve hellos and blocks until a contribution comes, and return it."""
        from device_runtime.broker.wire.blobs import BLOCK
        from device_runtime.broker.wire.messages import Get

        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            try:
                event = self.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if not isinstance(event, Received):
                continue
            address = topics.parse(event.topic)
            if address.leaf == "hello":
                offer = encode(self.offer(1, kinds))
                self.link.publish(topics.down(address.device, "task"), offer)
            elif address.leaf == "get":
                get = decode(event.payload, Get)
                for index in get.blocks:
                    data = self.contents[get.blob.sha][index * BLOCK : (index + 1) * BLOCK]
                    leaf = topics.block(get.blob.sha, index)
                    self.link.publish(topics.down(address.device, leaf), data)
            elif address.leaf == "contribution":
                return decode(event.payload, Contribution)
        pytest.fail("no contribution came")

    def receipt(self, device, message, status="accepted"):
        receipt = Receipt(boot=message.boot, seq=message.seq, round=message.round, status=status)
        self.link.publish(topics.down(device, "receipt"), encode(receipt))


@pytest.mark.parametrize("kind", ["zeroth-order", "full", "width-slice"])
def test_a_contribution_without_receipt_survives_kill_9_of_the_device(
    broker, bundle, tmp_path, join, eventually, digits_in, kind
):
    aggregator = ScriptedAggregator(broker, bundle)
    data = digits_in(tmp_path / "a.npz")
    with join("a", data=data) as device:
        first = aggregator.answer([kind])
        device.kill()
    assert list((tmp_path / "a" / "outbox").glob("*.msg"))
    with join("a", data=data) as device:
        again = aggregator.answer([kind])
        assert (again.run, again.round, again.kind) == (first.run, first.round, first.kind)
        assert (again.form, again.body, again.blob) == (first.form, first.body, first.blob)
        assert again.boot != first.boot
        aggregator.receipt("a", again)
        eventually(lambda: not list((tmp_path / "a" / "outbox").glob("*.msg")))
        assert device.poll() is None


def test_rubbish_from_the_aggregator_s_side_does_not_end_a_device(broker, bundle, join, eventually, tmp_path):
    aggregator = ScriptedAggregator(broker, bundle)
    with join("a") as device:
        eventually(lambda: "connected" in (tmp_path / "a.log").read_text())
        for leaf in ("task", "receipt", "get", "block/00/0", "what/is/this"):
            for rubbish in (b"", b"\x00", b"\xc1" * 50, b"\x99" + bytes(20)):
                aggregator.link.publish(topics.down("a", leaf), rubbish)
        aggregator.link.publish(topics.offer("t"), b"\x9f rubbish")
        aggregator.link.publish(topics.down("a", "task"), encode(aggregator.offer(1, ["zeroth-order"])))
        assert aggregator.answer(["zeroth-order"]).kind == "zeroth-order"
        assert device.poll() is None


TASK = """name = "{name}"
bundle = "digits-wrn-10-1"
rounds = {rounds}
round_deadline_s = 60
min_devices = {devices}
"""


@pytest.fixture
def serve_two(broker, launched, tmp_path):
    """A service of two tasks; `turned`: named in the other order."""
    tasks = {"digits": (2, 2), "letters": (4, 1)}
    for name, (rounds, devices) in tasks.items():
        (tmp_path / f"{name}.toml").write_text(TASK.format(name=name, rounds=rounds, devices=devices))

    def start(turned=False):
        files = [tmp_path / f"{name}.toml" for name in (reversed(tasks) if turned else tasks)]
        where = ("--broker", broker.url, "--run-dir", tmp_path / "runs")
        return launched(tmp_path / "serve.log", "serve", *files, *where)

    return start


@pytest.fixture
def devices_by_round(lines, tmp_path):
    """Who contributed to a task, by round."""

    def of(task):
        rounds = {}
        for record in lines(tmp_path / "runs" / task / "contributions.jsonl"):
            rounds.setdefault(record["round"], set()).add(record["device"])
        return rounds

    return of


def signing_keys(folder):
    """Of each task its own, whatever other tasks there are."""
    return [(folder / "runs" / task / AGGREGATOR_KEY).read_text() for task in ("digits", "letters")]


@pytest.mark.slow
def test_each_device_is_in_its_task_and_goes_on_to_the_next_when_it_may(
    join, serve_two, devices_by_round, tmp_path
):
    with (
        serve_two() as service,
        join("a", "--task", "digits", "--until-done") as a,
        join("any"),
        join("c", "--task", "letters", "--until-done") as c,
    ):
        for process in (a, c, service):
            assert process.wait(timeout=900) == 0
    first, second = devices_by_round("digits"), devices_by_round("letters")
    assert set(first) == {1, 2}
    assert set(second) == {1, 2, 3, 4}
    assert set().union(*first.values()) <= {"a", "any"}
    assert "a" in first[1]
    assert set().union(*second.values()) <= {"c", "any"}
    log = (tmp_path / "serve.log").read_text()
    assert "digits: round 2 of 2" in log
    assert "letters: round 4 of 4" in log


@pytest.mark.slow
def test_all_tasks_go_on_after_a_kill(join, eventually, digits_in, serve_two, devices_by_round, tmp_path):
    data = digits_in(tmp_path / "shared.npz")
    with (
        join("a", "--task", "digits", data=data),
        join("b", "--task", "digits", data=data),
        join("c", "--task", "letters", data=data),
    ):
        with serve_two() as service:
            eventually(lambda: devices_by_round("letters") and devices_by_round("digits"))
            service.kill()
            service.wait()
        keys = signing_keys(tmp_path)
        with serve_two(turned=True) as service:
            assert service.wait(timeout=900) == 0
    assert len(set(keys)) == 2
    assert signing_keys(tmp_path) == keys
    assert "resumed" in (tmp_path / "serve.log").read_text()
    for task, rounds, devices in (("digits", 2, {"a", "b"}), ("letters", 4, {"c"})):
        counted = devices_by_round(task)
        assert set(counted) == set(range(1, rounds + 1))
        assert all(who == devices for who in counted.values())


@pytest.mark.slow
def test_two_tasks_of_one_name_are_refused(broker, launched, tmp_path):
    (tmp_path / "one.toml").write_text(TASK.format(name="same", rounds=1, devices=1))
    arguments = ("serve", tmp_path / "one.toml", tmp_path / "one.toml", "--broker", broker.url)
    with launched(tmp_path / "serve.log", *arguments) as service:
        assert service.wait(timeout=600) != 0
    assert "tasks are called same, same: each needs a different name" in (tmp_path / "serve.log").read_text()


def test_the_run_of_one_task_is_not_begun_anew_when_another_comes_to_it(serve_two, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.sqlite").touch()
    with serve_two() as service:
        assert service.wait(timeout=600) != 0
    assert (
        "is the run folder of one task, but several tasks have a folder each"
        in (tmp_path / "serve.log").read_text()
    )


@pytest.mark.slow
def test_a_round_that_waits_for_the_fast_closes_while_a_slow_device_is_at_work_whose_update_counts_later(
    serve, join, lines, tmp_path
):
    """a and b take half a second, c over three: it goes on with the round that it has begun."""
    flags = {"deadline": 60, "min-devices": 3, "wait-for": "fast", "kinds": "few-shot", "max-staleness": 1000}
    with (
        serve(rounds=22, **flags) as service,
        join("a", "--as", "pi-5", "--slow", "200"),
        join("b", "--as", "pi-5", "--slow", "200"),
        join("c", "--as", "pi-5", "--slow", "1500"),
    ):
        assert service.wait(900) == 0
    duration_s = {row["round"]: row["duration_s"] for row in lines(tmp_path / "run" / "rounds.jsonl")}
    sent = lines(tmp_path / "run" / "contributions.jsonl")
    assert {row["device"] for row in sent if row["round"] <= 2} == set("abc")
    assert min(duration_s[number] for number in range(3, 23)) < 0.5 * duration_s[2]
    assert "s, when the fast were done; 1 at work)" in (tmp_path / "serve.log").read_text()
    later = [row["round"] for row in sent if row["device"] == "c" and row["round"] > 2]
    assert later
    assert "is closed, counted in round" in (tmp_path / "c.log").read_text()
