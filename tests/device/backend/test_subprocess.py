"""A device that works in a process of its own: the same updates, and a process that may die at any moment."""

import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from time import monotonic

import psutil
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import (
    Contribution,
    Hello,
    HelperKey,
    Kind,
    Masks,
    Metrics,
    Plan,
    encode,
    encode_settings,
)
from device_runtime.device.agent.runner import in_this_process
from device_runtime.device.backend import child_process as child
from device_runtime.device.backend import subprocess as working
from device_runtime.device.backend.child_process import AGAIN_S
from device_runtime.device.backend.rpc import LENGTH, ReceiptRequest
from device_runtime.device.backend.subprocess import Subprocess
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.errors import WorkDied, WorkerDeath
from device_runtime.device.policy.rules import Rule, RuleVerdict
from device_runtime.device.policy.work_gate import LOOK_S, WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.settings import Settings
from device_runtime.models.errors import DataError
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.masking.layout import CHECKS
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal

SHORT, LONG = registry.write(FedAvg(epochs=2, batch=20)), registry.write(FedAvg(epochs=4000, batch=20))
SOME = registry.write(FedAvg(epochs=100, batch=20))
MEANS = registry.write(ClassMeans())
PAUSED = RuleVerdict((Rule("paused", False, "paused by hand"),))
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def measured():
    """What the first device has measured, for those after it."""
    return {}


class Ahead:
    """The clock of this machine, and what a test skips."""

    skipped = 0.0

    def __call__(self):
        return monotonic() + self.skipped


@pytest.fixture
def apart(stage, measured):
    """The stage with a device that works apart, in real time."""
    if "speed" in measured:
        (stage.folder / "speed.json").write_bytes(measured["speed"])
    stage.clock, stage.make_backend = Ahead(), partial(Subprocess, stays_s=DAY_S)
    stage.start()
    yield stage
    stage.agent.close()
    if (stage.folder / "speed.json").exists():
        measured["speed"] = (stage.folder / "speed.json").read_bytes()


def process(stage):
    """The process that works for it now."""
    working = stage.agent.runner.backend._worker.child
    return None if working is None else working.process


def when_tried(stage, act, kinds=("full",)):
    """Do something as soon as the device has said that it trains one of these kinds."""
    real_publish = stage.link.publish

    def publish(topic, payload, retain=False):
        done = real_publish(topic, payload, retain)
        plans = stage.link.of(Plan)
        if topics.parse(topic).leaf == "plan" and plans[-1].kind in kinds:
            act()
        return done

    stage.link.publish = publish


def contribution(number):
    metrics = Metrics(train_loss=0.0, train_time_ms=0, energy_mj=0, peak_memory_kib=0)
    usual = {"task": "t", "run": "r", "seq": 7, "kind": "full", "num_examples": 1}
    return Contribution(boot=1, round=number, metrics=metrics, **usual)


def kill(stage, number=signal.SIGKILL):
    process(stage).send_signal(number)
    process(stage).wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SHORT, MEANS])
def test_the_same_update_comes_from_either_process(apart, kind):
    apart.link.announce(apart.offer(kinds=(kind,), remaining_s=DAY_S))
    (from_worker,) = apart.go().contributions
    apart.agent.close()
    shutil.rmtree(apart.folder / "outbox")
    apart.make_backend = in_this_process
    apart.start(boot=2).link.announce(apart.offer(kinds=(kind,), remaining_s=DAY_S))
    (here,) = apart.go().contributions
    assert (from_worker.kind, from_worker.num_examples, from_worker.form) == (
        here.kind,
        here.num_examples,
        here.form,
    )
    assert (from_worker.body, from_worker.blob) == (here.body, here.blob)
    assert from_worker.metrics.train_loss == here.metrics.train_loss or from_worker.kind == "class-means"


