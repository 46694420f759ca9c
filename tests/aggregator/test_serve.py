"""The real command: against a real broker, with scripted devices, killed and started again."""

import argparse
import random
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import closing
from math import ceil

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.configuration import config as backing
from device_runtime.aggregator.configuration.config import BrokerSection
from device_runtime.aggregator.errors import ConfigError, RunFolderError, TaskError
from device_runtime.aggregator.machine.state import SETTLE_S
from device_runtime.aggregator.merging.merge_round import samples
from device_runtime.aggregator.storage.store import Store
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.security.access_trial import AccessTrial
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.operator import serve as command
from device_runtime.cli.table import COMMANDS
from device_runtime.service_process import Exit

DATABASES = ("sqlite", "postgres")
KINDS = ("full", "few-shot", "zeroth-order", "class-means")
CONTRIBUTES_S = 0.1  # that a device takes for an update: no round is shorter


def parsed(*options):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


def served_to_the_end(serve, options, lives_s):
    """In a last life, after others that were killed after so many seconds each."""
    for life_s in lives_s:
        process = serve(*options)
        assert process.stdout.readline().startswith("task ")
        time.sleep(life_s)
        assert process.poll() is None, process.stdout.read()
        process.kill()
        process.wait()
    last = serve(*options)
    output, _ = last.communicate(timeout=1200)
    assert last.returncode == 0, output


def fleet(scripted, url, update_of):
    """Four devices, each with a kind of its own; the full update is over the inline limit."""

    def script(kind):
        def contribute(offer):
            time.sleep(CONTRIBUTES_S)
            return kind, *update_of(kind, offer.round)

        return contribute

    return [scripted(f"pi-{kind}", url, script(kind)) for kind in KINDS]


@pytest.mark.slow
def test_killed_at_any_instant_nothing_acknowledged_is_lost_and_each_counts_once(
    serve, broker, scripted, update_of, lines, eventually, tmp_path, database
):
    draw = random.Random(7)
    lives_s = [draw.uniform(0.3, 1.6) for _ in range(10)]
    busy_s = lives_s[0] + sum(max(0.0, life_s - SETTLE_S) for life_s in lives_s[1:])
    rounds = 10 + ceil(busy_s / CONTRIBUTES_S)  # more than can be done before the last life
    folder = tmp_path / "run"
    options = (
        "--bundle digits-wrn-10-1 --deadline 60 --min-devices 4 --min-contributions 4 --head trained "
        f"--rounds {rounds} --kinds {','.join(KINDS)} --broker {broker.url} --run-dir {folder}"
    ).split()
    if database:
        options += ["--database", database]
    devices = fleet(scripted, broker.url, update_of)
    served_to_the_end(serve, options, lives_s)
    assert eventually(lambda: all(device.done for device in devices))

    assert (folder / "run.sqlite").exists() == (not database)
    store = Store(folder)
    contributions = [stored for n in range(1, rounds + 1) for stored in store.contributions.of_round(n)]
    stored = Counter((entry.round, entry.device, entry.kind) for entry in contributions)
    closed = store.rounds.closed()
    store.close()
    acknowledged = {
        (receipt.round, device.device, kind)
        for device, kind in zip(devices, KINDS, strict=True)
        for receipt in device.receipts
        if receipt.status in ("accepted", "duplicate")
    }
    assert acknowledged <= stored.keys()
    assert stored == {(n, f"pi-{kind}", kind): 1 for n in range(1, rounds + 1) for kind in KINDS}
    assert [c.record.round for c in closed] == list(range(1, rounds + 1))
    assert {c.record.participants for c in closed} == {4}
    assert all(receipt.status in ("accepted", "duplicate") for d in devices for receipt in d.receipts)
    rows = lines(folder / "contributions.jsonl")
    assert Counter((line["round"], line["device"], line["kind"]) for line in rows) == stored
    assert len((folder / "rounds.csv").read_text().splitlines()) == rounds + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "--devices-per-round 2 --min-contributions 2",
        "--buffer-size 2 --max-staleness 3",
        "--devices-per-round 3 --buffer-size 2",
    ],
    ids=["cohorts", "buffered", "buffered cohorts"],
)
def test_cohorts_and_buffers_go_on_where_they_were_when_they_are_killed(
    serve, broker, scripted, update_of, eventually, tmp_path, how
):
    draw = random.Random(how)
    lives_s = [draw.uniform(0.5, 1.8) for _ in range(2)]
    busy_s = lives_s[0] + max(0.0, lives_s[1] - SETTLE_S)
    rounds = 5 + ceil(busy_s / (CONTRIBUTES_S / 2))  # four devices fill two buffers in the time of one update
    folder = tmp_path / "run"
    options = (
        f"--bundle digits-wrn-10-1 --deadline 60 --min-devices 4 {how} --rounds {rounds} "
        f"--kinds few-shot,class-means --broker {broker.url} --run-dir {folder}"
    ).split()

    def contribute(offer):
        time.sleep(CONTRIBUTES_S)
        return "few-shot", *update_of("few-shot", offer.round)

    devices = [scripted(f"pi-{i}", broker.url, contribute) for i in range(4)]
    served_to_the_end(serve, options, lives_s)
    assert eventually(lambda: all(device.done for device in devices))

    store = Store(folder)
    counted = {n: list(store.contributions.of_round(n)) for n in range(1, rounds + 1)}
    store.close()
    counts = Counter((entry.round, entry.device) for stored in counted.values() for entry in stored)
    assert set(counts.values()) == {1}
    assert {len({entry.device for entry in stored}) for stored in counted.values()} == {
        2
    }  # a buffer is of devices
    receipts_ = [(receipt, device.device) for device in devices for receipt in device.receipts]
    assert "refused" not in {receipt.status for receipt, _ in receipts_}
    kept_says = ("accepted", "duplicate")
    replaced = [
        (r, device) for r, device in receipts_ if r.status in kept_says and (r.round, device) not in counts
    ]
    for receipt, device in replaced:  # one voice: a newer one of the device came in time
        assert receipt.status == "duplicate" or "unless a newer one comes" in receipt.reason
        assert any(newer > receipt.round and name == device for newer, name in counts), (receipt, device)


