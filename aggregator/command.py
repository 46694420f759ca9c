"""`device-runtime serve`: the aggregator of one task, until it is learnt or stopped."""

from __future__ import annotations

import argparse
import queue
import secrets
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec

from broker import brokers, topics
from broker.errors import BrokerStartError
from broker.link import Event, Link, LinkOptions
from broker.running import BrokerOptions, RunningBroker
from broker.url import TLS, BrokerUrl

from strategies.robust.settings import RULES

from . import systems
from . import task as tasks
from .errors import AggregatorError
from .plain import Plain, View
from .ports import Ports
from .records import Records
from .service import Service
from .task import Task

HELP = "run the rounds of a task: offer, collect, merge, evaluate"
EXAMPLE = "device-runtime serve --bundle digits-wrn-10-1 --rounds 15 --deadline 3 --run-dir runs/digits"

ERRORS = (AggregatorError,)

QUEUE_LIMIT = 65_536
"""Messages to devices that may wait to be sent."""

PORT = "port"
"""In the run folder: the broker's latest port, for the next life to start its own at the same."""

_FLAGS = {
    "bundle": "bundle",
    "name": "name",
    "rounds": "rounds",
    "deadline": "round_deadline_s",
    "min_contributions": "min_contributions",
    "min_devices": "min_devices",
    "late": "late",
    "devices_per_round": "devices_per_round",
    "buffer_size": "buffer_size",
    "max_staleness": "max_staleness",
    "staleness_weight": "staleness_weight",
    "robust": "robust",
    "robust_trim": "robust_trim",
    "robust_clip": "robust_clip",
    "robust_clip_factor": "robust_clip_factor",
    "robust_byzantine": "robust_byzantine",
    "seed": "seed",
    "eval_data": "eval_data",
    "generic": "generic",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command; those of the task stand over the task file."""
    add = parser.add_argument
    add("task", nargs="?", type=Path, metavar="TASK.toml", help="settings of the task; flags stand over them")
    add("--bundle", help="what is learnt: a bundle folder or zip, or the name of a shipped bundle")
    add("--name", help="name of the task (default: that of the file, or 'task')")
    add("--rounds", type=int, help="how many rounds (default: 10)")
    add("--deadline", type=float, metavar="SECONDS", help="of a round (default: 60)")
    add("--min-contributions", type=int, metavar="N", help="with fewer a round is extended (default: 1)")
    add("--min-devices", type=int, metavar="N", help="round 1 waits for as many (default: 1)")
    add("--late", choices=("discard", "count"), help="what comes after its round (default: discard)")
    add("--devices-per-round", type=int, metavar="N", help="ask so many, drawn each round (default: all)")
    add("--buffer-size", type=int, metavar="N", help="close a round after N contributions (default: wait)")
    add("--max-staleness", type=int, metavar="N", help="rounds that a late one may be late (default: 5)")
    add("--staleness-weight", type=float, metavar="A", help="t rounds late counts (1+t)^-A (default: 0.5)")
    add("--kinds", metavar="A,B,..", help="kinds of update, the preferred first (default: the usual ones)")
    add("--system", metavar="NAME", help="by name, as `device-runtime systems` lists them (default: --kinds)")
    add("--family", metavar="A,B,..", help="bundles of smaller models, the largest first")
    add("--generic", metavar="FILE.npz", help="samples that are nobody's own, for kinds that need them here")
    add("--eval-data", metavar="FILE.npz", help="x (raw) and y to evaluate on (default: no evaluation)")
    add("--robust", choices=RULES, help="merge so that lying devices cannot steer it (default: none)")
    add("--robust-trim", type=float, metavar="SHARE", help="of trimmed-mean, at either end (default: 0.2)")
    add("--robust-clip", type=float, metavar="NORM", help="bound of norm-clip (default: the median norm)")
    add("--robust-clip-factor", type=float, metavar="X", help="times the median norm (default: 1)")
    add("--robust-byzantine", type=int, metavar="F", help="liars that krum is to stand (default: all it can)")
    add("--seed", type=int, help="of the task (default: 0)")
    add("--run-dir", type=Path, help="where the run is kept; an existing one goes on (default: runs/NAME)")
    add("--broker", default="auto", metavar="URL", help="mqtt:// or mqtts://; auto starts one here (default)")
    add(
        "--port",
        type=int,
        default=0,
        help="of the broker that auto starts (default: as before, or a free one)",
    )
    add(
        "--ca", type=Path, metavar="PEM", help="authority of the broker's certificate (default: the system's)"
    )
    add("--insecure", action="store_true", help="allow mqtt:// over a network, in the clear")
    add("--quiet", action="store_true", help="print nothing but the end")


def run(args: argparse.Namespace) -> int:
    """Serve until done or a signal. Raises AggregatorError, BrokerError, ModelError."""
    task = task_of(args)
    folder = args.run_dir or Path("runs") / task.name
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    broker, url = _broker(args, folder)
    try:
        return _serve(task, folder, url, (stop, args.quiet))
    finally:
        if broker:
            broker.stop()


def task_of(args: argparse.Namespace) -> Task:
    """The task file and the flags over it. Raises TaskError."""
    given = {field: getattr(args, flag) for flag, field in _FLAGS.items()}
    flags = {field: value for field, value in given.items() if value is not None}
    if args.kinds is not None:
        names = [name.strip() for name in args.kinds.split(",") if name.strip()]
        flags["kinds"] = msgspec.to_builtins(tasks.kinds_named(names))
    if args.family is not None:
        flags["family"] = [name.strip() for name in args.family.split(",") if name.strip()]
    task = tasks.load(args.task, flags)
    return systems.under(args.system, task) if args.system else task


def _broker(args: argparse.Namespace, folder: Path) -> tuple[RunningBroker | None, BrokerUrl]:
    """The broker to use, and the one started for it: at the port that the run had before, if that is free."""
    if args.broker != "auto":
        return None, BrokerUrl.parse(args.broker, TLS(ca=args.ca), args.insecure)
    before = 0 if args.port else _port_before(folder)
    try:
        broker = brokers.start("auto", BrokerOptions(port=args.port or before))
    except BrokerStartError:
        if not before:
            raise
        broker = brokers.start("auto", BrokerOptions())
    if not args.quiet:
        print(f"broker: {broker.name} at {broker.url} ({broker.why})")
        print(f"devices join with: device-runtime join {broker.url} --data FOLDER", flush=True)
    return broker, BrokerUrl.parse(broker.url)


def _port_before(folder: Path) -> int:
    """The port of the broker that an earlier life of the run started; 0 when there was none."""
    try:
        port = int((folder / PORT).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0


def _serve(task: Task, folder: Path, url: BrokerUrl, how: tuple[threading.Event, bool]) -> int:
    stop, quiet = how
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = LinkOptions(subscriptions=(topics.FROM_DEVICES,), queue_limit=QUEUE_LIMIT)
    link = Link(url, f"aggregator-{secrets.token_hex(4)}", inbox, options)
    view = _view(str(url), quiet)
    try:
        ports = Ports(link, inbox, (Records(folder), view), mqtt5=url.mqtt5)
        with closing(Service(task, folder, ports)) as service:
            (folder / PORT).write_text(f"{url.port}\n")
            link.connect()
            service.run(stop)
            link.close(service.farewell())
    finally:
        view.close()
    if service.state.phase != "done":
        print(f"stopped in round {service.state.round}; the same command goes on with it", flush=True)
    return 0


def _view(broker: str, quiet: bool) -> View:
    if quiet or not sys.stdout.isatty():
        return Plain(sys.stdout, quiet)
    from .view import Live

    return Live(broker)
