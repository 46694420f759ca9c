"""Facts about kinds of update by name, without importing any kind."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import KindError

KINDS = (
    *("full+few-shot", "representatives", "full", "width-slice", "sparse", "peft", "entropy-subset"),
    *("attention-transfer", "prototypes", "few-shot", "class-means", "local-zeroth-order", "zeroth-order"),
)
"""The kinds of `registry.KINDS`."""
EXACT_KINDS = frozenset({"zeroth-order", "class-means"})
"""Kinds that send exact values and take no codec; see `registry.codec_setting`."""


def check_kinds(names: Iterable[str]) -> None:
    """Raises KindError for a name that is not in KINDS; kinds of plugins are not known here."""
    for name in names:
        if name not in KINDS:
            from difflib import get_close_matches  # 0.15 MB, which an idle device does without

            near = get_close_matches(name, KINDS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise KindError(f"no kind of update is called {name!r}{hint}; there are {', '.join(KINDS)}")
