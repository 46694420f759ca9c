"""Saves which devices are present and asked, and the fruitless deadlines of the open round."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.rounds.events import DevicePresent, Forgotten
from device_runtime.aggregator.rounds.state import RoundsState, Saved

from .database import Database

log = logging.getLogger(__name__)

_ATTEND = "INSERT INTO present VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET boot = excluded.boot"
_ASK = "INSERT INTO asked VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET round = excluded.round"
_FRUITLESS = """INSERT INTO fruitless VALUES (?, ?)
ON CONFLICT (round) DO UPDATE SET deadlines = excluded.deadlines"""


class SavedSession:
    """What a restart needs in addition to rounds and contributions. Raises as Database.

    It holds the changes of presence that are not on the disk yet; all else is durable at once.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._changed: set[str] = set()
        self._forgotten: set[str] = set()

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        rows = self._db.rows("SELECT round, phase FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        number, phase = rows[0]
        counted = self._db.rows("SELECT device, round FROM contributions WHERE into_round = ?", number)
        answered = frozenset(row["device"] for row in counted if row["round"] == number)
        voices = Counter(row["device"] for row in counted)
        asked = {row["device"]: row["round"] for row in self._db.rows("SELECT device, round FROM asked")}
        present = {row["device"]: row["boot"] for row in self._db.rows("SELECT device, boot FROM present")}
        fruitless = self._fruitless(number)
        return Saved(number, phase, voices, answered, asked, present=present, fruitless=fruitless)

    def ask(self, number: int, devices: Iterable[str], earliest: int) -> None:
        """Stores that devices of a cohort were asked for a round.

        Only the latest round of each device is kept, and none before `earliest`.
        """
        with self._db.commit() as db:
            db.execute("DELETE FROM asked WHERE round < ?", (earliest,))
            db.executemany(_ASK, [(device, number) for device in devices])

    def fruitless(self, number: int, deadlines: int) -> None:
        """Stores how many deadlines of an open round were fruitless in a row; see RoundsState."""
        if deadlines != self._fruitless(number):
            with self._db.commit() as db:
                db.execute(_FRUITLESS, (number, deadlines))

    def _fruitless(self, number: int) -> int:
        rows = self._db.rows("SELECT deadlines FROM fruitless WHERE round = ?", number)
        return rows[0]["deadlines"] if rows else 0

    def note(self, event: DevicePresent | Forgotten) -> None:
        """Notes that a device came, went, is ready, or is to be forgotten."""
        self._changed.add(event.device)
        if isinstance(event, Forgotten):
            self._forgotten.add(event.device)

    def settle(self, state: RoundsState) -> None:
        """Writes the changes of presence; if the disk refuses them, they are written the next time."""
        if not self._changed:
            return
        known = {device: state.devices.get(device) for device in self._changed}
        here = [(device, one.boot) for device, one in known.items() if one and one.online and one.ready]
        gone = self._changed - dict(here).keys()
        try:
            with self._db.commit() as db:
                db.executemany(_ATTEND, here)
                db.executemany("DELETE FROM present WHERE device = ?", [(device,) for device in gone])
                forgotten = [(device,) for device in self._forgotten if device not in state.asked]
                db.executemany("DELETE FROM asked WHERE device = ?", forgotten)
        except RunFolderError as error:
            log.warning("the presence of devices is not stored: %s", error)
        else:
            self._changed.clear()
            self._forgotten.clear()
