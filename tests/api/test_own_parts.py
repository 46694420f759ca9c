"""Kinds, terms, merge rules and policies of one's own: the examples, and what is refused."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import device_runtime as dr
from device_runtime import kinds
from device_runtime.cli import main
from device_runtime.kinds import ChoicePolicy, FedAvg, LocalTerm, MergeRule, Tensors, register
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.strategies import plugins
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface.kind import Strategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.names import check_kinds
from device_runtime.strategies.settings import LearningRate

EXAMPLES = Path(__file__).parents[2] / "examples"
TOP_K = f"{EXAMPLES / 'own_kind.py'}:TopK"
SETTINGS = {"share": 0.02, "epochs": 1}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Parts of a test are unknown after it."""
    monkeypatch.setenv(plugins.VARIABLE, "[]")
    before = {part: dict(part.registry) for part in (Strategy, LocalTerm, MergeRule, ChoicePolicy)}
    yield
    for part, classes in before.items():
        part.registry.clear()
        part.registry.update(classes)
    registry._sources.clear()


def simulated(kinds=((TOP_K, SETTINGS),), rounds=2, policies=("mixed",), devices=6, **options):
    return dr.simulate(
        "digits", kinds=kinds, policies=policies, devices=devices, rounds=rounds, progress=False, **options
    )


def kinds_sent(run):
    text = (run.folder / "asks.jsonl").read_text()
    return {line["kind"] for line in map(json.loads, text.splitlines()) if line["kind"]}


def test_the_own_kind_sends_little_and_learns():
    result = simulated(rounds=4)
    [run] = result.runs
    assert run.accuracy[-1] > 0.2
    full = simulated(kinds=[("full", {"epochs": 1})], rounds=1).runs[0].rounds[0].bytes_up
    assert run.rounds[0].bytes_up < 0.1 * full


@pytest.mark.slow
def test_other_processes_make_the_same_of_the_own_kind():
    plain, others = (simulated(executor=executor).runs[0].weights() for executor in ("plain", "processes"))
    assert all(plain[name].tobytes() == value.tobytes() for name, value in others.items())


@pytest.mark.slow
def test_ray_makes_the_same_of_the_own_kind():
    pytest.importorskip("ray")
    plain, others = (simulated(executor=executor).runs[0].weights() for executor in ("plain", "ray"))
    assert all(plain[name].tobytes() == value.tobytes() for name, value in others.items())


@pytest.mark.slow
def test_runs_of_the_own_kind_go_to_processes_of_their_own():
    result = simulated(policies=("top-k", "class-means"))
    assert result.policies == ("top-k", "class-means")
    assert kinds_sent(result.run("top-k", 0)) == {"top-k"}


@pytest.mark.parametrize("robust", ["none", "median"])
def test_the_own_kind_takes_part_in_mixed_rounds_and_is_compared_by_robust_rules(robust):
    over = {"slow": 60.0, "task": {"robust": robust, "rounds": 2, "round_deadline_s": 2.0}}
    scenario = scenarios.load("straggler-heavy", over)
    result = dr.simulate(scenario, kinds=[(TOP_K, SETTINGS), "class-means"], devices=20, progress=False)
    assert kinds_sent(result.runs[0]) == {"top-k", "class-means"}
    assert result.runs[0].accuracy[-1] > 0.2


