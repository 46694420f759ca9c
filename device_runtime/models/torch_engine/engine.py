"""The torch engine: runs a bundle's network in torch, on the CPU or a GPU, without ONNX Runtime.

The network is the given module, or the one that the manifest names.
"""
# mypy: allow-any-unimported, allow-untyped-calls

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from device_runtime.models import networks as torch_networks
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import TRAINING, Manifest
from device_runtime.models.bundles.tensors import Flat, Tensors, TensorSpec
from device_runtime.models.engines.base import (
    NO_EXTRAS,
    EngineWatch,
    Forward,
    Inputs,
    Labels,
    Matrix,
    batches,
    check_sizes,
    checked_extras,
    checked_inputs,
    checked_labels,
    copied_weights,
    even_share,
)
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.networks.own import own_function, own_network
from device_runtime.models.peft.tunable_sets import inject, scale_features
from device_runtime.models.torch_modules.functional_module import (
    ForwardPass,
    FunctionalModule,
    OwnLoss,
    loss_of,
    recorded_statistics,
    run,
    stored_tensors,
    with_batch_statistics,
)
from device_runtime.models.torch_modules.layers import Slots, write_gradients
from device_runtime.models.torch_modules.objectives import (
    ClippedSums,
    GraphInputs,
    loss_and_gradients,
    losses_of,
)
from device_runtime.models.torch_modules.parameters import level_outputs

from .place import DeviceBuffer, TorchProcessor, channels_innermost, find_device, keep_layout


def subject_of(
    manifest: Manifest, module: nn.Module | None, device: torch.device, own_loss: OwnLoss | None = None
) -> FunctionalModule:
    """The network of `manifest` on `device`, in eval mode, without values, which come from the bundle.

    `module` is copied; the parameters that the bundle's tunable sets inject are added if it lacks them.
    Without one, the network that the manifest names is built from this package's own list; nothing else is
    ever imported. `own_loss`: where the bundle has a loss of a user's own. Raises EngineError if the manifest
    names none, or the tensors differ from the bundle's.
    """
    network = _built_network(manifest) if module is None else copy.deepcopy(module)
    head, spec = manifest.head.weight.rpartition(".")[0], manifest.input
    try:
        if manifest.scale is not None and manifest.scale not in stored_tensors(network):
            scale_features(network, head)
        if _first_difference(manifest, network):
            inject(network, {str(name): settings for name, settings in manifest.sets.items()}, head)
        outputs = level_outputs(network, None)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error
    what = manifest.source.network if manifest.source else type(network).__name__
    _check_alike(manifest, _first_difference(manifest, network), what)
    example = torch.zeros((1, *spec.shape), dtype=torch.int64 if spec.vocabulary else torch.float32)
    module, loss = _without_memory(network.to(device)).eval(), loss_of(manifest.target, own_loss)
    return FunctionalModule(module, head, example, outputs, loss)


def module_of(source: str) -> nn.Module:
    """The user's module of a source, as `networks.own` makes it; random values are drawn apart.

    Raises EngineError.
    """
    hint = "name a function that needs none"
    try:
        with torch.random.fork_rng(devices=[]):
            return own_network(source, {}, hint)
    except ExportError as error:
        raise EngineError(f"module {error}") from error


def loss_named(source: str) -> OwnLoss:
    """The user's loss of a source, as `networks.own` finds it. Raises EngineError."""
    try:
        loss: OwnLoss = own_function(source)
    except ExportError as error:
        raise EngineError(f"loss {error}") from error
    return loss


def _built_network(manifest: Manifest) -> nn.Module:
    source = manifest.source
    if source is None:
        raise EngineError(
            f"bundle {manifest.name} does not say which network it was made from; export it by a short "
            "name, or give the torch engine its module (simulate --module)"
        )
    settings = {name: value for name, value in source.settings.items() if name not in torch_networks.FILES}
    try:
        # without memory: the manifest's sizes are not trusted until they match the weights
        with torch.device("meta"):
            sketch = torch_networks.build(source.network, settings)
        _check_alike(manifest, _first_difference(manifest, sketch, stored_tensors(sketch)), source.network)
        with torch.random.fork_rng(devices=[]):
            return torch_networks.build(source.network, settings)
    except ExportError as error:
        raise EngineError(f"bundle {manifest.name}: {error}") from error


