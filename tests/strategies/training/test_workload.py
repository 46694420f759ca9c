import msgspec
import pytest

from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.engines.base import BLOCK
from device_runtime.profiles import GraphWork, Workload
from device_runtime.profiles.cost import SESSION_BYTES, MissingGraph, activation_bytes
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.training.workload import Training, work_of_training, workload


@pytest.fixture
def load() -> Workload:
    return Workload(
        graphs={"forward": GraphWork(1.0, 0, 0), "train.all": GraphWork(3.0, 11, 7)},
        parameters={"all": 1000},
        tensors={"all": 4},
        weights_bytes=5000,
        download_bytes=0,
        feature_width=4,
        class_counts=(30, 70),
        sample_bytes=13,
    )


@pytest.mark.parametrize(
    ("batch", "vectors", "run"),
    [(8, 3, 8), (32, 3, 32), (64, 4, 32), (500, 4, 32)],
)
def test_memory_counts_the_vectors_a_run_the_model_twice_and_the_data(load, batch, vectors, run):
    """Batches beyond a run of 32 need the sum of gradients; all 100 samples are held, and one batch."""
    expected = 4 * (vectors * 1000 + BLOCK) + 2 * 5000 + (100 + min(batch, 100)) * 13
    expected += SESSION_BYTES + 11 + run * 7
    assert work_of_training(load, Training("all", 100, batch=batch)).peak_bytes == expected


def test_the_graph_that_scored_stays_open_while_the_model_is_trained(load):
    alone, scored = (work_of_training(load, Training("all", 100, n)).peak_bytes for n in (0, 100))
    assert scored - alone == activation_bytes(load, "forward")


@pytest.fixture
def manifest():
    return Bundle.open(shipped_folder("digits-wrn-10-1")).manifest


def test_a_sample_of_token_ids_takes_eight_bytes_each_and_one_of_values_four(manifest):
    ids = msgspec.structs.replace(manifest, input=InputSpec((6,), dtype="int64", vocabulary=30))
    assert workload(ids, (1,) * 10).sample_bytes == 8 * 6
    assert workload(manifest, (1,) * 10).sample_bytes == 4 * 8 * 8


def test_a_head_is_expected_of_a_bundle_that_has_no_set_all(manifest):
    without = msgspec.structs.replace(manifest, sets={"head": {}})
    assert [spec.name for spec in FewShot().expected(without)] == ["head.weight", "head.bias"]


def test_the_map_of_a_level_counts_its_values_and_is_missed_where_the_bundle_gives_none(manifest):
    graphs = {**manifest.graphs, "features.low": manifest.graphs["forward"]}
    giving = msgspec.structs.replace(manifest, features={"low": (16, 8, 8), "head": (64,)}, graphs=graphs)
    assert workload(giving, (1,) * 10).map_values("low") == 16 * 8 * 8
    with pytest.raises(MissingGraph, match=r"needs graph features\.mid"):
        workload(giving, (1,) * 10).map_values("mid")
