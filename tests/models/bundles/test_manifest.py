import msgspec
import pytest
from msgspec.structs import replace

from device_runtime.models.bundles import manifest as manifests
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.names import RUN_BYTES
from device_runtime.models.errors import BundleError


def test_manifest_comes_back_as_it_was_encoded(digits):
    assert manifests.decode(manifests.encode(digits.manifest)) == digits.manifest


def test_upper_is_everything_but_the_low_level(digits):
    levels = {p.name: p.level for p in digits.manifest.parameters}
    names = digits.manifest.names("mid")
    assert {levels[n] for n in names} == {"mid", "up", "head"}
    assert set(digits.manifest.names("all")) - set(names) == {n for n, v in levels.items() if v == "low"}


def test_parameters_of_the_digits_network_are_counted_by_hand(digits):
    def block(inner, outer, shortcut):
        return 2 * inner + inner * outer * 9 + 2 * outer + outer * outer * 9 + shortcut * inner * outer

    low = 16 * 9 + block(16, 16, 0)
    upper = block(16, 32, 1) + block(32, 64, 1) + 2 * 64
    head = 64 * 10 + 10
    assert digits.manifest.num_parameters("head") == head
    assert digits.manifest.num_parameters("mid") == upper + head
    assert digits.manifest.num_parameters() == low + upper + head


def test_unknown_tunable_set_is_refused(digits):
    with pytest.raises(BundleError, match="no tunable set 'most'; it has all, mid, head"):
        digits.manifest.specs("most")


def test_newer_format_is_refused_before_anything_else_is_read(digits):
    with pytest.raises(BundleError, match="format 3, this version reads 2"):
        manifests.decode(b'{"format": 3, "novelty": true}')


def test_what_to_do_about_another_format_is_said(digits):
    with pytest.raises(BundleError, match="format 1, this version reads 2: export the bundle again"):
        manifests.decode(b'{"format": 1}')
    with pytest.raises(BundleError, match="reads 2: update device-runtime"):
        manifests.decode(b'{"format": 3}')


def test_endless_nesting_is_refused():
    with pytest.raises(BundleError, match="is not a manifest"):
        manifests.decode(b'{"novelty": ' + b"[" * 100_000 + b"]" * 100_000 + b', "format": 2}')


def test_unknown_fields_and_broken_json_are_refused(digits):
    data = msgspec.json.decode(manifests.encode(digits.manifest))
    with pytest.raises(BundleError, match="surprise"):
        manifests.decode(msgspec.json.encode(data | {"surprise": 1}))
    with pytest.raises(BundleError, match="not a manifest"):
        manifests.decode(b"{")


def test_activation_memory_grows_with_the_batch():
    graph = Graph("f", "", 0, (), 0, fixed_bytes=100, bytes_per_sample=7)
    assert graph.activation_bytes(3) == 121
    assert graph.memory_bytes(3) == 242


def test_one_run_takes_as_many_samples_as_its_activations_allow():
    graph = Graph("f", "", 0, (), 0, fixed_bytes=8 << 20, bytes_per_sample=12 << 20)
    assert RUN_BYTES == 128 << 20
    assert (graph.rows(32), graph.rows(8)) == (10, 8)  # 8 + 10 * 12 = 128
    assert graph.rows(32, 32 << 20) == 2
    assert replace(graph, bytes_per_sample=200 << 20).rows(32) == 1
    assert replace(graph, bytes_per_sample=0).rows(32) == 32
    assert replace(graph, statistics=("mean",)).rows(32) == 32


def changed(digits, path: str, value: bytes) -> bytes:
    """The manifest with one value replaced by other JSON, without a seal."""
    tree = msgspec.json.decode(manifests.encode(digits.manifest)) | {"seal": ""}
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place = tree
    for step in way:
        place = place[step]
    place[last] = msgspec.Raw(value)
    return msgspec.json.encode(tree)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("graphs/forward/flops", b"-1"),
        ("graphs/forward/bytes", b"-1"),
        ("graphs/forward/fixed_bytes", b"1e300"),
        ("graphs/forward/bytes_per_sample", b"1e30"),
        ("graphs/forward/bytes_per_sample", b"99999999999999999999999999"),
        ("graphs/forward/bytes_per_sample", b"9000000000000000000"),
        ("labels", b"[]"),
        ("parameters", b"[]"),
        ("parameters/0/shape", b"[0, 3]"),
        ("parameters/0/shape", b"[-2, -3]"),
        ("parameters/0/dtype", b'"nonsense"'),
        ("parameters/0/dtype", b'"object"'),
        ("input/shape", b"[]"),
        ("input/shape", b"[1, 0, 8]"),
        ("input/mean", b"[1, 2]"),
        ("input/std", b"[0]"),
        ("input/std", b"[1e-300]"),
        ("input/scale", b"0"),
        ("input/scale", b"1e300"),
        ("input/scale", b"1e999"),
        ("head/features", b"0"),
        ("features/head", b"[-64]"),
        ("format", b"1e400"),
    ],
)
def test_absurd_figures_are_refused_in_one_line(digits, path, value):
    assert manifests.decode(changed(digits, "producer", b'"torch"')).producer == "torch"
    with pytest.raises(BundleError, match=r"manifest.json is not a manifest") as caught:
        manifests.decode(changed(digits, path, value))
    assert "\n" not in str(caught.value)


def test_a_manifest_edited_by_hand_does_not_fit_its_seal(digits):
    data = manifests.encode(digits.manifest)
    edited = data.replace(b'"scale": 0.0625', b'"scale": 0.0725')
    assert edited != data
    with pytest.raises(BundleError, match="does not fit its seal"):
        manifests.decode(edited)