def test_a_masked_update_comes_from_the_other_process_with_its_mask(apart):
    helper = HelperKey("club", crypto_scalarmult_base(b"\x07" * 32))
    masks = Masks(helpers=(helper,), min_group=2, capacity=64, most_weight=40)
    apart.link.announce(apart.offer(kinds=(MEANS,), masks=masks, remaining_s=DAY_S))
    (sent,) = apart.go().contributions
    assert len(unseal(b"\x07" * 32, sent.mask, 0, MaskPurpose("t", "r", 1, "class-means", "", "a", 2))) == 32
    assert len(sent.body) == 4 * CHECKS + 8 * (2 + 10 * 64 + 10)  # loss and its weight, sums and counts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_work_that_dies_is_given_up_for_a_cheaper_kind_and_the_device_stays(apart, number, caplog):
    when_tried(apart, lambda: kill(apart, number))
    apart.link.announce(apart.offer(kinds=(LONG, MEANS), remaining_s=DAY_S))
    (sent,) = apart.go().contributions
    assert sent.kind == "class-means"
    plan = apart.link.of(Plan)[-1]
    why = f"the process that worked on it was ended by {number.name}"
    assert (plan.kind, plan.reasons) == ("class-means", (f"full given up: {why}",))
    assert f"full given up: {why}" in caplog.text
    (death,) = apart.agent.runner.backend._deaths[1]
    assert death == WorkerDeath("full", why, memory=number == signal.SIGKILL)
    apart.link.announce(apart.offer(number=2, kinds=(MEANS,)))
    assert len(apart.go().contributions) == 2


@pytest.mark.slow
def test_a_round_whose_every_form_dies_is_sat_out_and_the_next_is_not(apart):
    published = apart.link.publish
    when_tried(apart, lambda: kill(apart), ("full", "class-means"))
    apart.link.announce(apart.offer(kinds=(LONG, MEANS), remaining_s=DAY_S))
    assert apart.go().contributions == []
    assert [plan.kind for plan in apart.link.of(Plan)] == ["full", "class-means", ""]
    assert len(apart.link.of(Plan)[-1].reasons) == 2
    apart.link.publish = published
    apart.link.announce(apart.offer(number=2, kinds=(MEANS,)))
    assert len(apart.go().contributions) == 1


@pytest.mark.slow
def test_what_died_is_tried_again_when_its_round_has_a_new_deadline_and_not_before(apart):
    published = apart.link.publish
    when_tried(apart, lambda: kill(apart))
    apart.link.announce(apart.offer(kinds=(SHORT,), remaining_s=DAY_S))
    assert apart.go().contributions == []
    apart.link.publish = published
    apart.link.announce(apart.offer(kinds=(SHORT,), remaining_s=DAY_S - 60))  # as it is told a minute later
    assert apart.go().contributions == []
    apart.link.announce(apart.offer(kinds=(SHORT,), remaining_s=2 * DAY_S))
    run_until_it_is_over(apart, pause_s=0.0)
    assert [sent.kind for sent in apart.contributions] == ["full"], apart.link.of(Plan)[-1].reasons


@pytest.mark.slow
def test_an_update_that_was_handed_over_is_not_made_again_when_its_process_dies(apart):
    add = apart.agent.runner.outbox.add

    def killed(message):
        add(message)
        kill(apart)

    apart.agent.runner.outbox.add = killed
    apart.link.announce(apart.offer(kinds=(SHORT, MEANS), remaining_s=DAY_S))
    (sent,) = apart.go().contributions
    assert sent.kind == "full"


def test_graphs_run_in_an_empty_folder_and_what_was_named_from_here_is_found(apart, monkeypatch):
    monkeypatch.chdir(apart.folder)
    folder, apart.folder = apart.folder, Path()
    apart.start(boot=2).link.announce(apart.offer())
    assert len(apart.go().contributions) == 1
    its_folder = Path(psutil.Process(process(apart).pid).cwd())
    assert its_folder == folder / "empty"
    assert list(its_folder.iterdir()) == []