def test_a_task_is_served_evaluated_and_ended_over_a_real_broker(
    serve, broker, scripted, update_of, eventually, tmp_path
):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "test.npz", x=rng.normal(size=(40, 8, 8)), y=rng.integers(0, 10, 40))
    plain = [
        "--bundle",
        "digits-wrn-10-1",
        "--rounds",
        "2",
        "--deadline",
        "30",
        "--min-devices",
        "4",
        "--head",
        "trained",
        "--kinds",
    ]
    where = ["--broker", broker.url, "--run-dir", tmp_path / "run", "--eval-data", tmp_path / "test.npz"]
    process = serve(*plain, ",".join(KINDS), *where)
    devices = fleet(scripted, broker.url, update_of)
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    assert eventually(lambda: all(device.done for device in devices))
    assert announced(broker) == []
    assert "round 2 of 2: accuracy" in output
    assert "1 full" in output
    line = msgspec.json.decode((tmp_path / "run" / "rounds.jsonl").read_bytes().splitlines()[0])
    assert list(line) == [
        "round",
        "eval_acc",
        "eval_loss",
        "base_eval_acc",
        "train_loss",
        "participants",
        "energy_j",
        "train_time_s",
        "bytes_up",
        "bytes_down",
        "duration_s",
        "deadline_s",
        "metric",
        "metrics",
        "central_epsilon",
        "held_out_acc",
        "held_out_samples",
        "held_out_head",
        "held_out_other_acc",
    ]
    assert 0 <= line["eval_acc"] <= 1
    assert (line["participants"], line["energy_j"], line["train_loss"]) == (4, 8.0, 0.5)
    assert (tmp_path / "run" / "served.safetensors").exists()


def announced(broker):
    """The topics of the offers that the broker keeps."""
    with closing(AccessTrial(BrokerUrl.parse(broker.url), "look", (topics.OFFERS,))) as trial:
        return [message.topic for message in trial.hear(0.5) if message.payload]


def test_a_stopped_run_says_how_to_go_on_and_leaves_with_0(serve, tmp_path):
    process = serve(*f"--bundle digits-wrn-10-1 --rounds 2 --run-dir {tmp_path / 'run'}".split())
    for line in process.stdout:
        if line.startswith("task "):
            break
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=1200)
    assert (process.returncode, output) == (0, "stopped in round 0; the same command goes on with it\n")


def test_a_run_to_which_no_device_contributes_ends_with_a_status_of_its_own(
    serve, broker, scripted, tmp_path
):
    options = ["--bundle", "digits-wrn-10-1", "--deadline", "0.5", "--max-extensions", "2", "--broker"]
    process = serve(*options, broker.url, "--run-dir", tmp_path / "run")
    scripted("pi-01", broker.url, lambda _offer: None)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == Exit.FRUITLESS, output
    assert "the run ends after 1 more deadline without any" in output
    assert "round 1 is abandoned: 2 deadlines in a row" in output
    assert "pi-01" in output.splitlines()[-1]
    assert announced(broker) == []


