"""What the owner of a device says of its work: rules, and a pause by hand, in the device's folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from device_runtime.broker.wire.partial_blob import replace_file
from device_runtime.client.errors import PolicyError
from device_runtime.client.traffic import Traffic

from .conditions import Look
from .rules import Policy, Verdict, judge

log = logging.getLogger(__name__)

PAUSED = "paused"
POLICY = "policy.json"


class Owner:
    """The rules of one device, judged as things are; `counted` gives the bytes of its link, up and down."""

    def __init__(self, policy: Policy, folder: Path, counted: Callable[[], tuple[int, int]]) -> None:
        self.traffic = Traffic(folder)
        self._policy, self._folder, self._counted = policy, folder, counted
        self._look = Look(policy, lambda: self.traffic.bytes_today)

    def judged(self, held: frozenset[str] = frozenset()) -> Verdict:
        """See `rules.judge`. Traffic is counted at each call."""
        self.count()
        return judge(self._policy, self._look.conditions(paused(self._folder)), held)

    def count(self) -> None:
        """What the link counted since the last time."""
        self.traffic.saw(*self._counted())


def pause(folder: Path) -> None:
    """By hand, until `resume`, also across restarts. Raises OSError."""
    replace_file(folder / PAUSED, f"by hand, since {datetime.now():%Y-%m-%d %H:%M}\n".encode())


def resume(folder: Path) -> None:
    """End a pause by hand, if there is one."""
    with suppress(FileNotFoundError):
        (folder / PAUSED).unlink()


def paused(folder: Path) -> str:
    """Since when it is paused by hand; empty where it is not."""
    try:
        return (folder / PAUSED).read_text("utf-8", "replace").strip() or "by hand"
    except OSError:
        return ""


def keep(policy: Policy, folder: Path) -> None:
    """For whoever asks what rules there are."""
    try:
        replace_file(folder / POLICY, msgspec.json.format(msgspec.json.encode(policy)) + b"\n")
    except OSError as error:
        log.warning("the policy cannot be kept in %s: %s", folder, error.strerror)


def kept(folder: Path) -> Policy | None:
    """With which the device last joined. Raises PolicyError for a file that cannot be read."""
    try:
        return msgspec.json.decode((folder / POLICY).read_bytes(), type=Policy)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise PolicyError(f"{folder / POLICY} cannot be read: {error}") from None