def _check_alike(manifest: Manifest, differing: str, network: str) -> None:
    if differing:
        raise EngineError(f"bundle {manifest.name} was not made from this {network}: {differing}")


def _without_memory(network: nn.Module) -> nn.Module:
    """Frees the memory of the tensors that the bundle stores; they keep their shapes."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for tensor in (tensors[name] for name in stored_tensors(network)):
        tensor.data = tensor.new_zeros(()).expand(tensor.shape)
    return network


def _first_difference(manifest: Manifest, network: nn.Module, names: Iterable[str] | None = None) -> str:
    """Describes the first tensor, of these names or of all, that differs from the manifest; else empty."""
    expected = {spec.name: spec for spec in manifest.stored()}
    actual = {
        name: TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in stored_tensors(network).items()
    }
    for name in sorted(expected.keys() | actual.keys() if names is None else names):
        if actual.get(name) != expected.get(name):
            return f"{name} is {_in_words(actual.get(name))}, the bundle has {_in_words(expected.get(name))}"
    return ""


def _in_words(spec: TensorSpec | None) -> str:
    return "missing" if spec is None else f"{spec.dtype} {spec.shape}"


class TorchModel:
    """A bundle on torch; see `engines.base.DeviceModel`.

    Of the bundle's graphs only their entries in the manifest are used, not the ONNX files. x: float32 or ids
    (n, *input.shape), any n; it is run in batches of at most `batch` samples. On the CPU weights, parameters
    and gradients share their memory with torch, on a GPU they are copied for each call.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        module: nn.Module | None = None,
        loss: OwnLoss | None = None,
        device: str = "cpu",
        batch: int = 32,
        threads: int = 1,
        watch: EngineWatch | None = None,
        precision: str = "float32",
    ) -> None:
        """Starts at the bundle's weights.

        precision: of training, one of TRAINING_PRECISIONS; all else is computed in float32.

        `module` is the module that the bundle was exported from; it is needed if the manifest names no
        network, and `loss` if it is a function of one's own. Raises EngineError for a device that is not
        there, for tf32 on the CPU, and as `subject_of` does.
        """
        check_sizes(batch, threads)
        self.manifest: Manifest = bundle.manifest
        self.batch = batch
        if precision == "tf32" and device == "cpu":
            raise EngineError("precision is tf32, which only GPUs have, and the device is cpu")
        self.place = TorchProcessor(find_device(device), threads, watch, precision)
        self._bundle = bundle
        # a given module may run operators unknown here, and the changes for speed are of float32
        self.tuned = self.place.on_cpu and module is None and precision == "float32"
        self._subject = subject_of(bundle.manifest, module, self.place.device, loss)
        self._weights: Tensors = {}
        self._host: dict[str, Tensor] = {}
        self._tensors: dict[str, Tensor] = {}
        self._opened: dict[str, FunctionalModule] = {}
        self.slots: Slots = {}
        self._adopt(bundle.weights())

    @property
    def weights(self) -> Tensors:
        """Every tensor of the model by name; neither the mapping nor the arrays can be written to."""
        return MappingProxyType(dict(self._weights))

    def load(self, weights: Tensors) -> None:
        """New values for some or all tensors, copied; those not named stay.

        Probes and trainers already handed out keep their own. Raises TensorError if a tensor does not fit.
        """
        self._adopt(copied_weights(self.manifest, weights))

    def unload(self) -> None:
        """Frees the prepared modules and, on a GPU, the weights; the next use makes them again."""
        self._opened.clear()
        self._tensors.clear()

    def forward(self, x: Inputs) -> Forward:
        """Logits (n, classes) and features (n, width) in one pass. Raises EngineError."""
        return Forward(*self._run("forward", x, lambda passed: [passed.logits, passed.features]))

    def logits(self, x: Inputs) -> Matrix:
        """(n, classes). Raises EngineError."""
        return self._run("forward", x, lambda passed: [passed.logits])[0]

    def features(self, x: Inputs) -> Matrix:
        """(n, width), the head's input. Raises EngineError."""
        return self._run("forward", x, lambda passed: [passed.features])[0]

    def level_features(self, x: Inputs, level: str) -> Matrix:
        """(n, *features[level]). Raises BundleError if there is no such graph, and EngineError."""
        return self._run(f"features.{level}", x, lambda passed: [passed.maps[level]])[0]

    def probe(self, tunable: str = "all") -> "TorchProbe":
        """The loss as a function of a tunable set, starting at `weights`. Raises BundleError, EngineError."""
        return TorchProbe(self, "loss", tunable)

    def trainer(self, tunable: str = "all", objective: str = "train", batch: int = 0) -> "TorchGradients":
        """The gradients of a tunable set, starting at `weights`. Raises BundleError, EngineError."""
        return TorchGradients(self, objective, tunable, batch)

    @property
    def untuned(self) -> FunctionalModule:
        """The module in eval mode, without changes for speed."""
        return self._subject

    def opened(self, name: str) -> FunctionalModule:
        """The module set up as graph `name`: layers whose statistics the graph moves are in training mode.

        Raises BundleError if the bundle lists no such graph, and whatever the watch raises.
        """
        graph = self._bundle.entry(name)
        if name not in self._opened:
            if self.place.watch is not None:
                self.place.watch.will_load(name, graph)
            norms = tuple(dict.fromkeys(moved.rpartition(".")[0] for moved in graph.statistics))
            subject = with_batch_statistics(self._subject, norms)
            trains = name.partition(".")[0] in TRAINING
            self._opened[name] = _tuned(subject, self.slots) if trains and self.tuned else subject
        return self._opened[name]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model, on the device that computes; not to be written to."""
        for name, tensor in self._host.items():
            if name not in self._tensors:
                self._tensors[name] = tensor.to(self.place.device)
        return dict(self._tensors)

    def _run(self, name: str, x: Inputs, give: Callable[[ForwardPass], list[Tensor]]) -> list[Matrix]:
        """Runs batch by batch into arrays that the first batch allocates; no samples are one empty batch."""
        x = checked_inputs(self.manifest, x)
        subject, tensors, graph = self.opened(name), self.tensors(), self.manifest.graphs[name]
        results: list[Matrix] = []
        for part in batches(max(len(x), 1), self.batch):
            with self.place.running(name, graph, len(x[part])), torch.no_grad():
                batch = self.place.tensor(self.manifest.input.as_graphs_take(x[part]))
                values = give(run(subject, batch, tensors))
                results = results or [np.empty((len(x), *value.shape[1:]), np.float32) for value in values]
                for result, value in zip(results, values, strict=True):
                    result[part] = value.cpu().numpy()
        return results

    def _adopt(self, weights: Tensors) -> None:
        for name, value in weights.items():
            self._host[name] = torch.from_numpy(value)
            self._tensors.pop(name, None)
            value.flags.writeable = False
        self._weights = {**self._weights, **weights}


class _TrainableGraph:
    """A graph of the bundle, with its trainable tensors in a flat buffer that torch reads."""

    def __init__(self, model: TorchModel, kind: str, tunable: str) -> None:
        self.params = _flat(model, model.manifest.names(tunable))
        self._name = f"{kind}.{tunable}"
        self._subject = model.opened(self._name)
        self._graph = model.manifest.graphs[self._name]
        self._manifest, self._batch, self._place = model.manifest, model.batch, model.place
        self._tuned = model.tuned and kind in TRAINING
        self._free = DeviceBuffer(self.params, self._place.device)
        self._tensors = {**model.tensors(), **self._free.tensors}

    def _batches_of(
        self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS
    ) -> Iterator[tuple[slice, GraphInputs]]:
        """The samples batch by batch, on the device that computes."""
        x = checked_inputs(self._manifest, x)
        labels = checked_labels(self._manifest, x, y)
        rows = {extra.name for extra in self._graph.extras if extra.per_sample}
        tensor = self._place.tensor
        self._free.fetch()
        for part in batches(len(x), self._batch):
            cut = {name: value[part] if name in rows else value for name, value in extras.items()}
            extra_tensors = {name: tensor(value) for name, value in cut.items()}
            batch = tensor(self._manifest.input.as_graphs_take(x[part]))
            images = channels_innermost(batch) if self._tuned else batch
            yield part, GraphInputs(images, tensor(labels[part]), extra_tensors, self._tensors)

    def _running(self, part: slice) -> AbstractContextManager[None]:
        return self._place.running(self._name, self._graph, part.stop - part.start)


class TorchProbe(_TrainableGraph):
    """See `engines.base.LossProbe`."""

    def loss(self, x: Inputs, y: Labels) -> float:
        """Mean of the bundle's loss: float32 for each sample, summed in float64 in the given order."""
        losses = np.empty(len(y), np.float32)
        for part, inputs in self._batches_of(x, y):
            with self._running(part), torch.no_grad():
                losses[part] = losses_of(self._subject, inputs).cpu().numpy()
        return float(losses.mean(dtype=np.float64))


