"""Settings of the device's own model, which it keeps, evaluates and may give an own head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PersonalModelSettings:
    """The owner's settings for the device's own model.

    `keep`: keep the served model after each round. `held_out`: the share of samples that are not trained on,
    but on which the model is evaluated; None: the default (`data.Selection`). `head`: train an own head,
    and use it where it is better on the held-out samples.
    """

    keep: bool = False
    held_out: float | None = 0.0
    head: bool = False
