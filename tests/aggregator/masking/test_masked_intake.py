"""Which contributions a masked task takes, and which a task in the clear."""

from math import isnan

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.intake.check import masked_bytes
from device_runtime.aggregator.serving.worker_main import ContributionChecker
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.broker.wire import compact_round, topics
from device_runtime.broker.wire.messages import Mask
from device_runtime.models.bundles import tensors
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.masking.layout import layout_of

MASK = Mask(key=bytes(32), tags=(bytes(16), bytes(16)))
JOINED = KindSettings(name="few-shot", settings={"join_base": True})


@pytest.fixture
def b(bench, masked_task):
    new_bench = bench(masked_task(JOINED, "class-means", head="trained"))
    new_bench.join("pi-0", "pi-1", samples=100)
    return new_bench


@pytest.fixture
def sound(b, mask_of, update_of):
    return mask_of(b, "pi-0", "few-shot", update_of("few-shot"))


def refused(b, message):
    [receipt] = b.contribute("pi-0", message)
    assert receipt.status == "refused"
    return receipt.reason.removeprefix("update from pi-0 refused: ")


def test_a_masked_contribution_counts_and_is_kept_with_its_mask(b, sound):
    [receipt] = b.contribute("pi-0", sound)
    assert receipt.status == "accepted"
    [entry] = b.store.contributions.masked(1)
    assert (entry.device, entry.kind, entry.mask) == ("pi-0", "few-shot", sound.mask)
    assert b.store.contributions.masked_content(entry) == sound.body
    [record] = b.store.contributions.records(1)
    assert isnan(record.train_loss)


def test_a_masked_contribution_outlives_a_crash(b, sound):
    b.contribute("pi-0", sound)
    records = b.store.contributions.masked(1)
    b = b.restart()
    assert b.store.contributions.masked(1) == records


def test_a_contribution_in_the_clear_is_refused_by_a_masked_task(b, update_of):
    message = b.contribution("few-shot", update_of("few-shot"))
    assert refused(b, message) == "it is in the clear, and this task takes masked updates only"


def test_a_masked_contribution_is_refused_by_a_task_in_the_clear(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-0")
    message = b.contribution("few-shot", update_of("few-shot"), mask=MASK)
    assert refused(b, message) == "it is masked, and this task takes updates in the clear only"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": Mask(key=bytes(32), tags=(bytes(16),))}, "its mask is for 1 mask helpers, this task has 2"),
        ({"body": b"x" * 12}, "its masked content has 12 bytes, expected 2632"),
        ({"body": b""}, "it has no content"),
        ({"kind": "full"}, "round 1 does not accept kind 'full'; it accepts few-shot, class-means"),
        ({"form": "half"}, "few-shot has no variant 'half', expected one of ''"),
        ({"num_examples": 101}, "num_examples is 101, the hello of the device says that it has 100"),
    ],
)
def test_what_is_not_as_the_offer_says_is_refused_with_values(b, sound, changes, reason):
    assert refused(b, msgspec.structs.replace(sound, **changes)) == reason


def test_a_loss_in_the_clear_is_refused(b, sound):
    metrics = msgspec.structs.replace(sound.metrics, train_loss=0.5)
    message = msgspec.structs.replace(sound, metrics=metrics)
    assert refused(b, message) == "its train_loss is in the clear, and belongs into the masked update"


def test_the_content_is_not_read(b, sound):
    """Whatever its bytes are: nothing in them could be checked."""
    [receipt] = b.contribute("pi-0", msgspec.structs.replace(sound, body=b"\xff" * len(sound.body)))
    assert receipt.status == "accepted"


def test_the_size_does_not_depend_on_base_and_offer(round_model, helpers):
    settings = MaskSettings(tuple(helper.written for helper in helpers))
    base = {name: np.float32(100) * value for name, value in round_model.weights.items()}
    layout = layout_of(FedAvg(), round_model.manifest, base, settings.offered(1000, 12345))
    assert masked_bytes(FedAvg(), round_model.manifest, settings) == layout.content_bytes


def test_workers_take_and_refuse_what_the_aggregator_does(b, sound, update_of):
    checker = ContributionChecker(b.folder)
    assert checker.refusal(sound) == ""
    assert checker.refusal(b.contribution("few-shot", update_of("few-shot"))).startswith("it is in the clear")
    checker.close()


def test_compact_contributions_are_not_completed_in_a_masked_task(bench, masked_task, mask_of, update_of):
    b = bench(masked_task("zeroth-order", min_group=3))
    b.join("pi-0", "pi-1", "pi-2", samples=20)
    message = mask_of(b, "pi-0", "zeroth-order", update_of("zeroth-order"))
    assert b.contribute("pi-0", message)[0].status == "accepted"
    first, second = (b.contribution("zeroth-order", update_of("zeroth-order"), number) for number in (1, 2))
    b.raw(topics.up("pi-0", "c"), compact_round.compact_contribution(second, first))
    assert len(b.receipts("pi-0")) == 1
    assert b.service._run.contributions.statements.whole == {}


def test_a_folder_from_before_there_were_masks_is_opened(bench, make_task, update_of):
    b = bench(make_task("few-shot"))
    b.join("pi-0", "pi-1")
    b.contribute("pi-0", b.contribution("few-shot", update_of("few-shot")))
    for table in ("masks", "round_masks", "sum_answers", "sums"):
        b.store._db.rows(f"DROP TABLE {table}")
    b = b.restart()
    b.join("pi-0", "pi-1")
    b.contribute("pi-1", b.contribution("few-shot", update_of("few-shot", 1)))
    b.wait(2)
    assert b.store.rounds.closed()[0].record.participants == 2
    assert tensors.decode(b.store.models.get(b.store.rounds.made(1).served))
