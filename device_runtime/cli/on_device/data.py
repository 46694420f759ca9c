"""`device-runtime data`: checks local data as a task would read it."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from device_runtime.cli.options import DATA_HELP, add_data, add_format, as_json, memory_bytes, place, positive
from device_runtime.device.connection.connecting import folder_of
from device_runtime.device.engine.engine_guard import limit_bytes
from device_runtime.device.errors import NoDevice
from device_runtime.device.personal.kept import NothingKept, PersonalModel, PersonalModelStore
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, find_bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.data import LocalSamples, Selection
from device_runtime.models.data.local_data import LocalData
from device_runtime.models.data.model_check import ModelCheck, check_model, check_unlabelled, evenly_spaced
from device_runtime.models.data.reading import unlabelled
from device_runtime.models.data.report import lines, report
from device_runtime.models.errors import DataError, ModelError

from .policy_options import add_device_choice

log = logging.getLogger(__name__)

USUAL = "digits-wrn-10-1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="check", required=True)
    check = actions.add_parser("check", help="Read everything, train nothing, and report.")
    check.add_argument("data", metavar="PATH", help=DATA_HELP)
    check.add_argument(
        "--bundle", help="Check for the task of this bundle (default: of the kept model, else the digits)."
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
    bundle, weights = _model(options)
    keep = Selection(options.held_out, room_bytes=limit_bytes(None, memory_bytes(options)) // 2)
    samples = LocalSamples(place(options.data, options), bundle.manifest, keep, bundle.texts)
    samples.refresh()
    data_report = replace(report(samples), model=_checked(samples, bundle, weights))
    if options.format == "json":
        print(as_json(data_report))
    else:
        print("\n".join(lines(data_report)))
    return 0 if data_report.samples else 1


def _model(options: argparse.Namespace) -> tuple[Bundle, Tensors | None]:
    """The bundle, and the weights of a trained model: given, or kept by a device of this machine; else None.

    Raises BundleError, DataError, and NoDevice and NothingKept for a device that was asked for.
    """
    bundle = None if options.bundle is None else Bundle.open(find_bundle(options.bundle))
    if options.weights:
        bundle = bundle or Bundle.open(find_bundle(USUAL))
        return bundle, _read_weights(options.weights, bundle)
    personal = _kept_model(options)
    if personal is not None and (bundle is None or bundle.sha256 == personal.bundle.sha256):
        return personal.bundle, personal.weights
    if personal is not None and (options.state or options.name):
        raise DataError(f"the device keeps a model of {personal.bundle.manifest.name}: leave out --bundle")
    return bundle or Bundle.open(find_bundle(USUAL)), None


def _kept_model(options: argparse.Namespace) -> PersonalModel | None:
    """The model that a device keeps: the one that was asked for, or the only one of this machine."""
    try:
        return PersonalModelStore(folder_of(options)).read()
    except (NoDevice, NothingKept):
        if options.state or options.name:
            raise
        return None


def _read_weights(file: Path, bundle: Bundle) -> Tensors:
    try:
        weights = tensors.decode(file.read_bytes())
        tensors.check(weights, bundle.manifest.stored())
    except (OSError, ModelError) as error:
        raise DataError(f"{file} has no weights of {bundle.manifest.name}: {error}") from None
    return weights


def _checked(samples: LocalSamples, bundle: Bundle, weights: Tensors | None) -> ModelCheck | None:
    """What the model makes of the samples; None where it cannot say anything, as without training."""
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
    if weights is None and check is not None and not check.trained:
        return None  # a task may begin with weights that were never trained
    return check


def _even_samples(samples: LocalSamples, manifest: Manifest) -> LocalData:
    """Evenly spaced samples of both sides."""
    sides = [side for side in (samples.training, samples.holdout) if len(side)]
    picks = [evenly_spaced(len(side), manifest) for side in sides]
    return LocalData(
        np.concatenate([side.x[pick] for side, pick in zip(sides, picks, strict=True)]),
        np.concatenate([side.y[pick] for side, pick in zip(sides, picks, strict=True)]),
    )
