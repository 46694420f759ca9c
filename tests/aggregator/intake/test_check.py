import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.errors import UpdateRefused
from device_runtime.aggregator.intake.check import ExpectedContribution, check_content, check_message
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.blobs import blob_of as blob_of
from device_runtime.broker.wire.messages import Blob, Contribution, Metrics
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.strategies.kinds import registry

METRICS = Metrics(0.5, 1, 1, 1)


def message(name, content, examples=10, **changes):
    body = tensors.encode(content)
    fields = {
        "task": "task",
        "run": "r1",
        "round": 1,
        "boot": 1,
        "seq": 1,
        "kind": name,
        "metrics": METRICS,
        "num_examples": examples,
        "body": body,
    }
    return Contribution(**{**fields, **changes}), body


def offered(manifest, *kinds, base=None):
    chosen = tuple(k if isinstance(k, KindSettings) else KindSettings(name=k) for k in kinds)
    return ExpectedContribution(Task(bundle="b", kinds=chosen), "r1", {"": manifest}, lambda _: base or {})


def refusal(function, *arguments):
    with pytest.raises(UpdateRefused) as error:
        function(*arguments)
    return str(error.value)


def test_a_sound_update_is_believed_and_decoded(manifest, update_of):
    content, examples = update_of("class-means")
    sent, body = message("class-means", content, examples)
    against = offered(manifest, "class-means")
    check_message(sent, against)
    believed = check_content(sent, body, against)
    np.testing.assert_array_equal(believed["sums"], content["sums"])


def test_counts_must_be_counts_and_sum_to_num_examples(manifest, update_of):
    content, examples = update_of("class-means")
    against = offered(manifest, "class-means")
    negative = {**content, "counts": content["counts"] * np.array([-1] + [1] * 9, np.int32)}
    assert "count of class 0 is -" in refusal(check_content, *message("class-means", negative), against)
    sent = message("class-means", content, examples + 1)
    assert refusal(check_content, *sent, against) == (
        f"counts sum to {examples}, num_examples is {examples + 1}"
    )


def test_a_variant_that_the_kind_does_not_have_is_refused_and_not_taken_for_another(manifest, update_of):
    content, examples = update_of("entropy-subset")
    against = offered(manifest, "entropy-subset")
    check_content(*message("entropy-subset", content, examples, form="25%"), against)
    for form in ("", "30%", "25% epochs=1"):
        reason = refusal(check_content, *message("entropy-subset", content, examples, form=form), against)
        assert reason == f"entropy-subset has no variant {form!r}, expected one of '50%', '25%', '10%'"


def test_a_negative_variance_is_refused(manifest, update_of):
    """As if a bias were the running variance of a batch normalisation, which training moves too."""
    norm = "head.running_var"
    head = msgspec.structs.replace(manifest.head, bias=norm)
    parameters = [
        msgspec.structs.replace(p, name=norm) if p.name == "head.bias" else p for p in manifest.parameters
    ]
    other = msgspec.structs.replace(manifest, parameters=tuple(parameters), head=head)
    content, examples = update_of("full")
    content = {norm if key == "head.bias" else key: value for key, value in content.items()}
    check_content(
        *message("full", {**content, norm: np.ones(10, np.float32)}, examples), offered(other, "full")
    )
    wrong = message("full", {**content, norm: np.full(10, -0.5, np.float32)}, examples)
    assert (
        refusal(check_content, *wrong, offered(other, "full")) == f"{norm} holds -0.5, which is no variance"
    )


def test_counts_that_overflow_do_not_pass_for_few(manifest, update_of):
    content, _ = update_of("class-means")
    huge = {**content, "counts": np.full(10, 2**31 - 1, np.int32)}
    assert f"counts sum to {10 * (2**31 - 1)}" in refusal(
        check_content, *message("class-means", huge, 10), offered(manifest, "class-means")
    )


def test_sums_of_a_class_that_nobody_counted_are_refused(manifest, update_of):
    content, _ = update_of("class-means")
    counts = content["counts"].copy()
    counts[3] = 0
    sent = message("class-means", {**content, "counts": counts}, int(counts.sum()))
    assert "sums of class 3" in refusal(check_content, *sent, offered(manifest, "class-means"))