def test_signals_that_are_for_the_device_do_not_end_its_work(apart):
    def signals():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            process(apart).send_signal(number)

    when_tried(apart, signals)
    apart.link.announce(apart.offer(kinds=(SHORT, MEANS), remaining_s=DAY_S))
    (sent,) = apart.go().contributions
    assert sent.kind == "full"


def test_work_is_given_up_with_its_process_when_the_device_is_to_stop(apart):
    stop = threading.Event()
    apart.link.announce(apart.offer(kinds=(LONG,), remaining_s=DAY_S))
    when_tried(apart, stop.set)
    apart.agent.run(apart.link, stop)
    assert (apart.contributions, process(apart)) == ([], None)


@pytest.mark.slow
def test_work_stands_still_while_the_rules_say_no_and_then_goes_on(apart):
    looks = []

    def judge(_rules):
        looks.append(bool(apart.link.of(Plan)))
        return PAUSED if sum(looks) in (1, 2) else RuleVerdict()

    apart.agent.work_gate.judge = judge
    when_tried(apart, apart.agent.work_gate.look_again)
    apart.link.announce(apart.offer(kinds=(SOME,), remaining_s=DAY_S))
    run_until_it_is_over(apart)
    (sent,) = apart.contributions
    assert sent.kind == "full"
    assert apart.agent.work_gate.paused_s() > 0


@pytest.mark.slow
def test_work_that_stands_still_is_not_ended_however_long_the_rules_say_no(apart, monkeypatch):
    monkeypatch.setattr(working, "PAUSED_SILENT_S", 1.0)
    until = []

    def judge(_rules):
        if apart.link.of(Plan) and not until:
            until.append(monotonic() + 3.0)
        return PAUSED if until and monotonic() < until[0] else RuleVerdict()

    when_tried(apart, apart.agent.work_gate.look_again)
    apart.agent.work_gate.judge = judge
    apart.link.announce(apart.offer(kinds=(SOME,), remaining_s=DAY_S))
    run_until_it_is_over(apart, pause_s=0.0)
    assert [sent.kind for sent in apart.contributions] == ["full"], apart.link.of(Plan)[-1].reasons


def test_work_that_stood_still_until_its_round_closed_is_not_sent(apart, caplog):
    apart.agent.work_gate.judge = lambda _rules: PAUSED if apart.link.of(Plan) else RuleVerdict()
    pids = []
    when_tried(apart, lambda: (pids.append(process(apart).pid), apart.agent.work_gate.look_again()))
    apart.link.announce(apart.offer(kinds=(SOME,), remaining_s=3600.0))
    run_until_it_is_over(apart, pause_s=600.0)
    assert (apart.contributions, [process(apart).pid]) == ([], pids)
    assert "when the round closed; paused: paused by hand" in caplog.text


@pytest.mark.slow
def test_work_that_stands_still_is_not_taken_for_idle_and_receipts_come_after_it(apart):
    backend, looks, settled, pids = apart.agent.runner.backend, [], [], set()
    ask, backend._worker._stays_s = backend._ask, 0.0
    (apart.folder / "left" / "r").mkdir(parents=True)
    earlier = contribution(number=0)

    def judge(_rules):
        looks.append(bool(apart.link.of(Plan)))
        if sum(looks) == 1:
            backend.receipt_received(earlier, counts=True)
        return PAUSED if 1 <= sum(looks) <= 3 else RuleVerdict()

    def watch(request, *more):
        pids.add(process(apart) and process(apart).pid)
        settled.append(isinstance(request, ReceiptRequest))
        return ask(request, *more)

    when_tried(apart, lambda: (setattr(backend, "_ask", watch), apart.agent.work_gate.look_again()))
    apart.agent.work_gate.judge = judge
    apart.link.announce(apart.offer(kinds=(SOME,), remaining_s=DAY_S))
    run_until_it_is_over(apart, pause_s=1000.0)
    backend.save_state()
    (sent,) = apart.contributions
    assert (sent.kind, settled, len(pids)) == ("full", [False, True], 1)