def test_a_run_folder_of_another_task_is_refused_with_what_differs(broker, tmp_path):
    options = f"--bundle digits-wrn-10-1 --run-dir {tmp_path / 'run'} --broker {broker.url} --rounds".split()
    from device_runtime.aggregator.rounds.run import OpenRun

    rounds = OpenRun(command.task_of(parsed(*options, 2)), tmp_path / "run")
    with pytest.raises(RunFolderError, match="another aggregator runs in"):
        command.run(parsed(*options, 2))
    rounds.store.close()
    with pytest.raises(RunFolderError, match=r"belongs to another task \(rounds 2, now 1\)"):
        command.run(parsed(*options, 1))


def test_the_examples_arguments_are_a_task():
    task = command.task_of(parsed(*COMMANDS["serve"].example.split()[2:]))
    assert (task.bundle, task.rounds, task.round_deadline_s) == ("digits-wrn-10-1", 15, 3.0)


def test_cohorts_and_buffers_are_settings_of_flags_and_files_alike(tmp_path):
    settings = {"devices_per_round": 5, "buffer_size": 3, "max_staleness": 2, "staleness_weight": 1.0}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    file = tmp_path / "task.toml"
    file.write_text('bundle = "b"\n' + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    for task in (command.task_of(parsed("--bundle", "b", *flags)), command.task_of(parsed(file))):
        assert {name: getattr(task, name) for name in settings} == settings


def test_kinds_are_named_in_order_on_the_command_line():
    task = command.task_of(parsed("--bundle", "b", "--kinds", "few-shot, full"))
    assert [kind.name for kind in task.kinds] == ["few-shot", "full"]
    with pytest.raises(TaskError, match="no kind of update is called 'fu'"):
        command.task_of(parsed("--bundle", "b", "--kinds", "fu"))


def test_a_system_has_its_own_kinds_whatever_head_is_served():
    for head in ("trained", "auto"):
        task = command.task_of(parsed("--bundle", "b", "--system", "fedavg", "--head", head))
        assert [kind.name for kind in task.kinds] == ["full"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--system fedprox --kinds few-shot", "system fedprox has full, and not few-shot"),
        ("--robust-trim 0.3", "robust_trim has no effect without robust: give both, or neither"),
        ("--stop-gain 0.1", "stop_gain has no effect without stop_after"),
        ("--deadline-margin 3", "deadline_margin has no effect without deadline_quantile"),
    ],
)
def test_options_without_effect_are_refused(flags, says):
    with pytest.raises(TaskError, match=says):
        command.task_of(parsed("--bundle", "digits-wrn-10-1", *flags.split()))


def test_kinds_that_train_the_whole_model_take_settings_of_full_which_is_no_kind_of_the_system():
    task = command.task_of(parsed("--bundle", "digits-wrn-10-1", "--system", "fedkad", "--kinds", "full"))
    assert [kind.name for kind in task.kinds] == ["prototypes"]


@pytest.mark.parametrize("flags", ["--stop-gain 0", "--robust-trim 0.2", "--deadline-least 1"])
def test_a_default_may_be_given_without_what_it_belongs_to(flags):
    assert command.task_of(parsed("--bundle", "b", *flags.split())) == Task(bundle="b")


def test_a_port_of_a_broker_elsewhere_is_refused():
    with pytest.raises(ConfigError, match="broker.port is for a broker that is started here"):
        command.server_config(parsed("--bundle", "b", "--broker", "mqtt://there", "--port", "1234"))


def test_evaluation_data_that_does_not_fit_is_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "bad.npz", x=np.zeros((3, 5, 5)), y=np.zeros(3))
    run, bad = tmp_path / "run", tmp_path / "bad.npz"
    options = f"--bundle digits-wrn-10-1 --quiet --run-dir {run} --eval-data {bad}".split()
    with pytest.raises(TaskError, match="evaluation data .*expected"):
        command.run(parsed(*options))


