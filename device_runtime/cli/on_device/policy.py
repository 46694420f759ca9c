"""`device-runtime policy`: shows whether this device may work now, and if not, why."""

from __future__ import annotations

import argparse
from pathlib import Path

from tabulate import tabulate

from device_runtime.cli.options import add_format, as_json
from device_runtime.device.connection.connecting import folder_of
from device_runtime.device.errors import NoDevice
from device_runtime.device.policy import work_gate
from device_runtime.device.policy.rules import Policy, RuleVerdict

from . import policy_options
from .policy_options import add_device_choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    policy_options.add_policy(parser)
    add_device_choice(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if the device may not work now. Without options, its rules are those of its last `join`.

    Rules that are given are judged for this machine also where no device has joined yet.
    """
    from . import join

    policy_options.configure(options, join.add_arguments)
    policy = policy_options.policy(options)
    try:
        folder = folder_of(options)
    except NoDevice:
        if options.flag_names <= {"format"} or {"name", "state"} & options.flag_names:
            raise
        folder = Path("/nonexistent")  # neither paused, nor with traffic
    rules = policy if policy != Policy() else work_gate.kept_policy(folder) or policy
    verdict = work_gate.OwnerRules(rules, folder, lambda: (0, 0)).verdict()
    if options.format == "json":
        print(as_json(verdict))
    else:
        print(verdict_text(verdict))
    return 0 if verdict.allows else 1


def verdict_text(verdict: RuleVerdict) -> str:
    """A line for each rule, and the verdict."""
    rows = [("yes" if rule.allows else "no", rule.name, rule.why) for rule in verdict.rules]
    end = "It may work now." if verdict.allows else "It may not work now."
    return "\n".join(filter(None, (tabulate(rows, tablefmt="plain"), end if rows else f"No rules. {end}")))
