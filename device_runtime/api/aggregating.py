"""An aggregator of one or several tasks: what `device-runtime serve` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.errors import ConfigError, RunInUse
from device_runtime.aggregator.serving.process import Process
from device_runtime.aggregator.tasks.task import Task
from device_runtime.user_account import expanded

from .background import BackgroundRun

READY_S = 0.05
"""Seconds between looks at whether the service has failed, while it starts."""


class Aggregator:
    """An aggregator that offers rounds to devices, merges their updates and serves the model.

    tasks: what is learnt. broker: mqtts://.., or auto, which starts one on this machine.
    run_dir: keep the run here, and go on with one that is there (default: runs/NAME); with several tasks,
    the folder of their run folders.
    port: of the broker that auto starts. ca: the authority of the broker's certificate. enrolment: a folder
    of `device-runtime broker init`, with broker, credential and key of offers. insecure: allow mqtt:// over
    a network. http: HOST:PORT of dashboard, REST and metrics (default: none). workers: processes that check
    small contributions. settings: a file of docs/service.md; the arguments stand over it. quiet: print only
    the tables at the end.

    Made, it does nothing yet. Raises ConfigError for settings that do not fit each other.

    >>> task = Task(bundle="digits-wrn-10-1", rounds=1)
    >>> with Aggregator(task, run_dir="runs/first", quiet=True) as service:
    ...     service.start()
    ...     service.url.startswith("mqtt://127.0.0.1:")
    True
    stopped in round ...; the same command goes on with it
    """

    def __init__(
        self,
        *tasks: Task,
        broker: str | None = None,
        run_dir: str | Path | None = None,
        port: int | None = None,
        ca: str | Path | None = None,
        enrolment: str | Path | None = None,
        insecure: bool = False,
        http: str | None = None,
        workers: int | None = None,
        settings: str | Path | None = None,
        quiet: bool = False,
    ) -> None:
        if not tasks:
            raise ConfigError("no task is given: expected one or more, as Task(bundle=..)")
        at_broker = {
            "url": broker,
            "port": port,
            "ca": _path(ca),
            "enrolment": _path(enrolment),
            "insecure": insecure or None,
        }
        values = {
            "run_dir": _path(run_dir),
            "workers": workers,
            "broker": _without_none(at_broker),
            "http": None if http is None else config.http_keys(http, "http"),
        }
        self._server = config.load(_path(settings), _without_none(values))
        if self._server.tasks:
            raise ConfigError(f"{settings} has tasks: leave them out, and give Task objects")
        self._tasks, self._quiet = tasks, quiet
        self._process = self._new_process()
        self._background: BackgroundRun | None = None

    def run(self) -> None:
        """Serves until all tasks are done, or Ctrl-C, SIGTERM or `stop`; may be called again to go on.

        Raises AggregatorError, BrokerError, ModelError; NoContributions where a task was abandoned, after the
        other tasks are done; RunInUse while an earlier start still runs.
        """
        self._check_idle()
        self._process = self._new_process()
        self._process.run()

    def start(self) -> None:
        """Serves in a thread of its own; returns once devices can join. Raises as `run` does.

        Raises RunInUse while an earlier start still runs.
        """
        self._check_idle()
        self._process = self._new_process()
        self._background = BackgroundRun(self._process.run, "aggregator")
        while not self._process.ready.wait(READY_S):
            if not self._background.running:
                self._background.wait()
                return

    def _check_idle(self) -> None:
        if self._background is not None and self._background.running:
            raise RunInUse("this aggregator is running already: call stop() first")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until all tasks are done; False if they are not after `timeout_s` seconds.

        Raises the errors of what `start` began.
        """
        return self._background is None or self._background.wait(timeout_s)

    def stop(self) -> None:
        """Ends what `start` or `run` began; a later run goes on with it. Raises the errors of `wait`."""
        self._process.stop()
        self.wait()

    @property
    def url(self) -> str:
        """The broker's URL, where devices join, without a password; empty before the start."""
        return self._process.url

    @property
    def http_url(self) -> str:
        """The address of dashboard and REST; empty before the start, and without `http`."""
        return self._process.http_url

    @property
    def folders(self) -> tuple[Path, ...]:
        """The run folder of each task."""
        return tuple(self._process.folders)

    @property
    def done(self) -> bool:
        """Whether all tasks are done."""
        return self._process.done

    def __enter__(self) -> Aggregator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _new_process(self) -> Process:
        return Process(self._server, self._tasks, self._quiet)


def _without_none(keys: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in keys.items() if value is not None}


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else expanded(path)
