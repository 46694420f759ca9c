"""A worker process: opens its world, takes jobs from the board, leaves results in shared memory."""

from __future__ import annotations

import importlib
import mmap
import os
import shutil
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from broker.messages import Kind
from models.bundle import Bundle
from models.engines import open_model
from models.freed_memory import give_back
from simulation.clients import Clients
from strategies import registry
from strategies.kind import AnyStrategy

from . import packing
from .job import Failed, Result, World, train
from .packing import PackedJob, Ready
from .processes_launch import Order, divided
from .processes_memory import Board, Shared

TOUCHED_BYTES = 8 << 20
"""Of mapped samples that are kept in a worker's memory; they stay in the system's page cache."""


class BasePlace(msgspec.Struct, frozen=True, array_like=True):
    """The byte that a base model begins at, and of each of its tensors a number that is its content's."""

    start: int
    versions: tuple[int, ...]


class Wave(msgspec.Struct, frozen=True, array_like=True):
    """Jobs, and where things lie: result i in slot i % slots, of `slot_bytes`; base b at `bases[b]`."""

    kinds: tuple[Kind, ...]
    jobs: tuple[PackedJob, ...]
    slots: int
    slot_bytes: int
    bases: dict[int, BasePlace]


def main(text: str) -> None:
    """The whole life of a worker; `text` has an Order in JSON, or several: then some are done by copies."""
    orders = msgspec.json.decode(text, type=tuple[Order, ...])
    if len(orders) > 1:
        importlib.import_module("models.torch_engine")
    order = divided(orders)
    with suppress(EOFError, ConnectionError), Connection(order.link) as link:
        try:
            worker = Worker(order)
        except Exception as error:
            link.send_bytes(packing.pack(packing.broke(-1, error)))
            return
        give_back()
        link.send_bytes(packing.pack(Ready(os.getpid())))
        while True:
            job = worker.take()
            if job is None:
                link.recv_bytes()
            else:
                link.send_bytes(packing.pack(worker.do(job)))
    if order.made:  # the parent is gone: it ends its workers by a signal
        shutil.rmtree(order.clients, ignore_errors=True)


class Worker:
    """One engine, and what it has loaded."""

    def __init__(self, order: Order) -> None:
        """Raises BundleError, EngineError, OSError."""
        self._number = order.number
        self._board = Board(Shared(order.board))
        self._described, self._bases, self._results = map(Shared, (order.wave, order.bases, order.results))
        bundle = Bundle.open(order.bundle)
        self._world = World(bundle, Clients.open(Path(order.clients)), order.engine)
        self._model = open_model(bundle, order.engine)
        self._stored = bundle.manifest.stored()
        self._wave_number, self._touched = 0, 0
        self._loaded: tuple[int, ...] = ()
        self._wave = Wave((), (), 1, 0, {})
        self._strategies: dict[int, AnyStrategy] = {}

    def take(self) -> int | None:
        """The next job's number. Learns of a new wave."""
        text = b""
        with self._board.locked():
            number, size = self._board.wave
            if number != self._wave_number:
                text = self._described.read(size)
            job = self._board.take(self._number)
        if text:
            self._wave = msgspec.msgpack.decode(text, type=Wave)
            self._strategies, self._wave_number = {}, number
        return job

    def do(self, number: int) -> packing.Reply:
        """One job of the wave, the tensors of its result in its slot."""
        packed = self._wave.jobs[number]
        try:
            self._load(self._wave.bases[packed.base])
            job = packing.unpack_job(packed, self._strategy(packed.strategy))
            result = train(self._model, self._world, job)
            self._leave(number, result)
            self._forget(packed.device)
            return packing.headline(number, result)
        except Exception as error:
            return packing.broke(number, error)

    def _strategy(self, number: int) -> AnyStrategy:
        if number not in self._strategies:
            self._strategies[number] = registry.read(self._wave.kinds[number])
        return self._strategies[number]

    def _load(self, base: BasePlace) -> None:
        """Only what is new; what was loaded of it before an error is loaded again."""
        if base.versions == self._loaded:
            return
        mapped = self._bases.view(base.start + packing.size_of(self._stored))
        found = packing.views(mapped, self._stored, base.start)
        before = self._loaded or (0,) * len(self._stored)
        pairs = zip(self._stored, before, base.versions, strict=True)
        self._loaded = ()
        self._model.load({spec.name: found[spec.name] for spec, old, new in pairs if old != new})
        self._loaded = base.versions

    def _leave(self, number: int, result: Result) -> None:
        if isinstance(result, Failed):
            return
        start = number % self._wave.slots * self._wave.slot_bytes
        for spec, place in packing.places(packing.specs_of(result.tensors)):
            self._results.write(result.tensors[spec.name], start + place)

    def _forget(self, device: int) -> None:
        """Samples that were read count as this process' memory until it says that it is done with them."""
        x: Any = self._world.clients.x
        self._touched += len(self._world.clients.indices(device)) * (x.nbytes // max(len(x), 1))
        if self._touched > TOUCHED_BYTES:
            self._touched = 0
            _let_go(x)


def _let_go(x: Any) -> None:
    """Pages of a memory-mapped array; the next reader finds them again in the page cache."""
    mapped = getattr(x, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
