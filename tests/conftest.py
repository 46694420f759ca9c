"""What tests of several packages share: the shipped bundle, real digits, a clock of theirs, processes."""

import fcntl
import gc
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

# Several tests run at a time, each with devices of its own: more threads would only take turns.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import RunningBroker
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData

T = TypeVar("T")
Words = tuple[str, ...]
TEACHING, LEVELS = ("train", "attention", "prototype", "distil"), ("low", "mid", "up")

if threading.current_thread() is threading.main_thread():
    # A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C; nohup
    # has them ignore the end of the terminal.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


HEAVY = re.compile(
    r"\b(torch|subprocess|Popen|brokers?|mosquitto|amqtt|postgres|chromium|node|ray|main\(|export\(|exported|text_bundle"
    r"|objectives?|every_kind|registry\.KINDS|profiling|measure_|plots?\b|simulate|simulation\.(run|wire)|scenario\.load)",
    re.IGNORECASE,
)
"""Words of test files that `make check` leaves out: they start or train something, or export a network."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only files that name no torch, process, broker, browser or database",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    quick = config.getoption("--quick") and collection_path.name.startswith("test_")
    return True if quick and HEAVY.search(collection_path.read_text()) else None


LONGEST = re.compile(
    r"test_(node|demo|browsers|simulate|subprocess|agent|install|serve|messages|zeroth_order_rounds|\w*end_to_end)\.py"
)
"""Test files that take long or wait a lot. They begin first, so that none is left alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not LONGEST.fullmatch(item.path.name))


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps tests from the devices that this user has joined with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def imports_are_no_garbage() -> None:
    """Devices collect garbage after each round; that takes a second if it includes torch and all tests."""
    gc.collect()
    gc.freeze()


@dataclass
class FakeClock:
    """Seconds that pass only when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


@pytest.fixture(autouse=True)
def log_handlers_as_before() -> Iterator[None]:
    """A service that a test runs in this process limits what the handlers log, and pytest keeps its own."""
    before = {handler: list(handler.filters) for handler in logging.root.handlers}
    yield
    for handler, filters in before.items():
        handler.filters = filters


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def until(condition: Callable[[], T], timeout_s: float = 600.0) -> T:
    """Wait for it, and return what it gave in the end. The test fails where it does not come true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {timeout_s} s: {condition}")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return until


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """Mosquitto, or else amqtt."""
    running = brokers.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def program() -> str:
    """The installed command."""
    return str(Path(sys.executable).with_name("device-runtime"))


