"""Tags of devices, such as "kitchen" or "floor=2", by which tasks select devices."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_TAGS = 16
"""The most tags of a device."""
LONGEST_TAG = 64
"""Characters of a tag."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:=[A-Za-z0-9._-]+)?")


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags, each once. Raises ValueError for too many, and for one that cannot be a tag."""
    distinct = tuple(dict.fromkeys(tags))
    for tag in distinct:
        if not _TAG.fullmatch(tag) or len(tag) > LONGEST_TAG:
            raise ValueError(
                f"tag {tag!r}: use letters, digits, '.', '_' and '-', first a letter or digit, and at most "
                f"one '=', {LONGEST_TAG} characters in all, such as kitchen or floor=2"
            )
    if len(distinct) > MOST_TAGS:
        raise ValueError(f"{len(distinct)} tags, expected {MOST_TAGS} or fewer")
    return distinct
