import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios.scenario import describe, load, names, of_policy, preset_names, under
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.registry import KINDS

TASK = Task(
    bundle="digits-wrn-10-1",
    kinds=(
        KindSettings(name="full", settings={"epochs": 7}),
        KindSettings(name="few-shot", settings={"shots": 3}, from_round=2),
    ),
)

AS_PUBLISHED = {"class-means": ClassMeans(smallest_count=1)}
"""FedNCM sends the mean of a class that has one sample."""


def test_our_choosing_offers_what_the_task_offers():
    assert under("choose", TASK) == TASK


def test_dropping_stragglers_offers_full_updates_alone_with_the_task_s_settings():
    [kind] = under("drop", TASK).kinds
    assert (kind.name, kind.strategy.epochs, len(kind.strategy.variants())) == ("full", 7, 1)


def test_reduced_lets_stragglers_train_one_epoch():
    [kind] = under("reduced", TASK).kinds
    assert [form.epochs for form in kind.strategy.variants()] == [7, 1]


def test_a_kind_s_name_offers_that_kind_alone_from_the_first_round():
    [kind] = under("few-shot", TASK).kinds
    assert (kind.name, kind.strategy.shots, kind.from_round) == ("few-shot", 3, 1)
    [other] = under("class-means", TASK).kinds
    assert other.strategy == AS_PUBLISHED.get("class-means")


def test_a_kind_alone_joins_no_base_that_others_move():
    """As `device-runtime serve --kinds class-means` would have it: FedNCM, not a head trained on means."""
    task = Task(bundle="digits-wrn-10-1")
    assert [getattr(kind.strategy, "join_base", True) for kind in task.kinds] == [True] * len(task.kinds)
    assert [kind.strategy.head for kind in task.kinds if kind.name == "class-means"] == ["trained"]
    for name in KINDS:
        [kind] = under(name, task).kinds
        assert kind.strategy == AS_PUBLISHED.get(name, KindSettings(name=name).strategy)


def test_every_kind_and_system_is_a_policy_and_an_unknown_one_is_refused():
    assert {*KINDS, *systems.SYSTEMS} < set(names())
    with pytest.raises(ScenarioError, match="no system is called 'best'; there are fedavg, fedprox, moon"):
        under("best", TASK)


@pytest.mark.parametrize("policy", ["fedncm", "fedncm+ft"])
def test_fedncm_s_head_equals_the_pooled_means_where_rounds_ask_only_some_devices(policy):
    """Bernier 2024, algorithm 1: l_c = sum_k m_c^k / sum_k count_c^k over all clients, as l_c / ||l_c||."""
    kinds = [{"name": "class-means"}, {"name": "full", "settings": {"lr": 1e-30, "epochs": 1}}]
    data = {"source": "digits", "partition": "dirichlet", "alpha": 0.1, "max_train": 300}
    task = {"rounds": 2, "round_deadline_s": 600.0, "kinds": kinds, "devices_per_round": 2}
    own = of_policy(load("uniform", {"devices": 8, "data": data, "task": task}), policy)
    prepared = prepare(own, 3)
    served = simulate(prepared)
    bundle, clients = prepared.inputs.bundle, prepared.inputs.clients
    parts = [clients.local(device, bundle.manifest.input) for device in range(8)]
    model = OnnxModel(bundle)
    features = [model.features(part.x).astype(np.float64) for part in parts if len(part)]
    pooled, y = np.concatenate(features), np.concatenate([part.y for part in parts])
    means = np.array([pooled[y == label].mean(0) for label in range(10)])
    rows = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(served[bundle.manifest.head.weight], rows, atol=1e-5)
    np.testing.assert_allclose(served[bundle.manifest.head.bias], 0, atol=1e-6)


def test_the_oracle_trains_on_all_samples_on_one_computer_without_a_deadline():
    own = of_policy(load("digits", {"devices": 7}), "centralised")
    assert (own.devices, own.data.partition, own.fleet.name) == (1, "iid", "uniform-server")
    assert own.task.untimed_rounds == own.task.rounds
    assert [kind.name for kind in own.task.kinds] == ["full"]
    assert not of_policy(load("straggler-classes"), "centralised").data.groups
    for preset in preset_names():
        assert of_policy(load(preset), "centralised").devices == 1
    robust = load("digits", {"task": {"robust": "median"}})
    assert of_policy(robust, "centralised").task.robust == "none"
    masked = load("digits", {"task": {"masks": {"min_group": 3}}})
    assert of_policy(masked, "centralised").task.masks is None


def test_modifiers_follow_our_choosing_as_they_follow_systems():
    assert under("choose+fast", TASK) == msgspec.structs.replace(TASK, wait_for="fast")
    assert under("mixed+fast+fedadam", TASK).server.name == "fedadam"
    assert under("fedavg+fast", TASK).wait_for == "fast"
    assert under("choose+all", TASK).wait_for == "all"
    assert "rounds close when the fast devices are done" in describe("mixed+fast")
    with pytest.raises(ScenarioError, match=r"'choose\+best': there is no modifier \+best; there are "):
        under("choose+best", TASK)
