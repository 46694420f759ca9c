"""Two levels as processes over two Mosquittos each with its own devices; an edge is killed in a round."""

import shutil
from collections import Counter
from contextlib import ExitStack, closing

import pytest

from device_runtime.aggregator.storage.store import Store
from device_runtime.broker.servers import brokers
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.statistics import closed_form

ROUNDS = 3


@pytest.fixture
def edge(launched, tmp_path):
    """An edge between two brokers."""

    def start(name, above, below):
        options = ("--name", name, "--state", tmp_path / name, "--broker", below.url)
        words = ("edge", above.url, *options, "--min-devices", 2, "--until-done")
        return launched(tmp_path / f"{name}.log", *words)

    return start


@pytest.fixture
def join(launched, digits_in, tmp_path):
    """A device of a broker with a part of the digits."""

    def start(name, broker, part, *more):
        settings = ("--data", digits_in(tmp_path / f"{name}.npz", part), "--state", tmp_path / name)
        words = ("join", broker.url, "--name", name, *settings, "--until-done", "--held-out", 0, *more)
        return launched(tmp_path / f"{name}.log", *words)

    return start


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
def test_two_sites_and_a_direct_device_learn_while_an_edge_is_killed_in_a_round(
    launched, edge, join, digits_in, lines, eventually, tmp_path
):
    evaluation, run = digits_in(tmp_path / "eval.npz", slice(1200, None)), tmp_path / "run"
    kinds = "kinds = [{ name = 'full' }, { name = 'few-shot', settings = { join_base = true } }]"
    head = "head = 'closed-form'\nstatistics = { smallest_count = 1 }"
    rest = f"rounds = {ROUNDS}\nround_deadline_s = 600\nmin_devices = 3\nmin_contributions = 3"
    (tmp_path / "task.toml").write_text(f"bundle = 'digits-wrn-10-1'\n{rest}\n{kinds}\n{head}\n")
    slow = ("--as", "pi-5", "--slow", "40")
    with ExitStack() as stack:
        above, below = brokers.start("mosquitto"), brokers.start("mosquitto")
        other = brokers.start("mosquitto")
        for broker in (above, below, other):
            stack.callback(broker.stop)
        enter = stack.enter_context
        serve = enter(
            launched(
                tmp_path / "serve.log", "serve", tmp_path / "task.toml", "--broker", above.url,
                "--run-dir", run, "--eval-data", evaluation,
            )
        )  # fmt: skip
        leaving = [
            enter(join("direct", above, slice(0, 100))),
            enter(join("a1", below, slice(100, 200))),
            enter(join("a2", below, slice(200, 340), *slow)),
            enter(join("b1", other, slice(340, 500))),
            enter(join("b2", other, slice(500, 580))),
            enter(edge("site-b", above, other)),
        ]
        with edge("site-a", above, below) as victim:
            log = tmp_path / "a1.log"
            eventually(lambda: log.exists() and "round 2: full accepted" in log.read_text(), 900)
            assert "round 2: full accepted" not in (tmp_path / "a2.log").read_text()
            victim.kill()  # a1 has its receipt of round 2, a2 is still at work
        leaving.append(enter(edge("site-a", above, below)))
        assert serve.wait(900) == 0
        assert [process.wait(600) for process in leaving] == [0] * len(leaving)

    counted = lines(run / "contributions.jsonl")
    assert Counter((row["round"], row["device"]) for row in counted) == Counter(
        (number, device) for number in range(1, ROUNDS + 1) for device in ("direct", "site-a", "site-b")
    )
    sizes = {"direct": 100, "site-a": 240, "site-b": 240}
    assert all(row["num_examples"] == sizes[row["device"]] for row in counted)
    for site, devices in (("site-a", ("a1", "a2")), ("site-b", ("b1", "b2"))):
        files = (tmp_path / site / "site").glob("*/*/contributions.jsonl")
        of_site = Counter((row["round"], row["device"]) for file in files for row in lines(file))
        assert of_site == Counter((n, device) for n in range(1, ROUNDS + 1) for device in devices)
    assert (tmp_path / "a1.log").read_text().count("full accepted") == ROUNDS
    with closing(Store(run, reading=True)) as store:
        memory = tensors.decode(
            store.models.get(store.rounds.start(ROUNDS + 1).carried.memory[closed_form.MEMORY])
        )
    pool = closed_form.StatisticsPool.of(memory, 10, ClassStatistics().projection(64))
    assert (pool.rounds, pool.samples) == (ROUNDS, sum(sizes.values()))
    accuracies = [row["eval_acc"] for row in lines(run / "rounds.jsonl")]
    assert len(accuracies) == ROUNDS
    assert accuracies[-1] > 0.8