def test_evaluation_data_may_be_whatever_a_device_reads(tmp_path, digits_in, bundle):
    with np.load(digits_in(tmp_path / "t.npz", slice(9))) as arrays:
        x, y = arrays["x"].reshape(9, 64), arrays["y"]
    rows = [",".join(map(str, (label, *pixels))) for label, pixels in zip(y, x, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([f"label,{','.join(f'p{n}' for n in range(64))}", *rows]))
    table, archive = (samples(str(tmp_path / name), bundle, "evaluation data") for name in ("t.csv", "t.npz"))
    assert np.array_equal(table.x, archive.x)
    assert table.y.tolist() == archive.y.tolist() == y.tolist()


@pytest.mark.slow
def test_a_run_goes_on_at_the_broker_address_that_its_devices_know(serve, tmp_path):
    options = f"--bundle digits-wrn-10-1 --rounds 2 --run-dir {tmp_path / 'run'}".split()
    first_lines = []
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        process = serve(*options)
        first_lines.append(process.stdout.readline())
        assert any(line.startswith("task ") for line in process.stdout)
        process.send_signal(number)
        process.communicate(timeout=1200)
        assert process.returncode == (-number if number == signal.SIGKILL else 0)
    assert first_lines[0].startswith("broker: ")
    assert len(set(first_lines)) == 1


@pytest.mark.parametrize("more", ["min_devices", "min_contributions", "buffer_size", "devices_per_round"])
def test_a_task_that_wants_more_devices_than_there_may_be_is_refused(tmp_path, more):
    flag = "--" + more.replace("_", "-")
    options = f"--bundle digits-wrn-10-1 --run-dir {tmp_path / 'run'} --max-devices 3 {flag} 4".split()
    with pytest.raises(ConfigError, match=f"max_devices is 3, and task 'task' wants {more} = 4"):
        command.run(parsed(*options))


def test_no_more_devices_are_known_than_the_settings_say(serve, broker, scripted, update_of, tmp_path):
    options = f"--bundle digits-wrn-10-1 --rounds 1 --kinds few-shot --max-devices 1 --broker {broker.url}"
    process = serve(*options.split(), "--run-dir", tmp_path / "run")
    assert process.stdout.readline() == "nothing measures the model: the task has no eval_data\n"
    assert process.stdout.readline().startswith("task ")
    begun, refused = threading.Event(), threading.Event()

    def contribute(offer):
        begun.set()
        refused.wait(600)
        return "few-shot", *update_of("few-shot")

    scripted("pi-1", broker.url, contribute)
    assert begun.wait(600)
    scripted("pi-2", broker.url, contribute)
    assert "1 devices are known and no more are let in; the last was from pi-2" in process.stdout.readline()
    refused.set()
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output


def test_where_the_old_address_is_taken_the_broker_starts_at_another(tmp_path):
    (tmp_path / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "run" / "port").write_text(str(server.getsockname()[1]))
        broker, url = backing.broker_for(BrokerSection(), tmp_path / "run")
        broker.stop()
        assert url.port not in (0, server.getsockname()[1])
    for rubbish in (b"", b"\xff", b"x", b"99999999", b"-1"):
        (tmp_path / "run" / "port").write_bytes(rubbish)
        assert backing.port_before(tmp_path / "run") == 0


def test_a_port_that_cannot_be_kept_is_the_folder_s_fault(serve, tmp_path):
    (tmp_path / "run" / "port").mkdir(parents=True)
    process = serve(*f"--bundle digits-wrn-10-1 --run-dir {tmp_path / 'run'}".split())
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == Exit.FOLDER
    assert f"cannot write {tmp_path / 'run' / 'port'}: Is a directory" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_finished_run_started_again_says_so_and_leaves_with_0(serve, broker, scripted, update_of, tmp_path):
    options = (
        f"--bundle digits-wrn-10-1 --rounds 2 --kinds few-shot --broker {broker.url} "
        f"--run-dir {tmp_path / 'run'}"
    ).split()
    process = serve(*options)
    scripted("pi", broker.url, lambda offer: ("few-shot", *update_of("few-shot", offer.round)))
    first, _ = process.communicate(timeout=1200)
    written = (tmp_path / "run" / "contributions.jsonl").read_bytes()
    served = (tmp_path / "run" / "served.safetensors").read_bytes()
    again = serve(*options)
    output, _ = again.communicate(timeout=1200)
    assert (process.returncode, again.returncode) == (0, 0)
    assert output.splitlines()[0].endswith("2 rounds of 60 s; resumed after 2 closed")
    assert output.splitlines()[1:] == first.splitlines()[-4:]  # the same table
    assert (tmp_path / "run" / "contributions.jsonl").read_bytes() == written
    assert (tmp_path / "run" / "served.safetensors").read_bytes() == served
    assert announced(broker) == []


def test_an_offer_that_a_killed_process_left_of_a_finished_task_is_cleared_by_the_next_one(
    serve, broker, scripted, update_of, tmp_path
):
    where = ["--broker", broker.url, "--run-dir", tmp_path / "run", "--name", "left"]
    options = [*["--bundle", "digits-wrn-10-1", "--rounds", "1", "--kinds", "few-shot"], *where]
    process = serve(*options)
    scripted("pi", broker.url, lambda offer: ("few-shot", *update_of("few-shot", offer.round)))
    for line in process.stdout:
        if line.startswith("round 1 of 1"):
            break
    process.kill()  # while it stays for its devices
    process.wait(60)
    assert announced(broker) == [topics.offer("left")]
    again = serve(*options)
    output, _ = again.communicate(timeout=1200)
    assert again.returncode == 0, output
    assert announced(broker) == []
