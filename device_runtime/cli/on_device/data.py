"""`device-runtime data`: checks local data as a task would read it."""

from __future__ import annotations

import argparse
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from device_runtime.cli.options import DATA_HELP, add_data, add_format, as_json, memory_bytes, place, positive
from device_runtime.device.connection.connecting import connect, folder_of, is_enrolled
from device_runtime.device.connection.offers import task_title
from device_runtime.device.engine.engine_guard import limit_bytes
from device_runtime.device.errors import NoDevice
from device_runtime.device.personal.kept import NothingKept, PersonalModel, PersonalModelStore, begun_with
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data import LocalSamples, SampleSource, Selection
from device_runtime.models.data.local_data import LocalData
from device_runtime.models.data.model_check import ModelCheck, check_model, check_unlabelled, evenly_spaced
from device_runtime.models.data.reading import unlabelled
from device_runtime.models.data.report import SamplesReport, lines, report
from device_runtime.models.errors import DataError, ModelError

from .policy_options import add_device_choice

if TYPE_CHECKING:
    from device_runtime.device.delivery.offered_task import OfferedTask

log = logging.getLogger(__name__)

USUAL = "digits-wrn-10-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="check", required=True)
    check = actions.add_parser("check", help="Read everything, train nothing, and report.")
    check.add_argument("data", metavar="PATH", help=DATA_HELP)
    check.add_argument(
        "--bundle",
        help="Check for the task of this bundle (default: that of the device, else the digits).",
    )
    check.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="Say what the model with these weights (.safetensors) makes of the samples.",
    )
    add_device_choice(check)
    add_format(check)
    check.add_argument(
        "--memory",
        type=positive,
        metavar="MB",
        help="Use at most this much memory in all (default: what is free).",
    )
    add_data(check)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if no sample fits the task. Raises DataError, BundleError, NoDevice, NothingKept."""
    keep = Selection(options.held_out, room_bytes=limit_bytes(None, memory_bytes(options)) // 2)
    with ExitStack() as stack:
        data_report = _judge(options, stack).report(place(options.data, options), keep)
    if options.format == "json":
        print(as_json(data_report))
    else:
        print("\n".join(lines(data_report)))
    return 0 if data_report.samples else 1


@dataclass(frozen=True)
class Judge:
    """What samples are held against: a task's bundle, and the weights of a model of it, if there are some.

    name: the task and the model, for people; empty if only the bundle is known. surely_trained: whether the
    model was trained for a round at least. text: what the task is for, what people give, and whether
    its aggregator is away; may be empty.
    """

    bundle: Bundle
    weights: Tensors | None = None
    name: str = ""
    surely_trained: bool = True
    text: str = ""

    @classmethod
    def of_offer(cls, task: OfferedTask, device: str) -> Judge:
        """The task that is offered to a device, and the model that it serves."""
        offer = task.offer
        name = f"{task_title(offer.task, offer.title)}, for which {device} is enrolled"
        if task.weights is not None and offer.round > 1:
            name += f", and {begun_with(offer.round)}"
        return cls(task.bundle, task.weights, name, offer.round > 1, task.text)

    def report(self, source: SampleSource, keep: Selection) -> SamplesReport:
        """Reads all samples, and tries the model. Raises DataError."""
        samples = LocalSamples(source, self.bundle.manifest, keep, self.bundle.texts)
        samples.refresh()
        return replace(report(samples), model=self._checked(samples), judged_by=self.name, task=self.text)

    def _checked(self, samples: LocalSamples) -> ModelCheck | None:
        """What the model makes of the samples; None where it cannot say anything, as without training."""
        bundle, weights = self.bundle, self.weights
        try:
            model = open_model(bundle)
            if weights is not None:
                model.load(weights)
            if len(samples.training) + len(samples.holdout):
                check = check_model(_even_samples(samples, bundle.manifest), bundle.manifest, model.logits)
            elif weights is None:
                return None
            else:
                raw = unlabelled(samples.source, bundle.manifest, bundle.texts)
                check = check_unlabelled(raw, bundle.manifest, model.logits)
        except (ModelError, MemoryError) as error:
            log.info("the model was not asked: %s", error)
            return None
        if check is not None and not check.trained and (weights is None or not self.surely_trained):
            return None  # a task may begin with weights that were never trained
        return check


def _judge(options: argparse.Namespace, stack: ExitStack) -> Judge:
    """The task and model that the options name, or those of a device of this machine; else the usual bundle.

    What was fetched for it is there until `stack` is closed.
    Raises BundleError, DataError, and NoDevice and NothingKept for a device that was asked for.
    """
    bundle = None if options.bundle is None else Bundle.open(find_bundle(options.bundle))
    if options.weights:
        bundle = bundle or Bundle.open(find_bundle(USUAL))
        return Judge(bundle, _read_weights(options.weights, bundle))
    enrolled = bundle is None and is_enrolled(options)
    personal = _kept_model(options, enrolled)
    if personal is not None and (bundle is None or bundle.sha256 == personal.bundle.sha256):
        record = personal.record
        title = task_title(record.task, record.title)
        name = f"{title}, and {begun_with(record.round)}, which this device keeps"
        return Judge(personal.bundle, personal.weights, name, record.round > 1)
    if personal is not None and (options.state or options.name):
        raise DataError(f"the device keeps a model of {personal.bundle.manifest.name}: leave out --bundle")
    if enrolled:
        from device_runtime.broker.errors import BrokerError
        from device_runtime.device.delivery.offered_task import NotFetched

        from .planned_task import EnrolledDevice, offered

        try:
            connection = connect(EnrolledDevice(options.name, options.state))
            return Judge.of_offer(stack.enter_context(offered(connection)), connection.name)
        except (BrokerError, NotFetched, ModelError) as error:
            log.warning("the task that this device is enrolled for is not known: %s", error)
    return Judge(bundle or Bundle.open(find_bundle(USUAL)))


def _kept_model(options: argparse.Namespace, enrolled: bool) -> PersonalModel | None:
    """The model that a device keeps: the one that was asked for, or the only one of this machine.

    One that is `enrolled` may have none yet.
    """
    try:
        return PersonalModelStore(folder_of(options)).read()
    except (NoDevice, NothingKept):
        if (options.state or options.name) and not enrolled:
            raise
        return None


def _read_weights(file: Path, bundle: Bundle) -> Tensors:
    try:
        weights = tensors.decode(file.read_bytes())
        tensors.check(weights, bundle.manifest.stored())
    except (OSError, ModelError) as error:
        raise DataError(f"{file} has no weights of {bundle.manifest.name}: {error}") from None
    return weights


def _even_samples(samples: LocalSamples, manifest: Manifest) -> LocalData:
    """Evenly spaced samples of both sides."""
    sides = [side for side in (samples.training, samples.holdout) if len(side)]
    picks = [evenly_spaced(len(side), manifest) for side in sides]
    return LocalData(
        np.concatenate([side.x[pick] for side, pick in zip(sides, picks, strict=True)]),
        np.concatenate([side.y[pick] for side, pick in zip(sides, picks, strict=True)]),
    )
