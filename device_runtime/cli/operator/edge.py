"""`device-runtime edge`: runs the aggregator of a site, a device of the aggregator above it."""

from __future__ import annotations

import argparse
import logging
import secrets
import threading
import time
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.aggregator.configuration import enrolled
from device_runtime.aggregator.configuration.config import AUTO, BrokerSection, broker_for, keep_port, renewal
from device_runtime.aggregator.errors import AggregatorError, exit_code
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.on_device.policy_options import add_masks, masks_allowed
from device_runtime.cli.options import add_connection, add_plugins, add_tags, count, load_plugins, tags
from device_runtime.console import limit_lines
from device_runtime.device.agent.instance import folder_lock
from device_runtime.device.connection.connecting import Connection, claim, connect, first_connection
from device_runtime.device.training.settings import Settings
from device_runtime.service_process import Exit, stopped_by_signals

if TYPE_CHECKING:
    from device_runtime.aggregator.limits import BoundedInbox

__all__ = ["ERRORS", "add_arguments", "exit_code", "run"]

ERRORS = (AggregatorError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options as of `join` for the connection to the aggregator above, and those of the site."""
    add_connection(parser, "broker")
    add_plugins(parser)
    add_tags(parser)
    add = parser.add_argument
    add("--until-done", action="store_true", help="Leave when the task is done, whatever others there are.")
    add(
        "--broker",
        dest="site_broker",
        metavar="URL",
        default=AUTO,
        help="Serve the site's devices at this broker; auto starts one on this machine (default: auto).",
    )
    add(
        "--port",
        type=int,
        default=0,
        help="Set the port of the broker that auto starts (default: as before, or free).",
    )
    add(
        "--broker-password-file",
        type=Path,
        metavar="FILE",
        help="Read the password at the site's broker from this file.",
    )
    add("--broker-ca", type=Path, metavar="PEM", help="Trust this authority of the site's broker.")
    add(
        "--enrolment",
        type=Path,
        metavar="DIR",
        help="Take the site's broker, credential and signing key from this folder of `broker init`.",
    )
    add(
        "--min-devices",
        type=count,
        default=1,
        metavar="N",
        help="Be ready with this many devices (default: 1).",
    )
    add(
        "--min-contributions",
        type=count,
        default=1,
        metavar="N",
        help="Forward nothing of fewer contributions (default: 1).",
    )
    add(
        "--late",
        choices=("discard", "count"),
        default="discard",
        help="Discard or count what comes after its round (default: discard).",
    )
    add_masks(parser)


def run(options: argparse.Namespace) -> int:
    """Work until stopped or done. Raises AggregatorError, BrokerError, ModelError."""
    # where the extra is missing, it says so before it starts a broker
    import_module("device_runtime.aggregator.hierarchy.site_task")
    from device_runtime.aggregator.limits import BoundedInbox

    load_plugins(options)
    above = connect(options)
    if options.insecure and not above.url.secure:
        logging.warning("--insecure: passwords and updates cross the network in the clear")
    claim(above.folder)
    section = _section(options)
    stop, inbox = threading.Event(), BoundedInbox()
    with ExitStack() as stack:
        stack.enter_context(folder_lock(above.folder))
        stack.enter_context(stopped_by_signals(stop.set, inbox.wake))
        broker, url = broker_for(section, above.folder)
        if broker:
            stack.callback(broker.stop)
            print(f"broker: {broker.name} at {broker.url} ({broker.why})", flush=True)
            print(f"the site's devices join with: device-runtime join {broker.url} --data FOLDER", flush=True)
            keep_port(above.folder, url)
        _work(options, above, url, stop, inbox)
    return Exit.DONE


def _section(options: argparse.Namespace) -> BrokerSection:
    """The settings of the site's own broker."""
    return BrokerSection(
        url=options.site_broker,
        port=options.port,
        password_file=options.broker_password_file,
        ca=options.broker_ca,
        insecure=options.insecure,
        enrolment=options.enrolment,
    )


def _work(
    options: argparse.Namespace, above: Connection, url: BrokerUrl, stop: threading.Event, inbox: BoundedInbox
) -> None:
    """Run the site's aggregator on its two links, until stopped or done."""
    # these imports need the extra `aggregator`, which --help must not need
    from device_runtime.aggregator.hierarchy.site import log_site
    from device_runtime.aggregator.hierarchy.site_host import SiteRules
    from device_runtime.aggregator.hierarchy.site_task import SiteProcess
    from device_runtime.aggregator.machine.ports import Ports
    from device_runtime.aggregator.serving.process import QUEUE_BYTES, QUEUE_LIMIT

    limit_lines()
    link_options = LinkOptions(
        subscriptions=(topics.FROM_DEVICES,),
        queue_limit=QUEUE_LIMIT,
        queue_bytes=QUEUE_BYTES,
        renewed=renewal(_section(options)),
    )
    below = Link(url, f"edge-{secrets.token_hex(4)}", inbox, link_options)
    seal = enrolled.offer_seal(options.enrolment, above.folder)
    agree = enrolled.key_agreement(options.enrolment)
    devices = enrolled.enrolled_devices(options.enrolment)
    ports = Ports(
        below,
        inbox,
        (log_site,),
        time.monotonic,
        url.mqtt5,
        seal,
        agree,
        devices,
        backlog=below.waiting_bytes,
    )
    rules = SiteRules(options.min_devices, options.min_contributions, options.late)
    settings = Settings(
        above.name,
        above.folder,
        above.folder,
        aggregator=above.key,
        secret=above.secret,
        allowed=masks_allowed(options),
        tags=tags(options),
    )
    with closing(SiteProcess(settings, secrets.randbits(32), rules, ports)) as edge:
        agent = edge.agent
        presence = LinkOptions(
            agent.will(), agent.subscriptions(), greeting=agent.greeting(), renewed=above.renewed
        )
        link = Link(above.url, above.client_id, agent.inbox, presence)
        if options.until_done:
            agent.leave_when_done()
        below.connect(stop=stop)
        try:
            if first_connection(link, stop):
                edge.run(link, stop, until_done=options.until_done)
        finally:
            link.close(agent.farewell())
            below.close()