def run_until_it_is_over(stage, pause_s=LOOK_S):
    """In real time: what comes is waited for. Only a pause is skipped, in looks of so many seconds."""
    stop = threading.Event()
    agent, rounds, take = stage.agent, stage.agent.runner, stage.agent.inbox.next
    begun = []

    def next_event(timeout):
        begun.append(rounds.state.open is not None)
        if any(begun) and rounds.state.open is None:
            stop.set()
        if agent.work_gate.verdict.allows:
            return take(timeout)
        stage.clock.skipped += pause_s
        return take(0.0)

    stage.agent.inbox.next = next_event
    stage.agent.run(stage.link, stop)


def test_noise_on_the_standard_output_of_the_work_disturbs_nothing(apart, monkeypatch, capfd):
    noise = "import os; os.write(1, bytes(range(256))); print('noise', flush=True); "
    monkeypatch.setattr(child, "_PROGRAM", noise + child._PROGRAM)
    apart.link.announce(apart.offer())
    assert len(apart.go().contributions) == 1
    assert "noise" in capfd.readouterr().out


def test_a_process_that_is_idle_ends_and_another_comes_with_the_next_round(apart):
    apart.make_backend = partial(Subprocess, stays_s=0.0)
    apart.start().link.announce(apart.offer())
    apart.go(ticks=3)
    backend = apart.agent.runner.backend
    backend._worker._cpu_s = 0.0
    backend.end_if_idle()
    assert (len(apart.contributions), process(apart)) == (1, None)
    greetings = len(apart.link.of(Hello))
    apart.link.announce(apart.offer(number=2))
    apart.go(ticks=3)
    assert (len(apart.contributions), len(apart.link.of(Hello))) == (2, greetings)


def test_what_is_wrong_beyond_is_raised_here(apart):
    (apart.folder / "a.npz").unlink()
    apart.link.announce(apart.offer())
    with pytest.raises(DataError, match="no data at"):
        apart.go()


def test_a_round_that_makes_no_sense_is_left_out(apart, caplog):
    apart.link.announce(apart.offer(kinds=(Kind("unheard-of", encode_settings({})),)))
    apart.go()
    assert "round 1 left out" in caplog.text
    assert process(apart).poll() is None


def test_energy_is_modelled_where_the_meter_is_gone_when_the_worker_starts(stage, capfd):
    backend = Subprocess(
        Settings("a", stage.folder / "a.npz", stage.folder), WorkGate(monotonic), LinkSpeed(), "sundial"
    )
    try:
        assert backend.preview(OpenRound(stage.offer(), monotonic() + 60)) is not None
    finally:
        backend.close()
    assert "energy is modelled: --meter sundial: expected" in capfd.readouterr().err


PREPARE = (
    "import device_runtime.device.backend.in_process as here; here.InProcess.prepare = lambda *_: sys.exit(3)"
)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["sys.exit(3)", PREPARE])
def test_what_dies_before_it_has_done_any_work_is_started_again_later_and_later(
    stage, monkeypatch, clock, program
):
    started = []
    start = subprocess.Popen.__init__

    def counted(*arguments, **options):
        started.append(clock.now)
        start(*arguments, **options)

    monkeypatch.setattr(child, "_PROGRAM", child._PROGRAM.replace("from", f"{program}; from", 1))
    monkeypatch.setattr(subprocess.Popen, "__init__", counted)
    backend = Subprocess(Settings("a", stage.folder / "a.npz", stage.folder), WorkGate(clock), LinkSpeed())
    current = OpenRound(stage.offer(), 1e9)
    for _ in range(40):
        with pytest.raises(WorkDied, match="ended with code 3"):
            backend.preview(current)
            backend.prepare(current)
        clock.now += AGAIN_S / 10
    assert started == pytest.approx([0, 1, 3], abs=0.25)


def test_what_cannot_hear_any_more_ends_instead_of_being_waited_for(stage):
    backend = Subprocess(
        Settings("a", stage.folder / "a.npz", stage.folder), WorkGate(monotonic), LinkSpeed()
    )
    backend.warm_up()
    with backend._worker.child.process as working:
        backend._worker.child.rpc._socket.sendall(LENGTH.pack(1) + b"\xc1")
        assert working.wait() == 1
    backend.close()


