import subprocess
import sys

import msgspec
import pytest

from device_runtime.models.available_engines import available as engines
from device_runtime.models.available_engines.available import (
    ENGINES,
    EngineSettings,
    engine_choice,
    engine_choices,
    in_turn,
    open_model,
)
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.errors import EngineError


@pytest.fixture
def lacking(monkeypatch):
    """Makes packages look as if they were not installed."""

    def take_away(*names: str) -> None:
        installed = engines._installed
        monkeypatch.setattr(engines, "_installed", lambda name: name not in names and installed(name))

    return take_away


@pytest.fixture
def sourceless(digits) -> Bundle:
    return Bundle(digits.path, msgspec.structs.replace(digits.manifest, source=None))


def test_every_engine_is_listed_with_whether_it_can_be_used_and_why(digits):
    choices = engine_choices(digits)
    assert [choice.name for choice in choices] == list(ENGINES)
    assert all(choice.reason for choice in choices)
    assert [choice.name for choice in choices if choice.chosen] == ["onnxruntime"]


def test_the_default_is_named_with_its_version():
    onnxruntime = pytest.importorskip("onnxruntime")
    assert str(engine_choice()).startswith(f"onnxruntime {onnxruntime.__version__} (")


def test_auto_takes_torch_where_onnxruntime_is_missing_and_the_bundle_says_what_it_is(digits, lacking):
    pytest.importorskip("torch")
    from device_runtime.models.torch_engine.engine import TorchModel

    lacking("onnxruntime")
    assert engine_choice(digits).name == "torch"
    assert engine_choice().name == "torch"
    assert isinstance(open_model(digits), TorchModel)


def test_a_bundle_that_does_not_say_what_it_is_cannot_run_on_torch(sourceless, lacking):
    pytest.importorskip("torch")
    assert engine_choice(sourceless).name == "onnxruntime"
    with pytest.raises(EngineError, match="torch cannot be used here: bundle digits-wrn-10-1 does not say"):
        open_model(sourceless, EngineSettings("torch"))
    lacking("onnxruntime")
    with pytest.raises(EngineError, match="pip install onnxruntime; torch: .*does not say which network"):
        open_model(sourceless)


def test_a_loss_that_only_graphs_have_cannot_run_on_torch(digits, lacking):
    pytest.importorskip("torch")
    own = TargetSpec("mine", "values", ("price",), own=True)
    lacking("onnxruntime")
    with pytest.raises(EngineError, match="torch: bundle digits-wrn-10-1 has a loss of its own"):
        open_model(Bundle(digits.path, msgspec.structs.replace(digits.manifest, loss=own)))


def test_without_any_engine_the_error_says_what_to_install(digits, lacking):
    lacking("onnxruntime", "torch")
    with pytest.raises(
        EngineError, match=r"no engine can be used here; .*pip install onnxruntime; .*runtime\[torch\]"
    ):
        open_model(digits)


def test_an_engine_asked_for_by_name_is_taken_or_refused(digits):
    assert isinstance(open_model(digits, EngineSettings("onnxruntime"), batch=4), OnnxModel)
    with pytest.raises(EngineError, match="no engine 'tensorflow'; there are auto, onnxruntime, "):
        open_model(digits, EngineSettings("tensorflow"))


def test_a_device_is_for_engine_torch_alone_and_must_be_here(digits):
    with pytest.raises(
        EngineError, match="engine onnxruntime computes on the cpu, not on cuda; engine torch can"
    ):
        open_model(digits, EngineSettings("onnxruntime", device="cuda"))
    pytest.importorskip("torch")
    assert engine_choice(digits, EngineSettings(device="cuda")).name == "torch"
    with pytest.raises(
        EngineError, match="engine onnxruntime trains in float32, not in bf16: engine torch can"
    ):
        open_model(digits, EngineSettings("onnxruntime", "bf16"))
    assert engine_choice(digits, EngineSettings(precision="bf16")).name == "torch"
    with pytest.raises(EngineError, match="device cuda:99 is not available"):
        open_model(digits, EngineSettings("torch", device="cuda:99"))


def test_choosing_imports_no_engine():
    code = (
        "import sys\nfrom device_runtime.models.bundles.bundle import Bundle, shipped_folder\n"
        "from device_runtime.models.available_engines.available import engine_choices\n"
        "engine_choices(Bundle.open(shipped_folder('digits-wrn-10-1')))\n"
        "print([name for name in ('torch', 'onnx', 'onnxruntime') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_processes_of_a_machine_take_its_gpus_in_turn(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("device_runtime.models.torch_engine.place.gpu_count", lambda: 2)
    places = [in_turn(EngineSettings("torch", device="cuda"), number).device for number in range(3)]
    assert places == ["cuda:0", "cuda:1", "cuda:0"]
    for device in ("cpu", "cuda:1"):
        assert in_turn(EngineSettings("torch", device=device), 2).device == device
    monkeypatch.setattr("device_runtime.models.torch_engine.place.gpu_count", lambda: 1)
    assert in_turn(EngineSettings("torch", device="cuda"), 2).device == "cuda"