@pytest.fixture(scope="session")
def launched(program: str) -> Callable[..., AbstractContextManager[subprocess.Popen[bytes]]]:
    """Run the command, or `other` words, beside the test; what it says goes to a log. A context manager that
    gives the process, and kills it at the end if it is still there.
    """

    @contextmanager
    def start(
        log: Path, *arguments: object, other: tuple[str, ...] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        words = [*(other or (program,)), *map(str, arguments)]
        with log.open("ab") as out:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    return start


@pytest.fixture(scope="session")
def lines() -> Callable[[Path], list[Any]]:
    """What a file holds that has JSON in each line; nothing where there is none."""

    def read(path: Path) -> list[Any]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture(scope="session")
def digits_in() -> Callable[[Path, Any], Path]:
    """Write some of the real digits, raw, to an .npz as a device has them; which, as numpy indexes."""
    from sklearn.datasets import load_digits

    digits = load_digits()

    def write(path: Path, which: Any = slice(60)) -> Path:
        np.savez(path, x=digits.images[which].astype(np.uint8), y=digits.target[which])
        return path

    return write


class Systemd:
    """The end of NOTIFY_SOCKET that systemd holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def hears(self, within_s: float = 120.0) -> str | None:
        """The next that is said; None when nothing is for so long."""
        self._socket.settimeout(within_s)
        try:
            return self._socket.recv(4096).decode()
        except TimeoutError:
            return None

    def hears_at_last(self, message: str) -> None:
        """Drops the beats before the wanted word; any other word fails the test."""
        end = time.monotonic() + 120.0
        while (line := self.hears()) != message:
            assert line == "WATCHDOG=1" and time.monotonic() < end, line

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    new_systemd = Systemd(tmp_path / "notify")
    yield new_systemd
    new_systemd.close()


class PostgresServer:
    """A PostgreSQL of our own, in a temporary folder, at a free port. It sorts texts as people do.

    `url` needs no password; the user "locked" needs "secret:1", and may not make schemas.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._data = self.folder / "data"
        if self._user:
            shutil.chown(self.folder, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "-D", self._data, "-U", "fl", "-A", "trust", "-E", "UTF8", *self._sorting())
        rules = self._data / "pg_hba.conf"
        rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        self.start()
        self.sql("CREATE ROLE locked LOGIN PASSWORD 'secret:1'")
        self.sql("CREATE DATABASE fl")

    @property
    def url(self) -> str:
        return f"postgresql://fl@127.0.0.1:{self.port}/fl"

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.folder} -c shared_buffers=16MB"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        """As an administrator does, who does not wait for clients."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """As a power cut does: nothing is written any more."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop", check=False)

    @contextmanager
    def standby(self) -> Iterator[None]:
        """What follows the server's log, as a standby does."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "fl", "--synchronous")
        follows = subprocess.Popen(
            [str(self._programs / "pg_receivewal"), "-D", self.folder, *where],
            user=self._user,
            cwd=self.folder,
        )
        try:
            for _ in range(600):
                if "streaming" in self.sql("SELECT state FROM pg_stat_replication"):
                    break
                time.sleep(0.1)
            yield
        finally:
            follows.kill()
            follows.wait()

    def sql(self, text: str, database: str = "postgres") -> str:
        where = ("-h", "127.0.0.1", "-p", self.port, "-U", "fl", "-d", database)
        return self._run("psql", "-X", "-A", "-t", "-q", *where, "-c", text)

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _sorting(self) -> tuple[str, ...]:
        version = subprocess.run(
            [self._programs / "initdb", "--version"], capture_output=True, text=True
        ).stdout
        if int(version.split()[2].split(".")[0]) < 15:
            return ()
        return ("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US")

    def _run(self, program: str, *arguments: object, check: bool = True) -> str:
        done = subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            stdout=subprocess.PIPE
            if program != "pg_ctl"
            else subprocess.DEVNULL,  # the server keeps the pipe
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            user=self._user,
            cwd=self.folder,
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, program, done.stdout)
        return done.stdout or ""


def _postgres_programs() -> Path | None:
    """Where distributions put what is not for everybody."""
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin")]
    initdb = shutil.which("initdb")
    folders += [Path(initdb).parent] if initdb else []
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One for all tests: each run has a schema of its own."""
    pytest.importorskip("psycopg")
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer(programs)
    yield server
    server.close()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """The URL where runs are kept; none is SQLite. A module that names DATABASES has its tests in each."""
    kind = getattr(request, "param", "sqlite")
    return request.getfixturevalue("postgres").url if kind == "postgres" else ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = getattr(metafunc.module, "DATABASES", ())
    if named and "database" in metafunc.fixturenames:
        metafunc.parametrize("database", named, indirect=True)


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return Bundle.open(shipped_folder("digits-wrn-10-1"))


@pytest.fixture
def model(bundle: Bundle) -> OnnxModel:
    return OnnxModel(bundle)


@pytest.fixture
def round_model(bundle: Bundle) -> RoundModel:
    return RoundModel(bundle.manifest, bundle.weights(), round=3, seed=77)


