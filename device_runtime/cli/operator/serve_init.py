"""`device-runtime serve-init`: writes a production site, and fits it to a move or an upgrade."""

from __future__ import annotations

import argparse
import os
import platform
import pwd
import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.broker.security.audit import recorded, this_user
from device_runtime.broker.servers.broker_folder import SITE, BrokerFolder, BrokerSetup, SetupError, write
from device_runtime.broker.servers.dependent_process import FILES
from device_runtime.broker.servers.mosquitto import find
from device_runtime.cli.operator.broker_setup import LOCAL
from device_runtime.content import IN_CHECKOUT, content

ERRORS = (AggregatorError,)
BROKER_SERVICE = "mosquitto"
"""The broker's name in the network of the Compose file; its certificate has it, too."""
SECRETS = ("http-token", "grafana-password")
DATA = ("run", "backups", "data/prometheus", "data/grafana")
"""Folders that containers and the backup write."""
EDITED = ("server.toml", "task.toml", "prometheus.yml")
"""Templates that the operator edits, and that `--again` leaves as they are."""
_PLAIN = re.compile(r"[\w./@+=~-]+")


@dataclass(frozen=True)
class SiteSettings:
    """What the templates of a production site are filled with. `user`: as whom all of it runs."""

    folder: Path
    names: tuple[str, ...]
    port: int
    http: int
    user: pwd.struct_passwd

    @property
    def fields(self) -> Mapping[str, object]:
        """The text in place of each {{NAME}} of a template."""
        return {
            "folder": self.folder,
            "name": self.names[0],
            "port": self.port,
            "http": self.http,
            "user": f"{self.user.pw_uid}:{self.user.pw_gid}",
            "files": FILES,
            "version": metadata.version("device-runtime"),
            "python": shlex.quote(sys.executable),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="Write into this folder, which is new or empty."
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="Fit a site to this folder, user and version: after a restore, a move, an upgrade.",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="Let devices reach it by this name or address; may be repeated (default: this host's name).",
    )
    parser.add_argument(
        "--port",
        type=int,
        help="Take devices on this port, MQTT over TLS (default: 8883; with --again as before).",
    )
    parser.add_argument(
        "--http",
        type=int,
        metavar="PORT",
        help="Serve dashboard, REST and metrics on this port, HTTPS (default: 8443; --again: as before).",
    )
    parser.add_argument(
        "--run-as",
        default="",
        metavar="USER",
        help="Run all of it as this user, whose the folder becomes (default: you; root has to name one).",
    )


def run(args: argparse.Namespace) -> int:
    """Write the site and print the next lines to type. Raises SetupError, BrokerError, ConfigError."""
    if args.again:
        return _again(args)
    site = SiteSettings(
        folder=args.folder.resolve(),
        names=tuple(args.name) or (platform.node(),),
        port=8883 if args.port is None else args.port,
        http=8443 if args.http is None else args.http,
        user=_user(args.run_as),
    )
    _check(site)
    write_site(site, datetime.now(timezone.utc))
    print(_next_steps(site))
    return 0


def write_site(site: SiteSettings, now: datetime) -> None:
    """Write all files. Raises SetupError where a file cannot be written, AuthorityError for a wrong name."""
    from device_runtime.broker.servers.production import init_broker

    names = (*site.names, BROKER_SERVICE, *LOCAL)
    as_root = os.geteuid() == 0
    setup = BrokerSetup(
        names=tuple(dict.fromkeys(names)), port=site.port, run_as=site.user.pw_name if as_root else ""
    )
    folder = site.folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        init_broker(folder / "enrolment", setup, now)
        for target, text in _texts(site):
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, text, 0o644)
        for name in SECRETS:
            write(folder / name, secrets.token_hex(32) + "\n")
        _finish(site)
    except PermissionError as error:
        raise SetupError(
            f"cannot write {error.filename or folder}: permission denied. Name a folder of yours, "
            f"or have it made: sudo install -d -m 700 -o {site.user.pw_name} {folder}"
        ) from None
    except OSError as error:
        raise SetupError(f"cannot write {error.filename or folder}: {error.strerror or error}") from None


def _again(args: argparse.Namespace) -> int:
    """Fit a site to its folder, user and version; files that change become NAME.old."""
    from device_runtime.aggregator.configuration import config

    folder = args.folder.resolve()
    opened = BrokerFolder(folder / "enrolment")
    http = config.load(folder / "server.toml", {}).http
    if http is None:
        raise SetupError(f"{folder / 'server.toml'}: expected a table [http], as serve-init writes it")
    if args.name:
        raise SetupError("--name: names of a site stay, as its authority signs for no others; leave it out")
    if args.http not in (None, http.port):
        raise SetupError(f"--http {args.http}: {folder / 'server.toml'} says {http.port}; change it there")
    before = opened.site
    port = before.port if args.port is None else args.port
    site = SiteSettings(folder, before.names, port, http.port, _user(args.run_as))
    _check(site, again=True)
    with recorded(opened.folder, this_user(), "site again", f"{folder}, port {port}"):
        changed = _write_again(site, opened)
    written = f"{', '.join(changed)} (before: NAME.old)" if changed else "nothing, as all is so"
    print(f"written for {folder}: {written}")
    if f":{http.port}" not in (folder / "prometheus.yml").read_text("utf-8"):
        print(f"prometheus.yml names another port than {http.port}, that of HTTPS: change its target")
    if port != before.port:
        print(f"Devices have port {before.port} of {before.names[0]}: forward it, or begin each anew with")
        print(f"  device-runtime join mqtts://{before.names[0]}:{port} --data ..")
    print(_next_steps(site))
    return 0