@pytest.mark.slow
def test_four_devices_send_the_own_kind_over_mqtt(tmp_path):
    registry.load(TOP_K)
    rng = np.random.default_rng(0)
    task = dr.Task(
        bundle="digits-wrn-10-1",
        rounds=2,
        min_devices=4,
        kinds=(dr.KindSettings(name="top-k", settings=SETTINGS), dr.KindSettings(name="class-means")),
    )
    for place in range(4):
        x, y = rng.integers(0, 17, (40, 1, 8, 8)).astype(np.uint8), np.arange(40) % 10
        np.savez(tmp_path / f"{place}.npz", x=x, y=y)
    with dr.Aggregator(task, run_dir=tmp_path / "run", quiet=True) as service:
        service.start()
        devices = [
            dr.Device(service.url, data=tmp_path / f"{n}.npz", name=f"pi-{n}", state=tmp_path / f"pi-{n}")
            for n in range(4)
        ]
        for device in devices:
            device.start()
        service.wait(240)
        for device in devices:
            device.stop()
        assert service.done
        folder = service.folders[0]
    lines = [json.loads(line) for line in (folder / "contributions.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["top-k"] * 8


def test_the_own_term_draws_small_weights_to_zero():
    registry.load(f"{EXAMPLES / 'own_term.py'}:Sparse")
    plain, drawn = (
        simulated(kinds=[("full", {"epochs": 1, **settings})], rounds=2).runs[0].weights()
        for settings in ({}, {"terms": {"sparse": {"weight": 0.01}}})
    )

    def size(weights: Tensors) -> float:
        return sum(float(np.abs(value).sum()) for name, value in weights.items() if name.endswith(".weight"))

    assert size(drawn) < 0.97 * size(plain)


def test_the_own_policy_costs_less_energy_than_the_default():
    load = plugins.load_object(f"{EXAMPLES / 'own_policy.py'}:Frugal")
    result = dr.simulate("phones", policies=["mixed", load], devices=8, rounds=2, progress=False, parallel=1)
    usual, frugal = (sum(line.energy_j for line in run.rounds) for run in result.runs)
    assert result.policies == ("mixed", "frugal")
    assert frugal < usual


@dataclass(frozen=True)
class HalfWay(MergeRule):
    """Goes a share of the way from the base to the mean."""

    name: ClassVar[str] = "half-way"
    share: float = 0.5

    def step(self, base, mean, memory):
        return {
            name: base[name] + np.float32(self.share) * (value - base[name]) for name, value in mean.items()
        }, {}


def test_an_own_merge_rule_decides_how_far_the_base_goes():
    register(HalfWay)
    rule = dr.Task(bundle="digits-wrn-10-1").server.__class__
    kinds = (dr.KindSettings(name="full", settings={"epochs": 1}),)
    classes = {}
    for share in (1.0, 0.5, 0.0):
        server = rule(name="half-way", settings={"share": share})
        task = dr.Task(bundle="digits-wrn-10-1", rounds=1, kinds=kinds, server=server, head="trained")
        classes[share] = dr.simulate(task, devices=4, progress=False).runs[0].weights()
    for name, value in classes[0.5].items():
        np.testing.assert_allclose(value, (classes[0.0][name] + classes[1.0][name]) / 2, atol=1e-6)


def test_an_own_merge_rule_with_wrong_settings_is_refused():
    register(HalfWay)
    rule = dr.Task(bundle="digits-wrn-10-1").server.__class__
    with pytest.raises(ValueError, match="half-way has no setting 'way'; it has "):
        rule(name="half-way", settings={"way": 1})
    with pytest.raises(ValueError, match="settings are for an own merge rule, and fedavg is none"):
        rule(settings={"share": 1})
    with pytest.raises(
        ValueError, match="no server optimiser is called 'whole'; there are fedavg, .*half-way"
    ):
        rule(name="whole")


def test_a_kind_that_does_not_say_how_it_is_compared_is_refused_under_a_robust_rule():
    @dataclass(frozen=True)
    class Alone(FedAvg):
        name: ClassVar[str] = "alone"
        compared_as: ClassVar[None] = None

    task = dr.Task(bundle="digits-wrn-10-1", rounds=1, robust="median")
    with pytest.raises(
        Exception, match="robust is median, and alone does not say how its updates are compared"
    ):
        dr.simulate(task, kinds=[Alone(epochs=1)], devices=4, progress=False)


def test_a_kind_of_a_notebook_is_trained_in_its_own_process_alone():
    @dataclass(frozen=True)
    class Here(FedAvg):
        name: ClassVar[str] = "here"

    assert not registry.is_portable(Here())
    assert simulated(kinds=[Here(epochs=1)], rounds=1).runs[0].accuracy.shape == (1,)
    with pytest.raises(Exception, match="only executor plain can train it"):
        simulated(kinds=[Here(epochs=1)], rounds=1, executor="processes")


@pytest.mark.parametrize(
    ("text", "source", "why"),
    [
        ("", "mine.py", "names no class, expected FILE.py:CLASS or PACKAGE.MODULE:CLASS"),
        ("", "none.py:Mine", "there is no file none.py"),
        ("x = 1", "mine.py:Mine", "mine.py has no Mine"),
        ("Mine = 1", "mine.py:Mine", "is no class"),
        ("class Mine: pass", "mine.py:Mine", "Mine is no kind, term, merge rule or policy with a name"),
        ("import nothing_at_all", "mine.py:Mine", "cannot be loaded: ModuleNotFoundError"),
        ("def f(:", "mine.py:Mine", "cannot be loaded: SyntaxError"),
        (
            "from device_runtime.kinds import *\nclass Mine(FedAvg): name = 'full'",
            "mine.py:Mine",
            "Mine has the name of a shipped one, 'full': give it another",
        ),
        (
            "from dataclasses import dataclass\nfrom device_runtime.kinds import *\n"
            "@dataclass(frozen=True)\nclass Mine(Strategy):\n  name = 'mine'",
            "mine.py:Mine",
            "Mine lacks cost, expected, finish, fold, start, train",
        ),
        (
            "from dataclasses import dataclass\nfrom device_runtime.kinds import *\n"
            "@dataclass(frozen=True)\nclass Mine(FedAvg):\n  name = 'mine'\n  share: float = 0.5",
            "mine.py:Mine",
            "Mine.share has no Setting in its annotation",
        ),
        ("", "no_such_package.kinds:Mine", "no_such_package.kinds cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(tmp_path, monkeypatch, text, source, why):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    with pytest.raises(KindError) as refused:
        registry.load(source)
    assert why in str(refused.value)


def test_defining_a_class_again_replaces_it():
    def define(rate):
        @dataclass(frozen=True)
        class Again(FedAvg):
            name: ClassVar[str] = "again"
            lr: LearningRate = rate

        return register(Again)

    define(0.1)
    last = define(0.2)
    assert registry.KINDS["again"] is last
    assert registry.make("again").lr == 0.2


def test_a_script_that_simulates_when_it_is_loaded_for_its_kind_is_stopped_with_the_remedy(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import device_runtime as dr\ndr.simulate('digits')\n")
    with pytest.raises(KindError, match="put the call below `if __name__"):
        registry.load(f"{script}:Mine")


def test_installed_packages_offer_kinds_by_their_entry_points(tmp_path):
    """In a process of its own, with a package as pip installs it."""
    package, info = tmp_path / "fast_kinds", tmp_path / "fast_kinds-1.0.dist-info"
    package.mkdir(), info.mkdir()
    (package / "__init__.py").write_text((EXAMPLES / "own_kind.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[device_runtime.kinds]\ntop-k = fast_kinds:TopK\n")
    program = (
        "from device_runtime.strategies.kinds import registry\n"
        "assert 'top-k' not in registry.KINDS\n"
        "print(registry.make('top-k', {'share': 0.5}).share)"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("0.5\n", 0), done.stderr


PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["own-kind.md", "own-term.md", "own-policy.md"])
def test_the_pages_are_short_and_their_blocks_are_python(page):
    text = (EXAMPLES.parent / "docs" / page).read_text("utf-8")
    assert len(text.splitlines()) < 100
    assert [compile(block, page, "exec") for block in PYTHON.findall(text)]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["own-kind.md", "own-term.md", "own-policy.md"])
def test_the_blocks_of_the_pages_run(page, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    for block in PYTHON.findall((EXAMPLES.parent / "docs" / page).read_text("utf-8")):
        exec(block, {"__name__": page})  # noqa: S102


@pytest.mark.slow
def test_a_bug_of_an_own_kind_in_another_process_is_told_with_its_file_and_line(tmp_path):
    file = tmp_path / "buggy.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom device_runtime.kinds import FedAvg\n"
        "@dataclass(frozen=True)\nclass Buggy(FedAvg):\n    name = 'buggy'\n"
        "    def train(self, model, data, run):\n        raise RuntimeError('my bug')\n"
    )
    result = simulated(kinds=[(f"{file}:Buggy", {"epochs": 1})], rounds=1, executor="processes")
    assert re.search(r"updates were refused \(mixed\), .*buggy\.py:7: RuntimeError: my bug", result.table())


def test_an_own_kind_whose_cost_fails_is_left_out_with_its_file_and_line(tmp_path, capsys):
    file = tmp_path / "costly.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom device_runtime.kinds import FedAvg\n"
        "@dataclass(frozen=True)\nclass Costly(FedAvg):\n    name = 'costly'\n"
        "    def cost(self, workload, profile):\n        raise RuntimeError('my bug')\n"
    )
    assert main(["explain", "--board", "pi-5", "--kind", f"{file}:Costly", "--kinds", "costly,few-shot"]) == 0
    output = capsys.readouterr().out
    assert f"{file}:7: RuntimeError: my bug" in output
    assert "-> few-shot" in " ".join(output.split()), "the device goes on with the other kinds"


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (0, "weight of weightless is 0, expected a positive number"),
        (-1.0, "weight of weightless is -1, expected a positive number"),
        (float("nan"), "weight of weightless is nan, expected a positive number"),
        (float("inf"), "weight of weightless is inf, expected a positive number"),
        (None, "TypeError"),
        ("many", "ValueError"),
    ],
)
def test_updates_of_an_own_kind_without_a_weight_are_refused_with_file_and_line(weight, why):
    @dataclass(frozen=True)
    class Weightless(FedAvg):
        name: ClassVar[str] = "weightless"

        def weight(self, update):
            return weight

    run = simulated(kinds=[Weightless(epochs=1), "class-means"], rounds=1).runs[0]
    asks = [json.loads(line) for line in (run.folder / "asks.jsonl").read_text().splitlines()]
    reasons = {ask["why"] for ask in asks if ask["kind"] == "weightless" and ask["fate"] == "refused"}
    assert [text for text in reasons if re.match(rf"{re.escape(__file__)}:\d+: ", text) and why in text], (
        reasons
    )
    assert "counted" in {ask["fate"] for ask in asks if ask["kind"] == "class-means"}, "others go on"


@pytest.mark.parametrize("method", ["train", "fold", "finish", "rejection_reason"])
def test_a_bug_in_any_method_of_an_own_kind_leaves_it_out_with_file_and_line(method, caplog):
    def fails(self, *arguments):
        raise LookupError("my bug")

    @dataclass(frozen=True)
    class Buggy(FedAvg):
        name: ClassVar[str] = "buggy"

    setattr(Buggy, method, fails)
    kinds = [Buggy(epochs=1), "class-means"]
    where = rf"{re.escape(__file__)}:\d+: LookupError: my bug"
    result = simulated(kinds=kinds, rounds=1)
    run = result.runs[0]
    assert re.search(where, caplog.text + result.table())
    assert "counted" in (run.folder / "asks.jsonl").read_text(), "the other kinds go on"
    assert run.accuracy.shape == (1,)


@dataclass(frozen=True)
class Lazy(ChoicePolicy):
    name: ClassVar[str] = "lazy"

    def pick(self, fitting, profile):
        return fitting[-1]


def test_own_policies_and_merge_rules_of_a_notebook_are_compared_in_this_process(recwarn):
    @dataclass(frozen=True)
    class Local(Lazy):
        name: ClassVar[str] = "local-lazy"

    compared = simulated(kinds=("full", "class-means"), rounds=1, policies=["mixed", Local])
    assert compared.policies == ("mixed", "local-lazy")
    assert not compared.failed
    assert not [warning for warning in recwarn if "left out" in str(warning.message)]


def test_an_own_policy_that_picks_no_candidate_is_left_out_with_its_file_and_line():
    @dataclass(frozen=True)
    class Wrong(Lazy):
        name: ClassVar[str] = "wrong"

        def pick(self, fitting, profile):
            return "full"

    with pytest.warns(RuntimeWarning, match=rf"left out: wrong .*{re.escape(__file__)}:\d+: ValueError"):
        compared = simulated(rounds=1, kinds=("class-means",), policies=["mixed", Wrong])
    assert compared.policies == ("mixed",)


def test_a_kind_that_folds_otherwise_is_not_masked_unless_it_says_so():
    assert not registry.load(TOP_K).adds_up

    @dataclass(frozen=True)
    class Same(FedAvg):
        name: ClassVar[str] = "same"

    @dataclass(frozen=True)
    class Says(FedAvg):
        name: ClassVar[str] = "says"
        adds_up: ClassVar[bool] = True

        def fold(self, state, update, weight):
            return super().fold(state, update, weight)

    assert registry.register(Same).adds_up and registry.register(Says).adds_up


def test_an_owner_may_allow_a_kind_of_a_plugin():
    with pytest.raises(KindError, match="no kind of update is called 'top-k'"):
        check_kinds(["full", "top-k"])
    registry.load(TOP_K)
    check_kinds(["full", "top-k"])


def test_an_own_kind_of_the_release_before_imports_its_update_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="called Update now"):
        from device_runtime.kinds import TrainedUpdate
    assert TrainedUpdate is kinds.Update
