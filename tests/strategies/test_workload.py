import pytest

from models.blocks import BLOCK
from profiles import GraphWork, Workload
from profiles.cost import SESSION_BYTES
from strategies.workload import training_work


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
        batch=32,
    )


@pytest.mark.parametrize(
    ("batch", "vectors", "run"),
    [(8, 3, 8), (32, 3, 32), (64, 4, 32), (500, 4, 32)],
)
def test_memory_counts_the_vectors_a_run_the_model_twice_and_the_data(load, batch, vectors, run):
    """Batches beyond a run of 32 need the sum of gradients; all 100 samples are held, and one batch."""
    expected = 4 * (vectors * 1000 + BLOCK) + 2 * 5000 + (100 + min(batch, 100)) * 13
    expected += SESSION_BYTES + 11 + run * 7
    assert training_work(load, "all", 100, batch=batch).peak_bytes == expected
