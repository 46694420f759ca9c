"""Chooses the engine that runs a bundle, among those that are installed."""

from dataclasses import dataclass, replace
from importlib import metadata, util
from typing import TYPE_CHECKING

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import AUTO as AUTO
from device_runtime.models.bundles.names import (
    DEFAULT_ENGINE_SETTINGS,
    TRAINING_PRECISIONS,
    EngineSettings,
)
from device_runtime.models.bundles.names import ENGINES as ENGINES
from device_runtime.models.engines.base import DeviceModel, EngineWatch
from device_runtime.models.errors import EngineError

from .onnx_engine import BUILDS, OnnxModel, OrtTrainingModel, available, installed_builds

if TYPE_CHECKING:
    from device_runtime.models.torch_engine.engine import TorchModel

PREFERRED = ("onnxruntime", "torch")
"""`auto` takes the first usable one; ordered by time and memory of a step, and by size of installation."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine, its version ("" if not installed), whether it is usable on this machine, and the reason."""

    name: str
    version: str
    usable: bool
    reason: str
    chosen: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip() + f" ({self.reason})"


def engine_choices(
    bundle: Bundle | None = None, settings: EngineSettings = DEFAULT_ENGINE_SETTINGS
) -> tuple[EngineChoice, ...]:
    """Every engine, in the order of ENGINES; `chosen` marks the one that `auto` takes for this bundle.

    Without a bundle, for bundles in general. Looks at what is installed, and imports no engine.
    """
    choices = (_onnxruntime(), _training(bundle), _torch(bundle, settings))
    usable = {choice.name: choice for choice in choices if choice.usable}
    preferred = ("torch",) if settings.for_torch else PREFERRED
    best = next((name for name in preferred if name in usable), None)
    return tuple(replace(choice, chosen=choice.name == best) for choice in choices)


def engine_choice(
    bundle: Bundle | None = None, settings: EngineSettings = DEFAULT_ENGINE_SETTINGS
) -> EngineChoice:
    """The engine that `open_model` uses: for `auto` torch, where it alone can do what is asked for.

    Raises EngineError if it, or for `auto` any, cannot be used.
    """
    choices, engine = engine_choices(bundle, settings), settings.engine
    if engine not in (AUTO, *ENGINES):
        raise EngineError(f"there is no engine {engine!r}; there are {AUTO}, {', '.join(ENGINES)}")
    if engine == AUTO and settings.for_torch:
        engine = "torch"
    if engine == AUTO:
        for choice in choices:
            if choice.chosen:
                return choice
        why = "; ".join(f"{choice.name}: {choice.reason}" for choice in choices if choice.name in PREFERRED)
        raise EngineError(f"no engine can be used here; {why}")
    [choice] = [choice for choice in choices if choice.name == engine]
    if not choice.usable:
        raise EngineError(f"engine {engine} cannot be used here: {choice.reason}")
    if engine != "torch" and settings.own_code:
        what = f"module ({settings.module})" if settings.module else f"loss ({settings.loss})"
        raise EngineError(f"engine {engine} runs a bundle's graphs, and no {what}: engine torch can")
    if engine != "torch" and settings.precision in TRAINING_PRECISIONS[1:]:
        raise EngineError(f"engine {engine} trains in float32, not in {settings.precision}: engine torch can")
    return choice


def open_model(
    bundle: Bundle,
    settings: EngineSettings = DEFAULT_ENGINE_SETTINGS,
    *,
    batch: int = 32,
    watch: EngineWatch | None = None,
) -> DeviceModel:
    """Opens a bundle on an engine; imports the engine's package, or leaves that to the first session.

    Raises EngineError as `engine_choice` does, or for a precision or device that the engine does not have;
    BundleError for a precision that the bundle does not have.
    """
    name = engine_choice(bundle, settings).name
    if name == "torch":
        return open_torch(bundle, settings, batch=batch, watch=watch)
    if settings.device != "cpu":
        raise EngineError(f"engine {name} computes on the cpu, not on {settings.device}; engine torch can")
    kind = OrtTrainingModel if name == "onnxruntime-training" else OnnxModel
    return kind(
        bundle,
        threads=settings.threads,
        batch=batch,
        watch=watch,
        precision=settings.precision,
        run_bytes=settings.run_bytes,
    )


def open_torch(
    bundle: Bundle, settings: EngineSettings, *, batch: int = 32, watch: EngineWatch | None = None
) -> "TorchModel":
    """Opens a bundle on engine torch, by the module of the settings if the bundle names no network.

    A loss of one's own is that of the settings. Raises EngineError for a module or loss that cannot be made
    or is not the bundle's, for a precision that torch does not train in, and as `TorchModel` does.
    """
    from device_runtime.models.torch_engine.engine import TorchModel, loss_named, module_of

    if settings.precision not in TRAINING_PRECISIONS:
        raise EngineError(f"engine torch computes in float32, not in {settings.precision}")
    manifest = bundle.manifest
    module = module_of(settings.module) if settings.module and manifest.source is None else None
    loss = loss_named(settings.loss) if settings.loss and manifest.target.own else None
    return TorchModel(
        bundle,
        module=module,
        loss=loss,
        threads=settings.threads,
        batch=batch,
        watch=watch,
        device=settings.device,
        precision=settings.precision,
    )


def in_turn(settings: EngineSettings, number: int) -> EngineSettings:
    """The settings of process `number`, from 0, of several: `cuda` becomes one GPU of the machine in turn."""
    if settings.device != "cuda" or not _installed("torch"):
        return settings
    from device_runtime.models.torch_engine.place import gpu_count

    return replace(settings, device=f"cuda:{number % count}") if (count := gpu_count()) > 1 else settings


def _onnxruntime() -> EngineChoice:
    if not _installed("onnxruntime"):
        return EngineChoice("onnxruntime", "", False, "not installed: pip install onnxruntime")
    reason = "least memory; ordinary ONNX graphs, back-propagation included"
    version = next(iter(installed_builds().values()), "")
    return EngineChoice("onnxruntime", version, True, reason)


def _training(bundle: Bundle | None) -> EngineChoice:
    version = next((release for name, release in installed_builds().items() if name in BUILDS), "")
    if missing := available(None if bundle is None else bundle.manifest):
        return EngineChoice("onnxruntime-training", version, False, missing)
    reason = "gradient operators of its own, for cross-entropy only; its makers have deprecated it"
    return EngineChoice("onnxruntime-training", version, True, reason)


def _torch(bundle: Bundle | None, settings: EngineSettings) -> EngineChoice:
    if not _installed("torch"):
        return EngineChoice("torch", "", False, "not installed: pip install 'device-runtime[torch]'")
    version = _version("torch")
    if bundle is not None and bundle.manifest.source is None and not settings.module:
        says = f"bundle {bundle.manifest.name} does not say which network it was made from"
        return EngineChoice("torch", version, False, says)
    if bundle is not None and bundle.manifest.target.own and not settings.loss:
        says = f"bundle {bundle.manifest.name} has a loss of its own: give its function (simulate --own-loss)"
        return EngineChoice("torch", version, False, says)
    reason = "the network itself; takes two to four times the memory"
    return EngineChoice("torch", version, True, reason)


def _installed(module: str) -> bool:
    return util.find_spec(module) is not None


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
