"""Runs Mosquitto as a child process, configured for federated learning; it ends with its parent."""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import logging
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.durable_files import private_folder, private_opener

from .dependent_process import DependentProcess
from .server import WEB_USER, BrokerOptions, accepts, find_ports, url_of, web_url_of

log = logging.getLogger(__name__)

START_S = 60.0
"""Seconds in which it must accept connections."""
SETTLE_S = 2.0
"""Seconds to wait for versions that do not log that they run: if still alive then, they do."""
STOP_S = 5.0
"""Seconds it gets to end by itself."""
MESSAGE_BYTES = 512 * 1024
"""The broker drops a larger payload; this is twice the largest of the protocol."""
QUEUE_BYTES = 256 * 1024**2
"""The most bytes that wait for one client: a slow aggregator must not take all the memory."""
MEMORY_BYTES = 2 * 1024**3 - 1
"""The most memory that the broker takes, with retained messages; a client that needs more is disconnected."""
CONNECTIONS = 100_000
"""The most connections at each listener: as many as an aggregator knows devices."""
LIMITS = (
    "max_queued_messages 100000",
    f"max_queued_bytes {QUEUE_BYTES}",
    f"message_size_limit {MESSAGE_BYTES}",
    f"memory_limit {MEMORY_BYTES}",
    "persistent_client_expiration 1h",
    "set_tcp_nodelay true",
)
"""Lines of a configuration.

With Mosquitto's default of 1000 queued messages it drops most of a burst, but acknowledges all of it. The
sessions of our clients do not outlive their connections, so persistent clients may expire early.
"""


ROOT = "root"
USERS = ("mosquitto", "nobody")
"""Users without rights: that of Mosquitto's package, and the system's."""
TLS_COPIES = {"cert": "server.pem", "key": "server.key", "ca": "ca.pem"}
"""Copies of the files of TLS that a user without rights can read."""
FILES = frozenset(
    (
        *("mosquitto.conf", "passwords", "access", "mosquitto.log", "mosquitto.db", "mosquitto.db.new"),
        *TLS_COPIES.values(),
    )
)
"""The files of a folder, which that user owns then."""


def unprivileged_user() -> str | None:
    """The user whom Mosquitto becomes when root starts it; None where none of USERS exists."""
    for name in USERS:
        with suppress(KeyError):
            pwd.getpwnam(name)
            return name
    return None


def shut_to(folder: Path, user: str) -> Path | None:
    """The first folder on the way to `folder`, or it, that a user may not enter; None if it may enter all."""
    owner = pwd.getpwnam(user)
    if owner.pw_uid == 0:
        return None
    groups = set(os.getgrouplist(user, owner.pw_gid))
    for part in (*reversed(folder.resolve().parents), folder.resolve()):
        about = part.stat()
        bit = 0o100 if about.st_uid == owner.pw_uid else 0o010 if about.st_gid in groups else 0o001
        if not about.st_mode & bit:
            return part
    return None


def find() -> str | None:
    """The path of the program, on PATH or in folders that are not on an ordinary user's; None without it."""
    return shutil.which("mosquitto") or shutil.which(
        "mosquitto", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
    )