def test_a_device_that_cannot_start_its_work_goes_on(stage, monkeypatch, caplog):
    backend = Subprocess(
        Settings("a", stage.folder / "a.npz", stage.folder), WorkGate(monotonic), LinkSpeed()
    )
    monkeypatch.setattr(sys, "executable", "/nowhere")
    backend.warm_up()
    assert "no worker process can be started" in caplog.text


ALONE = """
import sys
from pathlib import Path
from time import monotonic
from device_runtime.broker.wire.messages import Offer, decode
from device_runtime.device.backend.subprocess import Subprocess
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.training.settings import Settings
from device_runtime.device.agent.runner import in_this_process
from device_runtime.device.errors import WorkerDeath
from device_runtime.device.backend.base import BackendListener

folder, hangs = Path(sys.argv[1]), sys.argv[2] == "hangs"
offer = decode((folder / "offer").read_bytes(), Offer)
gate = WorkGate(monotonic)
backend = Subprocess(Settings("a", folder / "a.npz", folder), gate, LinkSpeed())
current = OpenRound(offer, monotonic() + offer.remaining_s)
look = backend.preview(current)
assert not look.missing, look
current = OpenRound(offer, current.closes_at, look.member)
backend.prepare(current)
made = []
def decided(offer, plan, room):
    print(plan.kind, backend._worker.child.process.pid, flush=True)
quiet = (lambda _: None, lambda: None, gate.paused_s)
ears = BackendListener(*quiet, decided, made.append, lambda _: False, lambda _: ())
assert backend.work(current, ears)
backend.close()
print(made[0].message.kind, [name for name in ("numpy", "onnxruntime", "safetensors") if name in sys.modules])
"""


def alone(stage, kind, *how):
    """A process that has a device work apart, and nothing else; it runs where the samples lie."""
    offer = stage.offer(kinds=(kind,), remaining_s=DAY_S)
    (stage.folder / "offer").write_bytes(encode(offer))
    for data in stage.contents.values():
        stage.agent.runner.blobs.put(data)
    script = stage.folder / "bin" / "alone.py"
    script.parent.mkdir()
    script.write_text(ALONE)
    command = [sys.executable, str(script), str(stage.folder), *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=stage.folder)


def test_whoever_has_work_done_apart_imports_neither_numpy_nor_an_engine(stage):
    (stage.folder / "numpy.py").write_text("raise RuntimeError('whatever lies here is not ours')")
    with alone(stage, SHORT, "ends") as device:
        *_, last = device.communicate()[0].splitlines()
    assert last == "full []"


def test_work_ends_with_the_device_however_that_ends(stage, eventually):
    with alone(stage, LONG, "hangs") as device:
        kind, pid = device.stdout.readline().split()
        assert kind == "full"
        assert psutil.pid_exists(int(pid))
        device.kill()
    eventually(lambda: not _runs(int(pid)))


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_command_of_a_device_imports_nothing_that_only_work_needs():
    program = (
        "import sys, device_runtime.cli, device_runtime.cli.on_device.join; "
        "names = ('numpy', 'onnxruntime', 'safetensors', 'psutil', 'ctypes', "
        "'device_runtime.profiles.cost'); "
        "print([name for name in names if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_a_device_that_ends_has_saved_first_what_is_in_memory_alone(apart):
    backend, done = apart.agent.runner.backend, []
    ask, close = backend._ask, backend.close
    backend._ask = lambda request, *more: (done.append(type(request).__name__), ask(request, *more))[1]
    backend.close = lambda: (done.append("close"), close())
    apart.agent.warm_up()
    apart.agent.close()
    assert done == ["close"]
    backend.preview(OpenRound(apart.offer(), monotonic() + 60))
    apart.agent.close()
    assert done == ["close", "PreviewRequest", "SaveStateRequest", "close"]
