"""A narrower network as the leading part of every tensor of a wider one (HeteroFL, Diao et al. 2021)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.errors import TensorError

from .manifest import Manifest
from .tensors import Tensors, TensorSpec

STACKED = re.compile(r"(^|\.)((weight|bias)_(ih|hh)|in_proj_|qkv\.)")
"""Names of tensors with several matrices stacked along the first axis: gates, or queries, keys and values."""

NAMED = 3
"""How many tensors an error names."""

Shape = tuple[int, ...]


def leading_index(shape: Shape) -> tuple[slice, ...]:
    """The index of the leading part of this shape in a larger tensor."""
    return tuple(slice(size) for size in shape)


@dataclass(frozen=True)
class Slices:
    """The part of the main model that a narrower member of its family is: its shapes by tensor name."""

    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, main: Manifest, member: Manifest) -> Slices:
        """The member as a part of the main model.

        Flattened channels before a linear layer nest, because the positions of a channel are contiguous.
        Flattened tokens do not. The input of a layer that concatenates two others' outputs nests only if the
        first output is as wide in both models. Raises TensorError, naming both models and the tensors at
        fault, if the member does not nest.
        """
        try:
            _check_ends(main, member)
            wide = {spec.name: spec for spec in main.stored()}
            narrow = {spec.name: spec for spec in member.stored()}
            _check_names(wide, narrow)
            for name, spec in narrow.items():
                _check_nested(wide[name], spec)
            _check_inputs(main, member)
        except TensorError as error:
            raise TensorError(f"{member.name} is not a narrower {main.name}: {error}") from None
        return cls({name: spec.shape for name, spec in narrow.items()})

    def cut(self, weights: Tensors) -> dict[str, NDArray[Any]]:
        """A copy of the member's weights, cut from the main model's."""
        where = {name: leading_index(shape) for name, shape in self.shapes.items()}
        return {name: np.array(weights[name][part], order="C") for name, part in where.items()}


def _check_ends(main: Manifest, member: Manifest) -> None:
    if main.input != member.input:
        raise TensorError(f"it takes {_input_text(member)}, not {_input_text(main)}")
    if main.labels != member.labels:
        raise TensorError(f"its {len(member.labels)} labels are not the other's {len(main.labels)}")
    if main.target != member.target:
        raise TensorError(
            f"its loss is {member.target.description}, not {main.target.description} on the same scale"
        )


def _input_text(manifest: Manifest) -> str:
    spec = manifest.input
    return f"{spec.dtype} {spec.shape} (scale {spec.scale:g}, mean {spec.mean}, std {spec.std})"


def _check_names(wide: Mapping[str, TensorSpec], narrow: Mapping[str, TensorSpec]) -> None:
    for first, second, whose in ((wide, narrow, "only the main model"), (narrow, wide, "only it")):
        if names := sorted(first.keys() - second.keys()):
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise TensorError(f"{whose} has {', '.join(names[:NAMED])}{more}")


def _check_nested(wide: TensorSpec, narrow: TensorSpec) -> None:
    name = wide.name
    if wide.dtype != narrow.dtype:
        raise TensorError(f"{name} is {narrow.dtype}, not {wide.dtype}")
    fits = len(wide.shape) == len(narrow.shape)
    if not fits or any(n > w for w, n in zip(wide.shape, narrow.shape, strict=True)):
        raise TensorError(f"{name} is {narrow.shape}, which is no part of {wide.shape}")
    if wide.shape != narrow.shape and STACKED.search(name):
        raise TensorError(
            f"{name} holds several matrices, of which {narrow.shape} of {wide.shape} is no part of each"
        )


def _check_inputs(main: Manifest, member: Manifest) -> None:
    """Checks layers that take more channels than the layer before them in the table gives."""
    tokens = _token_maps(main, member)
    before: tuple[int, int] | None = None
    for wide, narrow in zip(main.stored(), _in_order(main, member), strict=True):
        if len(wide.shape) < 2:
            continue
        takes = (wide.shape[1], narrow.shape[1])
        if before and takes[0] != takes[1] and takes[0] > before[0] and not takes[0] % before[0]:
            _check_flattened(wide, takes, before)
        if takes in tokens:
            raise TensorError(f"{wide.name} takes tokens one after the other, not their leading values")
        before = (wide.shape[0], narrow.shape[0])


def _check_flattened(wide: TensorSpec, takes: tuple[int, int], before: tuple[int, int]) -> None:
    """Check a layer whose input is not as wide as the layer before. Raises TensorError.

    It may be a linear layer on flattened channels with as many positions in both models, or a layer after a
    concatenation whose other part is as wide in both.
    """
    if takes[0] - before[0] == takes[1] - before[1]:
        return
    if len(wide.shape) > 2:
        raise TensorError(f"{wide.name} takes {takes[0]} channels, more than one layer's {before[0]}")
    places = takes[0] // before[0]
    if takes[1] != places * before[1]:
        raise TensorError(
            f"{wide.name} takes {takes[1]} values of {before[1]} channels, not {places} places of each"
        )


def _in_order(main: Manifest, member: Manifest) -> list[TensorSpec]:
    narrow = {spec.name: spec for spec in member.stored()}
    return [narrow[spec.name] for spec in main.stored()]


def _token_maps(main: Manifest, member: Manifest) -> set[tuple[int, int]]:
    """Sizes in both models of the feature maps (tokens, width) with several tokens and different shapes."""
    both = [(shape, member.features.get(level)) for level, shape in main.features.items()]
    return {
        (prod(wide), prod(narrow))
        for wide, narrow in both
        if narrow is not None and len(wide) == 2 and wide[0] > 1 and wide != narrow
    }
