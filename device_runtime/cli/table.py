"""The table of all commands: group, module, help, example, and the extra that each needs.

`cli` lists the commands from this table without importing one, so that help is quick on a small board.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from textwrap import wrap
from typing import NamedTuple

from device_runtime.extras import EXTRAS

DEVICE, OPERATOR, RESEARCHER = "device", "operator", "researcher"
GROUPS = {
    DEVICE: "On a device",
    OPERATOR: "For the operator of an aggregator",
    RESEARCHER: "For a researcher",
}
"""Group of users -> the heading above their commands."""

WITHIN = {"simulation": ("aggregator",)}
"""Extra -> the other extras that it installs."""


class Command(NamedTuple):
    """A command: `module` has add_arguments and run; `needs` is the extra without which it cannot run."""

    group: str
    module: str
    help: str
    example: str
    needs: str = ""


COMMANDS = {
    "join": Command(
        DEVICE,
        "device_runtime.cli.on_device.join",
        "Join a task as a device: measure, choose, train, send.",
        "device-runtime join mqtt://127.0.0.1:1883 --data samples/ --name kitchen-pi",
    ),
    "doctor": Command(
        DEVICE,
        "device_runtime.cli.on_device.doctor",
        "Examine this device: engines, memory, storage, a training step; its broker, TLS, access, clock.",
        "device-runtime doctor --bundle digits-wrn-10-1",
    ),
    "data": Command(
        DEVICE,
        "device_runtime.cli.on_device.data",
        "Check local data as a task would read it: samples of each class, what is left out and why.",
        "device-runtime data check samples/ --bundle digits-wrn-10-1",
    ),
    "explain": Command(
        DEVICE,
        "device_runtime.cli.on_device.explain",
        "Explain which kind of update this device would choose, and what each would cost.",
        "device-runtime explain --as pi-zero-2w --slow 25 --samples 180 --deadline 3",
    ),
    "profile": Command(
        DEVICE,
        "device_runtime.cli.on_device.profile",
        "Measure this device: memory, cores, speed on a bundle, link, power, battery.",
        "device-runtime profile --bundle digits-wrn-10-1",
    ),
    "measure": Command(
        DEVICE,
        "device_runtime.cli.on_device.measure",
        "Measure each kind of update on this device: time, energy, memory, bytes; compare the prediction.",
        "device-runtime measure --kinds full,few-shot,zeroth-order --repeats 3 --csv kinds.csv",
    ),
    "predict": Command(
        DEVICE,
        "device_runtime.cli.on_device.predict",
        "Classify a picture, a sound, a text or an array with the model that this device keeps.",
        "device-runtime predict photo.png --top 2",
    ),
    "policy": Command(
        DEVICE,
        "device_runtime.cli.on_device.policy",
        "Show which rules hold for this device, and whether they let it work now.",
        "device-runtime policy --battery-above 40 --between 22:00-06:30",
    ),
    "pause": Command(
        DEVICE,
        "device_runtime.cli.on_device.pause",
        "Pause the work of this device until `resume`; it stays connected.",
        "device-runtime pause --name kitchen-pi",
    ),
    "resume": Command(
        DEVICE,
        "device_runtime.cli.on_device.resume",
        "End a pause; the other rules of this device hold as before.",
        "device-runtime resume --name kitchen-pi",
    ),
    "traffic": Command(
        DEVICE,
        "device_runtime.cli.on_device.traffic",
        "Show the bytes that this device sent and received, day by day.",
        "device-runtime traffic --name kitchen-pi",
    ),
    "leave": Command(
        DEVICE,
        "device_runtime.cli.on_device.leave",
        "Stop this device, say goodbye, and remove its service, credentials, models and caches.",
        "device-runtime leave --name kitchen-pi",
    ),
    "serve": Command(
        OPERATOR,
        "device_runtime.cli.operator.serve",
        "Run the rounds of a task: offer, collect, merge, evaluate.",
        "device-runtime serve --bundle digits-wrn-10-1 --rounds 15 --deadline 3 --run-dir runs/digits",
        "aggregator",
    ),
    "serve-init": Command(
        OPERATOR,
        "device_runtime.cli.operator.serve_init",
        "Write a production site: settings, enrolment, Compose with TLS, Prometheus, Grafana, backup.",
        "device-runtime serve-init /srv/fl --name fl.example.org",
        "aggregator",
    ),
    "models": Command(
        OPERATOR,
        "device_runtime.cli.operator.models",
        "List the models that a run has served, go back to one, or write the served one as ONNX.",
        "device-runtime models runs/digits --rollback 7",
        "aggregator",
    ),
    "backup": Command(
        OPERATOR,
        "device_runtime.cli.operator.backup",
        "Write a run folder into an archive, while `serve` goes on with it.",
        "device-runtime backup runs/digits digits.tar",
        "aggregator",
    ),
    "audit": Command(
        OPERATOR,
        "device_runtime.cli.operator.audit",
        "Show what operators did to a run or an enrolment: when, who, from where, with which result.",
        "device-runtime audit runs/digits enrolment",
    ),
    "broker": Command(
        OPERATOR,
        "device_runtime.cli.operator.broker",
        "Start an MQTT broker on this machine, until Ctrl-C; or set one up for production (init).",
        "device-runtime broker --port 1883",
    ),
    "device": Command(
        OPERATOR,
        "device_runtime.cli.operator.device",
        "Enrol a device at a broker of your own, revoke it, or list them.",
        "device-runtime device add kitchen-pi --dir enrolment",
    ),
    "edge": Command(
        OPERATOR,
        "device_runtime.cli.operator.edge",
        "Run the aggregator of a site, which is a device of the aggregator above it.",
        "device-runtime edge mqtt://127.0.0.1:1883 --name site-a --broker auto",
        "aggregator",
    ),
    "mask-helper": Command(
        OPERATOR,
        "device_runtime.cli.operator.mask_helper",
        "Run a mask helper: it sums masks, so that an aggregator sees sums of updates, and no single one.",
        "device-runtime mask-helper mqtt://127.0.0.1:1883 --name club --min-group 10",
    ),
    "web": Command(
        OPERATOR,
        "device_runtime.cli.operator.web",
        "Fetch the libraries of the page by which browsers join (serve --web).",
        "device-runtime web fetch",
        "service",
    ),
    "bundle-wheels": Command(
        OPERATOR,
        "device_runtime.cli.operator.bundle_wheels",
        "Download the wheels that a device of another platform installs without a network.",
        "device-runtime bundle-wheels --platform linux-aarch64 --python 3.11 wheels/",
    ),
    "demo": Command(
        RESEARCHER,
        "device_runtime.cli.research.demo",
        "Run eight emulated devices, a real broker and an aggregator here, on handwritten digits.",
        "device-runtime demo --seeds 3 --run-dir runs/three-seeds",
        "simulation",
    ),
    "new": Command(
        RESEARCHER,
        "device_runtime.cli.research.new",
        "Write a small project to begin with: a network, data, a task and a fleet that run as they stand.",
        "device-runtime new shapes",
    ),
    "fleet": Command(
        RESEARCHER,
        "device_runtime.cli.research.fleet",
        "Predict time, memory and energy of each kind of update for a fleet, and who is a straggler.",
        "device-runtime fleet mixed --devices 200 --deadline '30% stragglers' --out fleet.png",
        "simulation",
    ),
    "simulate": Command(
        RESEARCHER,
        "device_runtime.cli.research.simulate",
        "Simulate a fleet of devices on virtual time, under one policy or several, and report.",
        "device-runtime simulate mixed --devices 200 --compare kinds=choose,drop,few-shot --seeds 3",
        "simulation",
    ),
    "compare": Command(
        RESEARCHER,
        "device_runtime.cli.research.compare",
        "Show finished comparisons side by side in one table.",
        "device-runtime compare runs/mixed runs/mixed-2",
        "simulation",
    ),
    "partition": Command(
        RESEARCHER,
        "device_runtime.cli.research.partition",
        "Divide a data set among devices; show how uneven that is, as a table and a picture.",
        "device-runtime partition --devices 20 --partition dirichlet --alpha 0.1 --out partition.png",
        "simulation",
    ),
    "kinds": Command(
        RESEARCHER,
        "device_runtime.cli.research.kinds",
        "List the kinds of update, or the settings of one: default, range, unit, meaning.",
        "device-runtime kinds full",
    ),
    "systems": Command(
        RESEARCHER,
        "device_runtime.cli.research.systems",
        "List the systems of the papers, by the names that serve and simulate know them by.",
        "device-runtime systems fedncm+ft+fedadam",
    ),
    "export": Command(
        RESEARCHER,
        "device_runtime.cli.research.export",
        "Write a torch module as a bundle that devices run without torch.",
        "device-runtime export wrn --set depth=10 --set width=1 --set in_channels=1 --set classes=10 "
        "--input 1,8,8 --labels 0,1,2,3,4,5,6,7,8,9 --out digits",
        "torch",
    ),
    "inspect": Command(
        RESEARCHER,
        "device_runtime.cli.research.inspect",
        "Show what is in a bundle: parameters, graphs, their cost, hashes.",
        "device-runtime inspect digits-wrn-10-1",
    ),
}
WIDEST = max(len(name) for name in COMMANDS)


def missing_extra(command: Command) -> str:
    """The extra that the command needs, if it is not installed here, else ''."""
    extras = (command.needs, *WITHIN.get(command.needs, ()))
    complete = all(find_spec(module) for extra in extras if extra for module in EXTRAS[extra].modules)
    return "" if complete else command.needs


def extra_for(command: Command, module: str) -> str | None:
    """The extra to install for a command that lacks `module`; None if no extra installs it."""
    provider = next((extra for extra, its in EXTRAS.items() if module.split(".")[0] in its.modules), None)
    return command.needs if provider in WITHIN.get(command.needs, ()) else provider


def overview(width: int) -> str:
    """All commands, grouped by who uses them, in lines of at most `width` characters."""
    return "\n".join(_overview(width))


def _overview(width: int) -> Iterator[str]:
    yield "usage: device-runtime COMMAND [OPTIONS]"
    yield ""
    yield "On-device training for federated learning that leaves no device behind."
    lacking = {name: missing_extra(command) for name, command in COMMANDS.items()}
    for group, heading in GROUPS.items():
        yield f"\n{heading}:"
        for name, command in COMMANDS.items():
            if command.group == group:
                mark = f" (needs the extra `{lacking[name]}`)" if lacking[name] else ""
                first = f"  {name:<{WIDEST + 2}}"
                yield from wrap(
                    command.help + mark,
                    max(width, 40),
                    initial_indent=first,
                    subsequent_indent=" " * len(first),
                )
    yield ""
    if any(lacking.values()):
        yield "An extra is installed with pip install 'device-runtime[EXTRA]'."
    yield "`device-runtime COMMAND --help` says more, with an example."
