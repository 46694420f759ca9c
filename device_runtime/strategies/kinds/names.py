"""Facts about kinds of update by name, without importing any kind."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = (
    *("full+few-shot", "representatives", "full", "width-slice", "sparse", "peft", "entropy-subset"),
    *("attention-transfer", "prototypes", "few-shot", "class-means", "local-zeroth-order", "zeroth-order"),
    "evaluation",
)
"""The shipped kinds, as in `registry.KINDS`."""
EXACT_KINDS = frozenset({"zeroth-order", "class-means", "evaluation"})
"""Kinds that send exact values and take no codec; see `registry.codec_setting`."""


def check_kinds(names: Iterable[str]) -> None:
    """Raises KindError for a name that is no kind. Imports kinds only for names that are not shipped."""
    for name in names:
        if name not in KINDS:
            from .registry import kind

            kind(name)