class Mosquitto:
    """A running Mosquitto. Raises BrokerStartError when it cannot be started.

    `stop` lets it save its persistent state; `kill` does not, like a power cut.
    """

    def __init__(self, options: BrokerOptions | None = None, why: str = "asked for") -> None:
        self.options = options or BrokerOptions()
        self.why = why
        program = find()
        if program is None:
            raise BrokerStartError("mosquitto is not installed: install it, or use --kind amqtt")
        self.name = f"Mosquitto {_version(program)}"
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="mosquitto-") if not self.options.folder else None
        )
        self._folder = Path(self._temporary.name) if self._temporary else Path(self.options.folder or ".")
        self._log = self._folder / "mosquitto.log"
        for attempts_left in reversed(range(1 if self.options.port else 3)):
            self.port, self._web_port = find_ports(self.options)
            self._process = self._launch(program)
            try:
                if self._is_ready():
                    break
            except BrokerStartError:
                self.kill()
                raise
            lines = self._log_text().splitlines()
            errors = [line for line in lines if "Error" in line] or lines[-1:]
            complaint = errors[0].split(": ", 1)[-1] if errors else "it says nothing"
            self.kill()
            if not attempts_left:
                raise BrokerStartError(f"{self.name} did not start on port {self.port}: {complaint}")
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        return url_of(self.options, self.port)

    @property
    def web_url(self) -> str:
        return web_url_of(self.options, self._web_port)

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask it to end, and kill it after STOP_S."""
        self._process.stop(STOP_S)
        self._let_go()

    def kill(self) -> None:
        """Kill it at once, like a crash."""
        self._process.signal(signal.SIGKILL)
        self._process.close()
        self._let_go()

    def _launch(self, program: str) -> DependentProcess:
        configuration = self._folder / "mosquitto.conf"
        try:
            private_folder(self._folder)
            ports, user = (self.port, self._web_port), self._user()
            options = self.options if user == ROOT else self._with_own_tls()
            _write_private(configuration, configure(options, ports, self._folder.resolve(), user))
            _write_private(self._folder / "passwords", hash_passwords(self.options))
            _write_private(self._folder / "access", access_list(self.options))
            if user != ROOT:
                self._log.unlink(missing_ok=True)
                if why := _hand_over([*self._folder.iterdir()], user):
                    raise BrokerStartError(f"cannot start {self.name}: {why}")
            return DependentProcess([program, "-c", str(configuration)], self._log)
        except OSError as error:
            raise BrokerStartError(f"cannot start {self.name} in {self._folder}: {error}") from error

    def _user(self) -> str:
        """The user that Mosquitto becomes where root starts it, who will own its folder; else ROOT, said."""
        if os.geteuid() != 0:
            return ROOT
        user = unprivileged_user()
        why = f"there is no user {' or '.join(USERS)}"
        if user is not None:
            others = sorted(path.name for path in self._folder.iterdir() if path.name not in FILES)
            shut = shut_to(self._folder.resolve().parent, user)
            why = f"user {user} may not enter {shut}: give a folder that it may enter" if shut else ""
            if others:
                why = f"{self._folder} has other files ({others[0]}): give a folder of its own"
            why = why or _hand_over([self._folder], user)
        if user is None or why:
            log.warning("Mosquitto runs as root: %s", why)
            return ROOT
        return user

    def _with_own_tls(self) -> BrokerOptions:
        """The options with copies of the files of TLS in the folder, which Mosquitto's user can read."""
        tls = self.options.tls
        if tls is None:
            return self.options
        copies: dict[str, Any] = {}
        for field, name in TLS_COPIES.items():
            path: Path | None = getattr(tls, field)
            if path is not None:
                copies[field] = self._folder.resolve() / name
                _write_private(copies[field], path.read_text())
        return replace(self.options, tls=replace(tls, **copies))

    def _let_go(self) -> None:
        atexit.unregister(self.stop)
        if self._temporary:
            self._temporary.cleanup()

    def _probe_host(self) -> str:
        return "127.0.0.1" if self.options.host in ("0.0.0.0", "::") else self.options.host  # noqa: S104

    def _is_ready(self) -> bool:
        """Wait for "running" in its log: it listens before it reads its certificates, and may still fail."""
        if not accepts(self._probe_host(), self.port, START_S, lambda: self.alive):
            return False
        end = time.monotonic() + SETTLE_S
        while self.alive and time.monotonic() < end and " running" not in self._log_text():
            time.sleep(0.01)
        return self.alive

    def _log_text(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""


def _hand_over(paths: Iterable[Path], user: str) -> str:
    """Make a user the owner of files. Returns why not: root of a container may not be allowed to."""
    owner = pwd.getpwnam(user)
    for path in paths:
        try:
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
        except OSError as error:
            return f"{path} cannot be given to user {user} ({(error.strerror or str(error)).lower()})"
    return ""


def configure(options: BrokerOptions, ports: tuple[int, int], folder: Path, user: str = ROOT) -> str:
    """The text of mosquitto.conf for a child process; `production` has that of a production broker.

    `ports`: of MQTT and of WebSockets. Lines about access are for the listener above them, or for both.
    `user`: whom Mosquitto becomes where root starts it, as it must be able to read the files.
    """
    closed_page = options.web is not None and not options.closed
    lines = [
        f"per_listener_settings {'true' if closed_page else 'false'}",
        f"listener {ports[0]} {options.host}",
        f"max_connections {CONNECTIONS}",
        *_tls(options),
        f"allow_anonymous {'false' if options.closed else 'true'}",
    ]
    if options.closed:
        lines.append(f"acl_file {folder / 'access'}")
    if options.users:
        lines.append(f"password_file {folder / 'passwords'}")
    if options.web:
        lines += [f"listener {ports[1]} {options.host}", f"max_connections {CONNECTIONS}"]
        lines += [*_tls(options), "protocol websockets"]
    if closed_page:
        lines += ["allow_anonymous false", f"password_file {folder / 'passwords'}"]
    lines += [
        *LIMITS,
        "log_dest stderr",
        *(f"log_type {kind}" for kind in ("error", "warning", "information")),
    ]
    lines.append(f"persistence {'true' if options.persistence else 'false'}")
    if options.persistence:
        lines += [f"persistence_location {folder}/", "autosave_on_changes true", "autosave_interval 1"]
    if os.geteuid() == 0:
        lines.append(f"user {user}")
    return "\n".join(lines) + "\n"


def _tls(options: BrokerOptions) -> Iterator[str]:
    if options.tls and options.tls.cert and options.tls.key:
        yield f"certfile {options.tls.cert.resolve()}"
        yield f"keyfile {options.tls.key.resolve()}"
        if options.tls.ca and not options.users:
            yield f"cafile {options.tls.ca.resolve()}"
            yield "require_certificate true"
            yield "use_identity_as_username true"


def access_list(options: BrokerOptions) -> str:
    """The access list: a device writes `up` and reads `dn` on its own branch, and reads `all`."""
    written = "".join(f"pattern write {topics.up('%u', leaf)}\n" for leaf in topics.UP)
    return f"""user {options.aggregator}
topic readwrite fl/v1/#

{written}pattern read fl/v1/d/%u/dn/#
pattern read fl/v1/all/#
"""


def hash_passwords(options: BrokerOptions) -> str:
    """The text of a password file (PBKDF2-SHA512, as mosquitto_passwd writes it)."""
    page = {WEB_USER: options.web.password} if options.web and not options.closed else {}
    users = {**options.users, **page}
    return "".join(f"{user}:$7$101${_hashed(password)}\n" for user, password in users.items()) or "\n"


def matches_password(line: str, password: str) -> bool:
    """Whether a line of `hash_passwords` is for this password."""
    entry = line.rpartition("$7$101$")[2]
    try:
        salt = base64.b64decode(entry.partition("$")[0], validate=True)
    except ValueError:
        return False
    return hmac.compare_digest(_hashed(password, salt), entry)


def _hashed(password: str, salt: bytes | None = None) -> str:
    salt = salt or secrets.token_bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"{base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


def _version(program: str) -> str:
    words = subprocess.run([program, "-h"], capture_output=True, text=True).stdout.split()
    return words[2] if words[:2] == ["mosquitto", "version"] else "of unknown version"


def _write_private(path: Path, text: str) -> None:
    """Writes a new file: what is there may be a link that Mosquitto's user has made."""
    path.unlink(missing_ok=True)
    with open(path, "x", opener=private_opener) as file:
        file.write(text)
