"""The audit log of a run folder or an enrolment: what operators did there, appended and never changed.

Each line is JSON. An action has two lines of one `id`, before it and after it, so that one in which the
process was killed is there, too.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire.durable_files import private_opener, sync, sync_folder

log = logging.getLogger(__name__)

AUDIT = "audit.jsonl"
BEGUN, DONE = "begun", "done"
SECRET = re.compile(r"#\S+|\bfl1\.\S+")
"""What follows the # of a link, and tokens: an operator may paste either where a name was expected."""
UNKNOWN = "unknown: the process ended in it"
"""The result of an action that has only its first line, once `entries` reads it."""


class AuditError(BrokerError):
    """The audit log cannot be written, so that the action was not done, or cannot be read."""


@dataclass(frozen=True)
class Operator:
    """Who acts: a user of this machine, or a token of HTTP by its file's name; and from which address."""

    user: str
    address: str = ""


@dataclass(frozen=True)
class AuditEntry:
    """An action. `at`: ISO 8601, UTC. `subject`: the device, link, round or file. Never has a secret.

    `result`: "begun", "done", or "failed: " and why.
    """

    id: str
    at: str
    user: str
    address: str
    action: str
    subject: str
    result: str


def this_user() -> Operator:
    """The user of this process, with who they are behind sudo, and the address that ssh names."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    behind = os.environ.get("SUDO_USER", "")
    address = os.environ.get("SSH_CLIENT", "").partition(" ")[0]
    return Operator(f"{user} (sudo of {behind})" if behind else user, address)


@contextmanager
def recorded(folder: Path, operator: Operator, action: str, subject: str) -> Iterator[None]:
    """Record the action inside, before it and after it. Raises AuditError where the log cannot be written."""
    entry = _entry(operator, action, subject, BEGUN)
    _append(folder, entry)
    try:
        yield
    except Exception as error:
        _append(folder, replace(entry, result=SECRET.sub("..", f"failed: {error}")))
        raise
    _append(folder, replace(entry, result=DONE))


def note(folder: Path, operator: Operator, action: str, subject: str) -> None:
    """Record what has happened; a log that cannot be written is only warned of."""
    try:
        _append(folder, _entry(operator, action, subject, DONE))
    except AuditError as error:
        log.warning("%s", error)


def entries(folders: Iterable[Path]) -> list[AuditEntry]:
    """All actions in these folders, the latest first. Raises AuditError for a log that cannot be read.

    A line that a full disk or a power cut has damaged is left out, and counted in a warning.
    """
    actions: dict[str, AuditEntry] = {}
    for folder in folders:
        path, damaged = folder / AUDIT, 0
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AuditError(f"cannot read {path}: {error.strerror or error}") from None
        for line in filter(None, lines):
            try:
                entry = msgspec.json.decode(line, type=AuditEntry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                damaged += 1
            else:
                actions[entry.id] = replace(entry, at=actions.get(entry.id, entry).at)
        if damaged:
            log.warning("%s: %d damaged lines are left out", path, damaged)
    latest = sorted(actions.values(), key=lambda entry: entry.at)[::-1]
    return [replace(entry, result=UNKNOWN) if entry.result == BEGUN else entry for entry in latest]


def _entry(operator: Operator, action: str, subject: str, result: str) -> AuditEntry:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    subject = SECRET.sub("..", subject)
    return AuditEntry(secrets.token_hex(6), now, operator.user, operator.address, action, subject, result)


def _append(folder: Path, entry: AuditEntry) -> None:
    """Append a line, durable on return. One that a full disk takes in part ends at the next line."""
    path = folder / AUDIT
    try:
        is_new = not path.exists()
        with open(path, "ab", buffering=0, opener=private_opener) as file:
            if is_new and os.geteuid() == 0:  # the service, which need not be root's, writes it, too
                owner = folder.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(b"\n" * _is_cut(path) + msgspec.json.encode(entry) + b"\n")
            sync(file.fileno())
        if is_new:
            sync_folder(folder)
    except OSError as error:
        why = error.strerror or error
        raise AuditError(f"cannot write {path} ({why}), so that `{entry.action}` is not recorded") from None


def _is_cut(path: Path) -> bool:
    """Whether the last line of a file lacks its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")
