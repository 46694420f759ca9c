"""Counts the bytes that a device sends and receives, by local day, and estimates its link's bandwidth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import msgspec

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.profiles import Bandwidth

log = logging.getLogger(__name__)

FILE = "traffic.json"
KEPT_DAYS = 62
WRITE_S, WRITE_BYTES = 60.0, 256 * 1024
"""A process that is killed loses the count of at most so many seconds, or so many bytes."""


class Day(msgspec.Struct, frozen=True):
    """Bytes of one day: MQTT messages with their topics and headers.

    Acknowledgements (4 bytes for each message), pings, and what TLS and TCP add are not counted.
    """

    up: int = 0
    down: int = 0


class TrafficLog:
    """Counts a link's bytes by day. If its file cannot be read or written, only the count is lost."""

    def __init__(
        self,
        folder: Path,
        today: Callable[[], date] = date.today,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._today, self._clock = folder / FILE, today, clock
        self.days = read(folder)
        self._totals = Day()
        self._unwritten, self._written_s = 0, clock()

    @property
    def bytes_today(self) -> int:
        """Sent and received."""
        day = self.days.get(self._today().isoformat(), Day())
        return day.up + day.down

    def saw(self, up: int, down: int) -> None:
        """Add what is new in the totals that the link has counted since it was made."""
        up, down = max(up, self._totals.up), max(down, self._totals.down)  # what never left is taken back
        new_up, new_down = up - self._totals.up, down - self._totals.down
        if new_up or new_down:
            name = self._today().isoformat()
            day = self.days.get(name, Day())
            self.days[name] = Day(day.up + new_up, day.down + new_down)
            self._totals = Day(up, down)
            self._unwritten += new_up + new_down
        late = self._clock() - self._written_s >= WRITE_S
        if self._unwritten and (late or self._unwritten >= WRITE_BYTES):
            self.write()

    def write(self) -> None:
        """Write the file durably."""
        for old in sorted(self.days)[:-KEPT_DAYS]:
            del self.days[old]
        self._unwritten, self._written_s = 0, self._clock()
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self.days)))
        except OSError as error:
            log.warning("traffic cannot be kept in %s: %s", self._path, error.strerror)


def read(folder: Path) -> dict[str, Day]:
    """The counts by day, "2026-11-22"; empty if there is no file, or it is damaged."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Day])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read, and is begun anew: %s", folder / FILE, error)
        return {}


LARGE_BYTES = 64 * 1024
"""Smaller transfers are ignored: they measure the round trip rather than the bandwidth."""


class LinkSpeed:
    """A moving average over large transfers, for each direction; assumed values hold until one is seen."""

    def __init__(self) -> None:
        self._up: float | None = None
        self._down: float | None = None

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Up and down, in bytes per second; None for a direction not seen yet."""
        return self._up, self._down

    @rates.setter
    def rates(self, rates: tuple[float | None, float | None]) -> None:
        self._up, self._down = rates

    def saw_up(self, size: int, seconds: float) -> None:
        """`size` bytes took `seconds` from sending to the receipt."""
        self._up = _averaged(self._up, size, seconds)

    def saw_down(self, size: int, seconds: float) -> None:
        """`size` bytes took `seconds` from asking to having them."""
        self._down = _averaged(self._down, size, seconds)

    def over(self, assumed: Bandwidth) -> Bandwidth:
        """The bandwidth seen, or assumed where none was, in bytes per second."""
        if self._up is None and self._down is None:
            return assumed
        return Bandwidth(self._up or assumed.up, self._down or assumed.down, "seen in earlier rounds")


def _averaged(average: float | None, size: int, seconds: float, rate: float = 0.5) -> float | None:
    if size < LARGE_BYTES or seconds <= 0:
        return average
    latest = size / seconds
    return latest if average is None else (1 - rate) * average + rate * latest