def test_an_update_too_far_from_the_base_is_refused_with_both_numbers(manifest, bundle):
    base = bundle.weights()
    head = {n: base[n] for n in manifest.names("head")}
    bias = head["head.bias"].copy()
    bias[0] += 3.0
    against = offered(manifest, KindSettings(name="few-shot", max_norm=2.0), base=base)
    far, body = message("few-shot", {**head, "head.bias": bias})
    assert refusal(check_content, far, body, against) == ("it is 3 away from the base, at most 2 is accepted")
    check_content(*message("few-shot", head), against)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"body": b""}, "it has no content"),
        ({"blob": Blob(bytes(32), 10)}, "it has both a body and a blob"),
        ({"body": bytes(70_000)}, "over 65536 it must be a blob"),
        ({"body": b"", "blob": Blob(bytes(32), 2**39)}, f"its content has {2**39} bytes, expected at most"),
        ({"num_examples": -1}, "num_examples is -1, expected 1 to 1000000"),
        ({"num_examples": 10**12}, "num_examples is 1000000000000"),
        ({"kind": "class-means"}, "round 1 does not accept kind 'class-means'; it accepts few-shot"),
        ({"metrics": Metrics(0.5, -1, 1, 1)}, "metrics are negative"),
        ({"metrics": Metrics(float("inf"), 1, 1, 1)}, "its train_loss is inf, expected 0 to 1e+06, or nan"),
        ({"metrics": Metrics(float("-inf"), 1, 1, 1)}, "its train_loss is -inf"),
        ({"metrics": Metrics(-5.0, 1, 1, 1)}, "its train_loss is -5, expected 0 to"),
        ({"metrics": Metrics(0.5, 2**62, 1, 1)}, f"its train_time_ms is {2**62}, at most 2592000000"),
        ({"metrics": Metrics(0.5, 1, 2**62, 1)}, f"its energy_mj is {2**62}, at most 1000000000000"),
        ({"metrics": Metrics(0.5, 1, 1, 2**62)}, f"its peak_memory_kib is {2**62}, at most"),
    ],
)
def test_what_a_message_says_is_checked_before_anything_is_fetched(manifest, update_of, changes, text):
    sent, _ = message("few-shot", update_of("few-shot")[0], **changes)
    assert text in refusal(check_message, sent, offered(manifest, "few-shot"))


@pytest.mark.parametrize("loss", [0.0, -1e-6, 999_999.0, float("nan")])
def test_a_loss_that_can_be_is_believed_and_so_is_none(manifest, update_of, loss):
    sent, _ = message("few-shot", update_of("few-shot")[0], metrics=Metrics(loss, 1, 1, 1))
    check_message(sent, offered(manifest, "few-shot"))


def test_a_kind_that_is_offered_later_is_not_accepted_now(manifest, update_of):
    against = offered(manifest, "full", KindSettings(name="few-shot", from_round=2))
    sent, _ = message("few-shot", update_of("few-shot")[0])
    assert "it accepts full" in refusal(check_message, sent, against)


@pytest.mark.parametrize("kind", ["full", "entropy-subset", "few-shot", "zeroth-order", "class-means"])
def test_every_kinds_own_update_fits_in_the_bytes_that_are_allowed(manifest, update_of, kind):
    content, examples = update_of(kind)
    body = tensors.encode(content)
    form = registry.make(kind).variants()[0].variant
    sent, _ = message(kind, content, examples, body=b"", blob=blob_of(body), form=form)
    check_message(sent, offered(manifest, kind))


def test_an_update_by_class_of_a_bundle_of_another_loss_is_refused(exported):
    manifest = Bundle.open(exported.of_loss("mse")).manifest
    content = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in manifest.specs("head")}
    sent, body = message("few-shot", content)
    reason = refusal(check_content, sent, body, offered(manifest, "few-shot", "full"))
    assert reason.startswith("few-shot works by class, and the bundle's loss is mse of price, area")
