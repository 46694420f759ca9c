"""One task as this device has it: the model on its engine, the local data, what both cost here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from broker.messages import Hello, Offer
from models.bundle import Bundle
from models.engines import EngineWish, engine_choice, open_model
from models.tensors import Tensors
from profiles import DeviceProfile, Speed
from strategies import registry
from strategies.workload import workload

from . import data as local_data
from .link_speed import LinkSpeed
from .measuring import SpeedCache, cache_key, measure, profile
from .watching import Pretence, own_memory, rest, watcher
from .work import Assignment, Equipment, Listener, Outcome, corrected, perform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How a device takes part. `memory_bytes` limits the process; None leaves what the machine has free."""

    name: str
    data: Path
    folder: Path
    pretence: Pretence | None = None
    memory_bytes: int | None = None
    engine: EngineWish = field(default_factory=EngineWish)


class DeviceTask:
    """Made once the bundle is here: loads the data, opens the engine, measures or remembers its speed."""

    def __init__(
        self, settings: Settings, bundle: Bundle, clock: Callable[[], float], link: LinkSpeed
    ) -> None:
        """`link` goes on being told of what is seen. Raises DataError, ModelError, OutOfMemory."""
        self.settings = settings
        self.manifest = bundle.manifest
        data = local_data.load(settings.data, bundle.manifest)
        self.watcher = watcher(settings.pretence, settings.memory_bytes)
        self.model = open_model(bundle, settings.engine, watch=self.watcher)
        self._engine = f"{engine_choice(bundle, settings.engine.engine)}"
        self._virtual = settings.pretence if settings.pretence and settings.pretence.time else None
        self._speed = speed = self._virtual.profile.speed if self._virtual else self._measured(bundle, clock)
        self._link = link
        self._rest()
        self.profile = self._as_it_is_now()
        counts = data.class_counts(len(bundle.manifest.labels))
        self._equipment = Equipment(
            settings.name, self.model, data, workload(bundle.manifest, counts), self.watcher, clock
        )
        log.info(
            "%d samples of %d classes; %.2f ms a forward pass (%s)",
            len(data),
            sum(n > 0 for n in counts),
            1e3 * speed.of("forward", bundle.manifest.graphs["forward"].flops),
            speed.source,
        )

    def hello(self, boot: int) -> Hello:
        """Who joins, now that it is known."""
        return Hello(
            boot=boot,
            num_examples=len(self._equipment.data),
            profile=self.profile.name,
            memory_bytes=self.profile.memory.limit_bytes,
            engine=self.profile.engine,
        )

    def perform(self, offer: Offer, base: Tensors, deadline: float, listener: Listener) -> Outcome:
        """The round's work from this base model; see `work.perform`. Learns from how long it took.

        What the listener raises ends the work and goes to the caller.

        Raises KindError when no kind of the offer can be done here, TensorError for a base that does not fit.
        """
        self.model.load(base)
        self.profile = replace(self._as_it_is_now(), corrections=self.profile.corrections)
        self.watcher.limit_bytes = self.profile.memory.limit_bytes
        here = replace(self._equipment.workload, download_bytes=0)
        outcome = perform(
            replace(self._equipment, workload=here, progress=listener.progress),
            self.profile,
            Assignment(registry.known(offer.kinds), offer.seed, deadline, listener.decided),
        )
        self.profile = replace(self.profile, corrections=corrected(self.profile, outcome))
        self._rest()
        return outcome

    def _measured(self, bundle: Bundle, clock: Callable[[], float]) -> Speed:
        speeds = SpeedCache(self.settings.folder / "speed.json")
        key = cache_key(bundle.sha256, f"{self._engine} {self.settings.engine}", self.settings.pretence)
        return speeds.get(key, lambda: measure(self.model, clock))

    def _as_it_is_now(self) -> DeviceProfile:
        """Memory that is free, battery and temperature change from round to round; the speed was measured."""
        if self._virtual:
            return own_memory(replace(self._virtual.profile, engine=self._engine), self.settings.memory_bytes)
        now = profile(self._speed, self._engine, self.settings.pretence)
        if self.settings.pretence is None:  # else it is the link of the board
            now = replace(now, bandwidth=self._link.over(now.bandwidth))
        return own_memory(now, self.settings.memory_bytes)

    def _rest(self) -> None:
        """Between rounds: no sessions, and their memory given back."""
        self.model.unload()
        if not self._virtual:
            rest()