class TorchGradients(_TrainableGraph):
    """See `engines.base.Gradients`.

    More samples than one run takes are cut into micro-batches, whose gradients are summed. Batch statistics
    are those of a micro-batch.
    """

    def __init__(self, model: TorchModel, objective: str, tunable: str, batch: int = 0) -> None:
        """batch: samples of most calls; 0: not known."""
        super().__init__(model, objective, tunable)
        self._batch = even_share(batch or model.batch, model.batch)
        self._objective = objective
        self.grads = Flat(self.params.specs)
        self.statistics = _flat(model, self._graph.statistics)
        self._gradients = DeviceBuffer(self.grads, self._place.device)
        self._moved = DeviceBuffer(self.statistics, self._place.device)
        self._tensors |= self._moved.tensors
        self._slots = model.slots
        rows = {extra.name for extra in self._graph.extras if extra.per_sample}
        self._sums = ClippedSums(model.untuned, objective, rows)

    def loss_and_grads(self, x: Inputs, y: Labels, extras: Tensors = NO_EXTRAS) -> float:
        """The objective's mean loss; its gradient is left in `grads`."""
        checked = checked_extras(self._graph, len(x), extras)
        names = tuple(self.params.views)
        total = 0.0
        self._moved.fetch()
        for part, inputs in self._batches_of(x, y, checked):
            share = (part.stop - part.start) / len(x)
            if share == 1:
                self._slots.update(self._gradients.tensors)
            with self._running(part), self._of_one(part) as next_statistics:
                loss, grads = loss_and_gradients(self._subject, self._objective, inputs, names)
                self._gather(grads, share, first=part.start == 0)
                for name, value in next_statistics.items():
                    self._moved.tensors[name].copy_(value)
                total += share * float(loss)
        self._slots.clear()
        self._gradients.store()
        self._moved.store()
        return total

    def _of_one(self, part: slice) -> AbstractContextManager[dict[str, Tensor]]:
        """Batch statistics of one sample in plain operators: torch's own refuse a single value."""
        if self.statistics.views and part.stop - part.start == 1:
            return recorded_statistics(self._subject)
        return nullcontext({})

    def clipped_sum(self, x: Inputs, y: Labels, max_norm: float, extras: Tensors = NO_EXTRAS) -> None:
        """See `clipping.ClipsSamples`. Raises EngineError too for a network that vmap cannot run."""
        checked = checked_extras(self._graph, len(x), extras)
        self._gradients.vector.zero_()
        for part, inputs in self._batches_of(x, y, checked):
            with self._running(part):
                self._sums.add(inputs, max_norm, self._gradients.tensors)
        self._gradients.store()

    def _gather(self, grads: tuple[Tensor, ...], share: float, first: bool) -> None:
        """Sets the gradients to share * grads of the first micro-batch, and adds those of the others."""
        for total, grad in zip(self._gradients.tensors.values(), grads, strict=True):
            if not first:
                total.add_(grad, alpha=share)
            elif share == 1:
                if grad is not total:
                    total.copy_(grad)
            else:
                torch.mul(grad, share, out=total)


def _tuned(subject: FunctionalModule, slots: Slots) -> FunctionalModule:
    """A copy that trains faster on a CPU and computes the same function; it shares the module's tensors."""
    tensors = (*subject.module.parameters(), *subject.module.buffers())
    module = copy.deepcopy(subject.module, {id(tensor): tensor for tensor in tensors})
    keep_layout(module)
    write_gradients(module, slots)
    return replace(subject, module=module)


def _flat(model: TorchModel, names: tuple[str, ...]) -> Flat:
    """The tensors of these names, in the order of the manifest, with the model's values."""
    flat = Flat([spec for spec in model.manifest.stored() if spec.name in names])
    weights = model.weights  # which were checked when they were loaded
    for name, view in flat.views.items():
        view[...] = weights[name]
    return flat
