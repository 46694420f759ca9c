"""What a site does, in the log: one line a round."""

from __future__ import annotations

import logging

from device_runtime.aggregator.views.console_log import size, who
from device_runtime.aggregator.views.listener import DeviceSeen, Happening, RoundClosed, RoundOpened, Started

log = logging.getLogger(__name__)


def tell(happening: Happening) -> None:
    """An observer."""
    match happening:
        case Started():
            log.info(
                "site of task %r: run %s%s", happening.task.name, happening.run, _again(happening.resumed)
            )
        case DeviceSeen(device=device, online=False):
            log.info("site: %s has gone", device)
        case RoundOpened():
            again = f", again, with {happening.contributions} contributions" if happening.again else ""
            log.info("site round %d: %s, %.1f s%s", *_opened(happening), again)
        case RoundClosed(record=record):
            log.info(
                "site round %d closed: %s, %s up, %s down, %.1f s%s",
                record.round,
                who(happening) or "nobody",
                size(record.bytes_up),
                size(record.bytes_down),
                record.duration_s,
                f" ({happening.note})" if happening.note else "",
            )


def _opened(happening: RoundOpened) -> tuple[int, str, float]:
    return happening.round, ", ".join(happening.kinds), happening.deadline_s


def _again(resumed: bool) -> str:
    return ", which goes on" if resumed else ""
