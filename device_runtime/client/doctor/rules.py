"""What the owners of the devices here have ruled, and whether that lets them work now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from device_runtime.client.errors import PolicyError
from device_runtime.client.policy import owner_rules as owner
from device_runtime.client.policy.rules import Policy

from .installation import Finding


def rules(folder: Path) -> Iterator[Finding]:
    """Of the device whose folder this is, and of those whose folders are in it; as they last joined.

    A device without rules, and not paused, is not named.
    """
    below = sorted(path.parent for path in folder.glob(f"*/{owner.POLICY}"))
    for one in (folder, *below):
        what = "rules" if one == folder else f"rules of {one.name}"
        try:
            policy = owner.kept(one) or Policy()
        except PolicyError as error:
            yield Finding(what, "missing", str(error), "join again")
            continue
        verdict = owner.Owner(policy, one, lambda: (0, 0)).judged()
        if verdict.rules:
            said = "; ".join(verdict.reasons or [rule.why for rule in verdict.rules])
            if verdict.allows:
                yield Finding(what, "ok", f"work may be done now: {said}")
            else:
                yield Finding(what, "missing", f"no work may be done now: {said}")
