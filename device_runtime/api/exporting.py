"""Exports a torch module as a bundle, which devices and simulations train without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import NORMAL, targets_of
from device_runtime.models.errors import ExportError
from device_runtime.models.export.network_factory import check_torch
from device_runtime.simulation.data import DataSpec, files, load

from .progress import in_notebook

if TYPE_CHECKING:
    from torch import nn

TUNABLE = ("all", "mid", "head")
"""The tunable sets of a bundle for which none are given."""


def export(
    module: nn.Module,
    folder: str | Path,
    *,
    input: Sequence[int] | InputSpec,  # noqa: A002
    labels: Sequence[str] = (),
    loss: str | Callable[[Any, Any], Any] = "cross-entropy",
    targets: Literal["", "classes", "values", "flags", "input"] = "",
    columns: Sequence[str] = (),
    target_mean: Sequence[float] | None = None,
    target_std: Sequence[float] | None = None,
    delta: float = 1.0,
    class_weights: Sequence[float] = (),
    quantile: float = 0.99,
    scale: float = 1.0,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    head: str | None = None,
    levels: Mapping[str, str] | None = None,
    tunable: Sequence[str] | Mapping[str, Mapping[str, Any]] = TUNABLE,
    objectives: Sequence[str] = ("train",),
    features: Sequence[str] = (),
    batchnorm: Literal["frozen", "training"] = "frozen",
    precisions: Sequence[str] = (),
    pretrained: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Bundle:
    """Writes a bundle into `folder` and opens it; every graph is compared with torch before.

    module: float32, returns logits (n, labels) and ends with an nn.Linear. It is exported as in eval mode.
    input: the shape of one sample, channels first, without the batch: (3, 32, 32); or an InputSpec, for token
    ids. labels: the names of the classes, in the order of the logits; or of the values that the network
    predicts.
    loss: cross-entropy (with `class_weights`, one for each label), mse, mae, huber (with `delta`) or bce; or
    a function of torch tensors, outputs (n, labels) and targets, that gives the loss of each sample (n,).
    targets: class labels, values, 0/1 flags, or the input itself (default: as the loss takes them; of a
    function, values). columns: their names in tables (default: the labels). target_mean, target_std: values
    are trained as (value - mean) / std, one for all or one for each column. quantile: where targets are the
    input itself, larger errors are anomalies. docs/losses.md describes all of these.
    scale, mean, std: raw samples become (raw * scale - mean) / std; one value, or one for each channel.
    head: the name of the nn.Linear that gives the logits (default: the last).
    levels: prefix of parameters' names -> low, mid, up or head (default: by their place in the module).
    tunable: the sets of parameters that kinds of update train, with settings if wanted: all, mid, up, head,
    bias, adapter, prompt, prefix, lora, sparse; {"lora": {"rank": 8}, "head": {}}.
    objectives, features, batchnorm, precisions: as options of `device-runtime export` (docs/networks.md).
    pretrained: the module's weights are trained, so that devices take smaller steps. Running statistics of a
    batch norm that are not those of a new one say so too.
    progress: a terminal or notebook shows what the export is at, and any other standard error a line if it
    takes long; False shows nothing.

    Raises ExportError without torch, for a folder that has other files, or a bundle and `overwrite` is false,
    and for a module that cannot be traced; ParityError if a graph computes something else than torch.

    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> export(module, "bundles/mine", input=(1, 8, 8), labels="0123456789", tunable=["all"]).manifest.name
    'mine'
    """
    check_torch()
    from device_runtime.models.export.export import ExportSpec, ExportWatch
    from device_runtime.models.export.export import export as write
    from device_runtime.models.export.progress import progress_line

    folder = Path(folder)
    _check_free(folder, overwrite)
    own = loss if callable(loss) else None
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    named = tuple(labels) or (NORMAL if targets == "input" else ())
    settings: dict[str, Any] = {"columns": columns, "delta": delta, "quantile": quantile}
    settings |= {"class_weights": tuple(class_weights)} if class_weights else {}
    settings |= {} if target_mean is None else {"mean": tuple(target_mean)}
    settings |= {} if target_std is None else {"std": tuple(target_std)}
    try:
        target = targets_of(name, named, targets, own is not None, **settings)
    except ValueError as error:
        raise ExportError(str(error)) from None
    spec = ExportSpec(
        name=folder.resolve().name,
        input=input if isinstance(input, InputSpec) else _input(input, scale, (tuple(mean), tuple(std))),
        labels=named,
        loss=target,
        own_loss=own,
        head=head,
        levels=levels,
        sets={name: dict(settings) for name, settings in _sets(tunable).items()},
        objectives=tuple(objectives),
        features=tuple(features),
        batchnorm=batchnorm,
        precisions=tuple(precisions),
        pretrained=pretrained,
    )
    if not progress:
        return write(module, spec, folder)
    with progress_line(spec.name, moving=sys.stderr.isatty() or in_notebook()) as begin:
        return write(module, spec, folder, ExportWatch(begin))


def export_for(
    module: nn.Module,
    data: DataSpec,
    loss: str | Callable[[Any, Any], Any] = "",
    progress: bool = True,
) -> Bundle:
    """Exports a network for the samples of a simulation, into the cache folder of this user.

    The samples go to the network as they are, as float32. loss: as in `export`; by default class numbers are
    trained by cross-entropy, numbers in columns by mse. Batch norms follow the batches. The same network has
    the same bundle in the same place. Raises as `export` does, DataSetError, and OSError.
    """
    check_torch()
    from torch import nn

    from device_runtime.models.torch_modules.functional_module import batch_norms
    from device_runtime.models.torch_modules.parameters import find_head

    name = type(module).__name__
    samples = load(data, 0)
    if any(isinstance(part, nn.Embedding) for part in module.modules()):
        raise ExportError(
            f"{name} takes token ids: export it with dr.export(.., input=dr.InputSpec(.., vocabulary=N)), "
            "and simulate the bundle"
        )
    outputs, labels = module.get_submodule(find_head(module, None)).out_features, samples.labels
    numbered = labels == tuple(map(str, range(len(labels))))
    if numbered and not samples.has_columns and len(labels) < outputs:  # no sample has the last classes
        labels = tuple(map(str, range(outputs)))
    if len(labels) != outputs:
        what = "columns of targets" if samples.has_columns else "classes"
        raise ExportError(f"{name} has {outputs} outputs, and the samples have {len(labels)} {what}")
    home = files.folder()
    home.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="network.", dir=home) as making:
        bundle = export(
            module,
            Path(making) / name.lower(),
            input=samples.train_x.shape[1:],
            labels=labels,
            loss=loss or ("mse" if samples.has_columns else "cross-entropy"),
            targets=("values" if samples.has_columns else "classes") if callable(loss) else "",
            batchnorm="training" if batch_norms(module) else "frozen",
            progress=progress,
        )
        place = home / f"network-{bundle.sha256[:32]}"
        if not place.exists():
            with suppress(FileExistsError):  # of another process that makes it at once
                Path(making).rename(place)
                Path(making).mkdir()
    return Bundle.open(place / name.lower())


def _input(
    shape: Sequence[int], scale: float, statistics: tuple[tuple[float, ...], tuple[float, ...]]
) -> InputSpec:
    try:
        return InputSpec(tuple(shape), scale, *statistics)
    except ValueError as error:
        raise ExportError(str(error)) from None


def _sets(tunable: Sequence[str] | Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(tunable, Mapping):
        return tunable
    return {name: {} for name in ((tunable,) if isinstance(tunable, str) else tunable)}


def _check_free(folder: Path, overwrite: bool) -> None:
    content = bundles.content_of(folder)
    if content == "bundle" and not overwrite:
        raise ExportError(f"{folder} is a bundle already: overwrite=True replaces it")
    if content == "other":
        raise ExportError(f"{folder} exists and is no bundle: give another folder")
