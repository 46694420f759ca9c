"""An optional engine for the package onnxruntime-training, which its makers have deprecated.

That package brings the import name `onnxruntime` and excludes the ordinary one. It runs all graphs of a
bundle; those named ort-training.SET hold gradient operators that no other build has.
"""

from importlib import metadata, util
from pathlib import Path

from device_runtime.models.bundles.manifest import ORT_TRAINING, Manifest
from device_runtime.models.errors import EngineError

from .onnx_engine import OnnxGradients, OnnxModel

VERSION = "1.19.2"  # the last one; other versions may name their gradient operators otherwise
BUILDS = ("onnxruntime-training-cpu", "onnxruntime-training")
_ORDINARY = ("onnxruntime", "onnxruntime-gpu")  # the same import name; no two can live side by side
_INSTALL = f"in an environment without onnxruntime: pip install onnxruntime-training-cpu=={VERSION}"


def available(manifest: Manifest | None = None) -> str:
    """Why this engine cannot be used on this machine (and for this bundle, if given); empty if it can.

    Loads nothing.
    """
    builds = installed_builds()
    name, version = next(((n, v) for n, v in builds.items() if n in BUILDS), ("", ""))
    if not name:
        return f"onnxruntime-training is not installed; {_INSTALL}"
    if other := sorted(builds.keys() - {name}):
        return (
            f"{name} and {other[0]} are both installed and overwrite each other; remove both, then {_INSTALL}"
        )
    if version != VERSION:
        return f"{name} is {version}, expected {VERSION}; {_INSTALL}"
    if manifest is not None and not any(graph.startswith(f"{ORT_TRAINING}.") for graph in manifest.graphs):
        return (
            f"bundle {manifest.name} has no {ORT_TRAINING} graphs; "
            "export it where onnxruntime-training is installed"
        )
    return ""


class OrtTrainingModel(OnnxModel):
    """A bundle on onnxruntime-training; trains with graphs ort-training.SET. See `base.DeviceModel`."""

    def trainer(self, tunable: str = "all", objective: str = "train", batch: int = 0) -> OnnxGradients:
        """The gradients of a tunable set, starting at `weights`. Raises BundleError, EngineError.

        A set without an ort-training graph uses the ordinary training graph.
        """
        if objective != "train":
            raise EngineError(
                f"engine {ORT_TRAINING} trains on cross-entropy only, not with objective {objective!r}; "
                "engines onnxruntime and torch do"
            )
        params = self._params(tunable)
        name = f"{ORT_TRAINING}.{tunable}"
        kind = name if name in self.manifest.graphs else f"train.{tunable}"
        return OnnxGradients(self, kind, params, batch)


def installed_builds() -> dict[str, str]:
    """Versions by name of the packages in the folder from which `import onnxruntime` would load."""
    spec = util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return {}
    folder = str(Path(spec.origin).parent.parent)
    versions: dict[str, str] = {}
    for name in (*BUILDS, *_ORDINARY):
        for distribution in metadata.Distribution.discover(name=name, path=[folder]):
            versions[name] = distribution.version
    return versions