def _write_again(site: SiteSettings, opened: BrokerFolder) -> list[str]:
    """Write the files that depend on folder, user, port and version. Returns the names of changed ones."""
    from device_runtime.broker.servers.production import upgrade

    run_as = site.user.pw_name if os.geteuid() == 0 else ""
    setup = msgspec.structs.replace(opened.site, port=site.port, run_as=run_as)
    try:
        write(opened.folder / SITE, msgspec.json.format(msgspec.json.encode(setup)).decode() + "\n", 0o644)
        changed = [f"enrolment/{name}" for name in upgrade(BrokerFolder(opened.folder))]
        for target, text in _texts(site):
            if target.name in EDITED or (target.exists() and target.read_text("utf-8") == text):
                continue
            if target.exists():
                write(target.with_name(f"{target.name}.old"), target.read_text("utf-8"), 0o644)
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, text, 0o644)
            changed.append(str(target.relative_to(site.folder)))
        _finish(site)
    except OSError as error:
        raise SetupError(f"cannot write {error.filename or site.folder}: {error.strerror or error}") from None
    return changed


def _texts(site: SiteSettings) -> Iterator[tuple[Path, str]]:
    """The path and the filled text of each template."""
    templates = content("deploy") / "site"
    for file in sorted(path for path in templates.rglob("*") if path.is_file()):
        yield site.folder / file.relative_to(templates), _filled(file.read_text("utf-8"), site.fields)


def _finish(site: SiteSettings) -> None:
    """Make folders for data, and give all files to the user. Raises OSError."""
    for name in DATA:
        (site.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    (site.folder / "backup.sh").chmod(0o755)
    if os.geteuid() == 0:
        for path in (site.folder, *site.folder.rglob("*")):
            os.chown(path, site.user.pw_uid, site.user.pw_gid, follow_symlinks=False)


def _filled(text: str, fields: Mapping[str, object]) -> str:
    """A template with the text of each field."""
    for name, value in fields.items():
        text = text.replace("{{%s}}" % name, str(value))  # noqa: UP031 - the others double the braces
    return text


def _user(name: str) -> pwd.struct_passwd:
    """The user as whom the site runs. Raises SetupError."""
    if not name and os.geteuid() == 0:
        raise SetupError(
            "name the user as whom the site shall run by --run-as USER, as it needs no root; "
            "`useradd --system USER` makes one"
        )
    try:
        user = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise SetupError(f"no user of this machine is called {name or os.geteuid()!r}") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise SetupError(f"--run-as {name}: only root can give the folder to another user")
    return user


def _check(site: SiteSettings, again: bool = False) -> None:
    """Raise SetupError for a folder that is not free (but `again`), or ports that cannot be meant."""
    folder = site.folder
    if not _PLAIN.fullmatch(str(folder)):
        raise SetupError(f"{folder}: expected a path of letters, digits and ./_-@+=~, for compose.yaml")
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"{folder} is a file: give the name of a new folder")
    if not again and folder.is_dir() and any(folder.iterdir()):
        raise SetupError(f"{folder} is not empty, and nothing is written over: give the name of a new folder")
    for port in (site.port, site.http):
        if not 0 < port < 65536 or site.port == site.http:
            raise SetupError(f"--port {site.port}, --http {site.http}: expected two from 1 to 65535")


def _next_steps(site: SiteSettings) -> str:
    folder, version = site.folder, site.fields["version"]
    clone = Path(__file__).parents[3] if IN_CHECKOUT else Path()
    where = "" if IN_CHECKOUT else f", in a clone of version {version}"
    serve, of_user, as_user = "device-runtime serve", "", ""
    if os.geteuid() != site.user.pw_uid:  # whose PATH may not have the program
        as_user = f"sudo -u {site.user.pw_name} "
        serve = f"{as_user}{site.fields['python']} -m device_runtime serve"
        of_user = f" -u {site.user.pw_name}"
    return "\n".join((
        f"A production site is in {folder}, for {', '.join(site.names)}. It runs as {site.user.pw_name}.",
        "Read task.toml there (what is learnt) and server.toml (how it is served).",
        "",
        f"Start it in containers; the first line makes the aggregator's image{where}:",
        f"  docker build -f {shlex.quote(str(clone / 'deploy/Dockerfile'))} -t device-runtime:{version} "
        f"{shlex.quote(str(clone))}",
        f"  docker compose -f {folder}/compose.yaml up -d",
        "or without Docker, broker (it goes to the background) and aggregator alone:",
        f"  {as_user}{find() or 'mosquitto'} -d -c {folder}/enrolment/mosquitto.conf",
        f"  {serve} --config {folder}/server.toml",
        "",
        "Let devices in (round 1 waits for two). Mosquitto is told; in containers the second line does it:",
        f"  device-runtime device add NAME --dir {folder}/enrolment",
        f"  docker compose -f {folder}/compose.yaml kill -s HUP {BROKER_SERVICE}",
        "",
        f"Dashboard: https://{site.names[0]}:{site.http}  (token: {folder}/http-token)",
        f"  a browser trusts it by the authority {folder}/enrolment/ca.pem, or a certificate of yours",
        f"Grafana, in containers: http://127.0.0.1:3000  (admin; password: {folder}/grafana-password)",
        "Prometheus and its alerts, in containers: http://127.0.0.1:9090/alerts",
        "",
        "Back it up each night:",
        f"  (crontab{of_user} -l; echo '17 3 * * * {folder}/backup.sh') | crontab{of_user} -",
    ))  # fmt: skip
