"""Builds the networks that come with the project, by short name.

A network's module is imported when it is built. A network has the attributes `levels` (prefix of a
parameter's name -> low, mid, up or head) and `level_outputs` (low, mid, up -> the submodule whose output is
the feature map at the end of that level).
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from device_runtime.models.errors import ExportError, one_line

if TYPE_CHECKING:
    from torch import nn

NETWORKS: dict[str, str] = {
    "linear": "small:linear",
    "mlp": "small:mlp",
    "cnn": "small:cnn",
    "wrn": "convolutional:wrn",
    "squeezenet": "convolutional:squeezenet",
    "mobilenet_v2": "convolutional:mobilenet_v2",
    "resnet18": "vision:resnet18",
    "mobilenet_v3_small": "vision:mobilenet_v3_small",
    "shufflenet_v2_x0_5": "vision:shufflenet_v2_x0_5",
    "efficientnet_b0": "vision:efficientnet_b0",
    "vit": "vision:vit",
    "lstm": "text:lstm",
    "gru": "text:gru",
    "keywords": "small:keywords",
    "cnn1d": "small:cnn1d",
    "dscnn1d": "small:dscnn1d",
    "autoencoder": "small:autoencoder",
    "bert": "transformers:bert",
    "distilbert": "transformers:distilbert",
    "roberta": "transformers:roberta",
    "opt": "transformers:opt",
}
"""Short name -> "module of this package:function"."""

FILES = ("vectors",)
"""Settings that name files. A bundle has the files' contents in its weights, and never names files."""

Setting = int | float | str | bool


def build(name: str, settings: Mapping[str, Setting]) -> "nn.Module":
    """Builds the network, with random weights from torch's global generator.

    Raises ExportError for an unknown name, a setting that the network does not take, or a value it refuses.
    """
    function = _function(name)
    parameters = inspect.signature(function).parameters
    if unknown := sorted(settings.keys() - parameters.keys()):
        raise ExportError(f"{name} takes no setting {unknown[0]}; it takes {', '.join(parameters)}")
    try:
        return function(**settings)
    except ExportError:
        raise
    except Exception as error:  # torch refuses values with errors of many types
        text = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise ExportError(f"{name} with {text or 'no settings'} fails: {one_line(error)}") from error


def described(name: str, settings: Mapping[str, Setting]) -> str:
    """The settings of a network in words, as "in_channels=3, size=32". Raises ExportError as `build`."""
    parameters = inspect.signature(_function(name)).parameters
    values = {key: settings.get(key, parameters[key].default) for key in parameters if key not in FILES}
    return ", ".join(f"{key}={value}" for key, value in values.items())


def default_of(name: str, setting: str) -> Setting | None:
    """The default of a network's setting; None if it takes no such setting. Raises ExportError as `build`."""
    parameter = inspect.signature(_function(name)).parameters.get(setting)
    return None if parameter is None else parameter.default


def _function(name: str) -> Callable[..., Any]:
    if name not in NETWORKS:
        raise ExportError(f"no network {name!r}; known are {', '.join(NETWORKS)}")
    module, _, function = NETWORKS[name].partition(":")
    network: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __name__), function)
    return network