@pytest.fixture(scope="session")
def digits(bundle: Bundle) -> LocalData:
    """240 real digits, prepared."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = bundle.manifest.input.prepare(raw.images[:240, None])
    return LocalData(x, raw.target[:240].astype(np.int64))


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: a folder or file that the first of all test processes makes, and the others use."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def made_once(name: str, make: Callable[[Path], object]) -> Path:
        target, making = shared / "made" / name, shared / f"making-{os.getpid()}" / name
        for path in (target, making):
            path.parent.mkdir(exist_ok=True)
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                make(making)
                making.rename(target)
        return target

    return made_once


@dataclass(frozen=True)
class Exported:
    """Small networks for digits of 8x8, each exported when it is first asked for.

    One for every tunable set of convolutional networks, one with the objectives of the aggregator and its
    family, a transformer. `generic` are samples that are nobody's own.
    """

    once: Once

    @property
    def tuned(self) -> str:
        return self._cnn("tuned", 0.25, ("all", "mid", "head", "bias", "lora", "sparse"), ("train", "moon"))

    @property
    def taught(self) -> str:
        return self._cnn("taught", 0.25, ("all", "mid"), (*TEACHING, "above-low"), LEVELS)

    @property
    def small(self) -> str:
        return self._cnn("small", 0.25, ("all",), TEACHING, LEVELS)

    @property
    def half(self) -> str:
        return self._cnn("half", 0.125, ("all",))

    @property
    def vit(self) -> str:
        image = {"in_channels": 1, "image": 8, "patch": 4, "depth": 3, "dim": 16, "heads": 2}
        return self._written("vit", image, sets=("head", "adapter", "prompt", "prefix", "lora", "bias"))

    def of_loss(self, loss: str, compared: str = "") -> str:
        """A network on 4 values: mse or mae of price and area, bce of 3 flags, or of the input itself."""
        import torch

        from device_runtime.models import networks
        from device_runtime.models.bundles.inputs import InputSpec
        from device_runtime.models.bundles.manifest import Source
        from device_runtime.models.bundles.targets import NORMAL, targets_of
        from device_runtime.models.export.export import ExportSpec, export

        values = {"columns": ("price", "area"), "mean": (100.0, 0.0), "std": (30.0, 3.0)}
        flags = {"columns": ("a", "b", "c")}
        columns = {} if compared == "input" else flags if loss == "bce" else values
        labels = columns.get("columns", NORMAL)
        network = "autoencoder" if compared else "mlp"
        settings = {"inputs": 4, "hidden": 16, **({"code": 2} if compared else {"classes": len(labels)})}
        target = targets_of(loss, labels, compared, **columns)
        name = f"{loss}{'-input' if compared else ''}"
        source = Source(network, settings)
        spec = ExportSpec(name, InputSpec((4,)), labels, loss=target, source=source)

        def make(folder: Path) -> None:
            torch.manual_seed(0)
            export(networks.build(network, settings), spec, folder)

        return str(self.once(name, make))

    @property
    def generic(self) -> str:
        from sklearn.datasets import load_digits

        raw = load_digits()

        def make(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, x=raw.images[-120:].astype(np.uint8), y=raw.target[-120:])

        return str(self.once("generic.npz", make))

    def _cnn(
        self, name: str, width: float, sets: Words, objectives: Words = ("train",), features: Words = ()
    ) -> str:
        settings = {"in_channels": 1, "size": 8, "width": width}
        return self._written("cnn", settings, name, sets, objectives, features)

    def _written(
        self,
        network: str,
        settings: dict[str, Any],
        name: str = "",
        sets: Words = (),
        objectives: Words = ("train",),
        features: Words = (),
    ) -> str:
        import torch

        from device_runtime.models import networks
        from device_runtime.models.bundles.inputs import InputSpec
        from device_runtime.models.bundles.manifest import Source
        from device_runtime.models.export.export import ExportSpec, export

        spec = ExportSpec(
            name or network,
            InputSpec((1, 8, 8), scale=1 / 16),
            tuple("0123456789"),
            sets={tunable: {} for tunable in sets},
            objectives=objectives,
            features=features,
            source=Source(network, settings),
        )

        def make(folder: Path) -> None:
            torch.manual_seed(0)
            export(networks.build(network, settings), spec, folder)

        return str(self.once(name or network, make))


@pytest.fixture(scope="session")
def exported(once: Once) -> Exported:
    pytest.importorskip("torch")
    return Exported(once)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .tsv of 60 short reviews, half of them of each label."""
    words = {
        1: ("great", "moving", "funny", "bright", "warm"),
        0: ("terrible", "dull", "silly", "cold", "flat"),
    }
    things = ("film", "story", "cast", "ending", "score", "plot")
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    rows = [
        f"a {words[y][i % 5]} {things[i % 6]} , it was {words[y][i % 3]} .\t{y}"
        for i in range(30)
        for y in (0, 1)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="session")
def text_bundle(once: Once, reviews: Path) -> Bundle:
    """A tiny RoBERTa with a tokenizer of its own that answers with words of these reviews."""
    for library in ("torch", "transformers"):
        pytest.importorskip(library)
    from device_runtime.cli import main

    words = ["export", "roberta", "--set", "dim=16", "--set", "depth=3", "--set", "heads=2", "--input", "24"]
    words += ["--labels", "negative,positive", "--tokenizer-from", str(reviews), "--tokens", "330"]
    words += ["--prompt", "{text} It was{mask} .", "--words", " terrible, great"]
    words += ["--tunable", "bias", "--tunable", "lora:rank=2", "--tunable", "head", "--tunable", "all"]

    def make(folder: Path) -> None:
        assert main([*words, "--out", str(folder)]) == 0

    return Bundle.open(once("reviews", make))


@pytest.fixture(scope="module")
def chromiums() -> Iterator[Callable[[Sequence[str]], Any]]:
    """Starts a Chromium of this machine with these flags; all end with the module.

    While Playwright runs, its event loop counts as this thread's: nothing else could start one of its own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as running:
        started: list[Any] = []

        def start(flags: Sequence[str]) -> Any:
            started.append(running.chromium.launch(executable_path=program, args=list(flags)))
            return started[-1]

        yield start
        for browser in started:
            browser.close()
