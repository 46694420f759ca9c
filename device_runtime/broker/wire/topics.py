"""The tree of MQTT topics. The access list of a broker confines each device to its own branch.

fl/v1/all/round/{task}                  offer, retained
fl/v1/d/{id}/up/state                   presence, retained, last will
fl/v1/d/{id}/up/{hello|plan|contribution|c|get|sum|trial}
fl/v1/d/{id}/up/block/{sha}/{N}         blocks of an upload
fl/v1/d/{id}/dn/{task|n|receipt|get|sum}
fl/v1/d/{id}/dn/block/{sha}/{N}         blocks of a download

Compact contributions go to `up/c`, compact offers to `dn/n` (see `compact_round`). Mask helpers get requests
on `dn/sum`, and answer on `up/sum`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from device_runtime.broker.errors import BrokerError

ROOT = "fl/v1"
OFFERS = f"{ROOT}/all/round/+"
"""The offers of every task."""
FROM_DEVICES = f"{ROOT}/d/+/up/#"
CONTRIBUTIONS = f"{ROOT}/d/+/up/contribution"
UP = ("state", "hello", "plan", "contribution", "c", "get", "sum", "block/+/+", "trial")
"""What a device may write on its own branch; `trial` is written by `doctor`, and nobody reads it."""
SIGNED = ("hello", "plan", "contribution")
"""The leaves whose messages a device with a key signs."""
ALL_BUT_CONTRIBUTIONS = tuple(f"{ROOT}/d/+/up/{leaf}" for leaf in UP if leaf != "contribution")
"""All topics of devices but contributions, for an aggregator whose workers subscribe to those."""

COMPACT_TOPICS = ("up/c", "dn/n")
"""The ends of topics of compact messages."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA = re.compile(r"[0-9a-f]{64}")
_INDEX = re.compile(r"-1|[0-9]{1,8}")


class TopicError(BrokerError, ValueError):
    """A topic outside the tree, or a name of a device or task that cannot be part of one."""


def check_device(name: str) -> str:
    """Return the name. Raises TopicError unless it is 1 to 64 letters, digits, dots, dashes, underscores."""
    return _checked("device", name)


def check_task(name: str) -> str:
    """Return the name of a task. Raises TopicError as `check_device`."""
    return _checked("task", name)


def _checked(of: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TopicError(
            f"{of} name {name!r}: use 1 to 64 letters, digits, '.', '_' or '-', first a letter or digit"
        )
    return name


def offer(task: str) -> str:
    """The topic of a task's retained offer."""
    return f"{ROOT}/all/round/{task}"


def is_offer(topic: str) -> bool:
    return topic.startswith(offer(""))


def shared(group: str, topic: str) -> str:
    """A shared subscription: each member of the group gets a part of the messages.

    Anyone who knows the name of a `group` can join it, and takes messages from the other members.
    """
    return f"$share/{group}/{topic}"


def filter_of(subscription: str) -> str:
    """The topic filter of a subscription, shared or not."""
    return subscription.split("/", 2)[2] if subscription.startswith("$share/") else subscription


def up(device: str, leaf: str) -> str:
    return f"{ROOT}/d/{device}/up/{leaf}"


def down(device: str, leaf: str) -> str:
    return f"{ROOT}/d/{device}/dn/{leaf}"


def block(sha: bytes, index: int) -> str:
    """The leaf of one block; index -1 says that the sender does not have the blob."""
    return f"block/{sha.hex()}/{index}"


@dataclass(frozen=True)
class Address:
    """A parsed device topic. `leaf` is "hello", "block", ...; a block also has `sha` and `index`."""

    device: str
    leaf: str
    sha: bytes = b""
    index: int = 0


def parse(topic: str) -> Address:
    """The address of a topic below `fl/v1/d/`. Raises TopicError for anything else."""
    parts = topic.split("/")
    if len(parts) < 6 or parts[:3] != ["fl", "v1", "d"] or parts[4] not in ("up", "dn"):
        raise TopicError(f"{topic!r} is not a device topic")
    device = check_device(parts[3])
    if len(parts) == 6:
        return Address(device, parts[5])
    if len(parts) == 8 and parts[5] == "block" and _SHA.fullmatch(parts[6]) and _INDEX.fullmatch(parts[7]):
        return Address(device, "block", bytes.fromhex(parts[6]), int(parts[7]))
    raise TopicError(f"{topic!r} is not a device topic")
