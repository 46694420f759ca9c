"""The token that HTTP asks for: from a file, compared in constant time, never shown."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from device_runtime.aggregator.errors import ConfigError
from device_runtime.aggregator.serving.config import HttpSection

FILE = "http-token"
"""In the run folder, where no file is named: made at the first start, readable by its owner only."""
SHORTEST = 16
"""Characters; `openssl rand -hex 32` makes 64."""


class Token:
    """What must stand after `Authorization: Bearer`. None that is right exists where the service is open."""

    def __init__(self, text: str) -> None:
        self._expected = text.encode()

    @property
    def needed(self) -> bool:
        """Whether anything is asked for at all."""
        return bool(self._expected)

    def fits(self, given: str | None) -> bool:
        """Whether this is it; takes the same time whatever is given."""
        right = hmac.compare_digest((given or "").encode(errors="replace"), self._expected)
        return right or not self.needed

    def __repr__(self) -> str:
        return "Token(***)"


def token_for(settings: HttpSection, folder: Path) -> tuple[Token, Path | None]:
    """The token to ask for, and the file where it stands. Raises ConfigError."""
    if settings.open:
        return Token(""), None
    if settings.token_file:
        return Token(_read(settings.token_file)), settings.token_file
    path = folder / FILE
    if not path.exists():
        _make(path)
    return Token(_read(path)), path


def _read(path: Path) -> str:
    try:
        text = path.read_text("ascii").strip()
    except OSError as error:
        raise ConfigError(
            f"http.token_file: cannot read {path}: {(error.strerror or str(error)).lower()}; "
            "make one with: openssl rand -hex 32"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if len(text) < SHORTEST or not text.isprintable() or " " in text:
        raise ConfigError(
            f"http.token_file: {path} must hold one token of at least {SHORTEST} ASCII characters without "
            "spaces; make one with: openssl rand -hex 32"
        )
    return text


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise ConfigError(f"http.token_file: cannot write {path}: {error.strerror or error}") from None
