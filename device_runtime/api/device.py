"""A device that takes part in tasks, and the model that it keeps: what `join` and `predict` do."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from device_runtime.broker.wire.topics import check_task
from device_runtime.device.agent.instance import JoinedDevice, WorkRules, backend_for, pause_on_signals
from device_runtime.device.connection.connecting import connect, enrol, folder_of, no_trace
from device_runtime.device.delivery.downloads import half_of_room
from device_runtime.device.energy import AUTO, MODELLED, find_meter
from device_runtime.device.errors import InUse
from device_runtime.device.personal.predictions import Personal
from device_runtime.device.policy.rules import Policy
from device_runtime.device.policy.work_gate import ProcessPriority
from device_runtime.device.training.settings import PersonalModelSettings, Settings, check_policy
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.data import SampleSource
from device_runtime.profiles.device import Emulation
from device_runtime.service_process import stopped_by_signals
from device_runtime.strategies.kinds.names import check_kinds
from device_runtime.strategies.terms.accountant import PrivacyBudget
from device_runtime.tags import check_tags
from device_runtime.user_account import expanded

from .background import BackgroundRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceOptions:
    """Limits and rules of a device; docs/policies.md and docs/energy.md describe them.

    memory_bytes: the most that work may take; None: what is free. disk_bytes: the most that models may take;
    None: half of the room. priority: None leaves this process as it is. privacy: the most that all tasks
    together may spend. meter: the name of an energy meter. in_process: work in this process, not in one that
    ends when idle. choose: the name of the choice policy; empty: the first update that fits. tags: what the
    device is, by which tasks select ("kitchen", "floor=2").
    """

    engine: EngineSettings = field(default_factory=EngineSettings)
    policy: Policy = field(default_factory=Policy)
    priority: ProcessPriority | None = None
    personal: PersonalModelSettings = field(default_factory=lambda: PersonalModelSettings(True, None, False))
    privacy: PrivacyBudget | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    meter: str = AUTO
    in_process: bool = False
    choose: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tags(self.tags)


@dataclass(frozen=True)
class _Place:
    """The broker and the device's folder, as `connect` takes them."""

    broker: str | None = None
    name: str | None = None
    state: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False
    password_file: Path | None = None


class Device:
    """A device that takes part in tasks with its own samples, which never leave it.

    broker: mqtts://user@host, wss://.., with the password in DEVICE_RUNTIME_PASSWORD; None: as enrolled.
    data: class folders, .npz, .csv, pictures, .wav, .txt or sqlite:FILE?QUERY (docs/data.md).
    name: of the device (default: as enrolled, the user of the URL, or the host's name). state: its folder
    (default: by its name, in the user's state folder). token: enrols it first.
    task: join this one only (default: whichever there is). emulate: the name of a board to be as slow as.
    options: limits and rules.

    Made, it does nothing yet. Raises DataError if there are no samples, EnrolmentError for a bad token,
    ProfileError for an unknown board.

    >>> with Device("mqtt://127.0.0.1:1", data="samples.npz", name="pi", state="pi") as device:
    ...     device.start()
    ...     device.running
    True
    """

    def __init__(
        self,
        broker: str | None = None,
        *,
        data: str | Path | SampleSource,
        name: str | None = None,
        state: str | Path | None = None,
        token: str | None = None,
        task: str = "",
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        insecure: bool = False,
        emulate: Emulation | str | None = None,
        options: DeviceOptions | None = None,
    ) -> None:
        self._place = _Place(broker, name, _path(state), _path(ca), _path(cert), _path(key), insecure)
        if token is not None:
            self._place = replace(self._place, name=enrol(token, self._place).name)
        self._data = SampleSource.of(data).check()
        self._task = check_task(task) if task else ""
        self._emulation = Emulation.of(emulate) if isinstance(emulate, str) else emulate
        self._options = options or DeviceOptions()
        check_kinds(self._options.policy.allowed.kinds)
        if self._options.choose:
            check_policy(self._options.choose)
        self._joined: JoinedDevice | None = None
        self._stopped = False
        self._background: BackgroundRun | None = None

    def run(self, until_done: bool = False) -> None:
        """Takes part until Ctrl-C, SIGTERM or `stop` or, with `until_done`, until the task is done.

        Waits for a broker that cannot be reached. Raises UrlError, EnrolmentError, BrokerRefused, NoDevice
        for a state folder with other files, and InUse while another process, or an earlier start, is this
        device.
        """
        self._check_idle()
        self._stopped = False
        self._run(until_done)

    def start(self, until_done: bool = False) -> None:
        """Takes part in a thread of its own, as `run` does; `wait` and `stop` raise its errors.

        Raises InUse while an earlier start still runs.
        """
        self._check_idle()
        self._stopped = False
        self._background = BackgroundRun(lambda: self._run(until_done), "device")

    def _check_idle(self) -> None:
        if self.running:
            raise InUse("this device is running already: call stop() first")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until what `start` began has ended; False if it has not after `timeout_s` seconds."""
        return self._background is None or self._background.wait(timeout_s)

    def stop(self) -> None:
        """Ends what `start` or `run` began; the current update is kept for the next time."""
        self._stop_joined()
        self.wait()

    @property
    def running(self) -> bool:
        """Whether what `start` began has not ended yet."""
        return self._background is not None and self._background.running

    def model(self) -> Personal:
        """The model that this device keeps. Raises NothingKept before its first round."""
        return Personal.open(connect(self._place).folder, self._options.engine)

    def _run(self, until_done: bool) -> None:
        connection = connect(self._place)
        with no_trace(connection.folder) as joined, stopped_by_signals(self._stop_joined, second_kills=False):
            pause_on_signals(connection.folder)
            if self._place.insecure and not connection.url.secure:
                log.warning("insecure: passwords and updates cross the network in the clear")
            options, meter = self._options, self._options.meter
            if self._emulation is not None:
                meter = MODELLED
            room = half_of_room(connection.folder) if options.disk_bytes is None else options.disk_bytes
            settings = Settings(
                connection.name,
                self._data,
                connection.folder,
                emulation=self._emulation,
                memory_bytes=options.memory_bytes,
                engine=options.engine,
                owner=options.privacy,
                aggregator=connection.key,
                task=self._task,
                meter=find_meter(meter).meter if options.in_process else None,
                personal=options.personal,
                disk_bytes=room,
                secret=connection.secret,
                allowed=options.policy.allowed,
                choose=options.choose,
                tags=options.tags,
            )
            rules = WorkRules(backend_for(meter, options.in_process), options.policy, options.priority)
            self._joined = JoinedDevice(connection, settings, rules)
            if self._stopped:
                self._joined.stop()
            self._joined.run(until_done, joined)

    def _stop_joined(self) -> None:
        self._stopped = True
        if self._joined is not None:
            self._joined.stop()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def load(
    state: str | Path | None = None, *, name: str | None = None, engine: EngineSettings | None = None
) -> Personal:
    """The model that a device of this machine keeps: `load("state/").predict("photo.png")`.

    state: the device's folder; name: the device's name; neither: the only device here. Raises NoDevice, and
    NothingKept before the device's first round.
    """
    return Personal.open(folder_of(_Place(name=name, state=_path(state))), engine)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else expanded(path)
