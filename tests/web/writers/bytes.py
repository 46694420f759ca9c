"""Hashes and little-endian numbers."""

import hashlib
from typing import Any

TEXTS = ("", "abc", "eine Straße, 道, 🦊")


def vectors() -> dict[str, Any]:
    return {
        "sha256": [
            {"text": text, "utf8": text.encode(), "sha256": hashlib.sha256(text.encode()).digest()}
            for text in TEXTS
        ],
    }
