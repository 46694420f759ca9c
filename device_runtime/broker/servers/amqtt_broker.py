"""Runs the broker amqtt in a thread of this process, for demonstrations on one machine.

Nothing but the Python package needs to be installed. amqtt has no access list for retained messages, and it
drops messages in flight when a client disconnects. It therefore serves this machine only.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from amqtt.broker import Broker

from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.wire.url import is_loopback

from .bounded_amqtt import BoundedBroker, lines
from .places import Shares, within_files
from .server import BrokerOptions, find_ports, url_of, web_url_of

START_S = 60.0
"""Seconds in which it must accept connections."""
STOP_S = 5.0
"""Seconds it gets to end by itself; then its connections are cut."""


EXPIRY_S = 3600
"""Seconds after which the session of a client that is away is forgotten."""
SHARES = Shares(most=20_000, of_address=20_000, silent=1000, burst=inf, rate=inf)
"""Limits on connections: all are of this machine, and a fleet may connect at one instant."""


class AmqttBroker:
    """A running amqtt. Raises BrokerStartError when it cannot be started with these options."""

    def __init__(self, options: BrokerOptions | None = None, why: str = "asked for") -> None:
        self.options = options or BrokerOptions()
        self.why = why
        self.name = f"amqtt {version('amqtt')}"
        _check(self.options)
        self.port, self._web_port = find_ports(self.options)
        self._failure = ""
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amqtt", daemon=True)
        self._thread.start()
        if not self._settled.wait(START_S) or self._failure:
            self.stop()
            raise BrokerStartError(
                f"{self.name} did not start on port {self.port}: {self._failure or 'no reason given'}"
            )

    @property
    def url(self) -> str:
        return url_of(self.options, self.port)

    @property
    def web_url(self) -> str:
        return web_url_of(self.options, self._web_port)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop it and its thread."""
        if self.alive:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(2 * STOP_S)

    def _run(self) -> None:
        for name in ("amqtt", "transitions"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_say_in_a_line)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:  # the constructor, which waits, raises whatever amqtt raised
            self._failure = str(error).replace("\n", " ") or type(error).__name__
        finally:
            self._settled.set()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _serve(self) -> None:
        with tempfile.TemporaryDirectory(prefix="amqtt-") as folder:
            ports = self.port, self._web_port
            configuration = _configure(self.options, ports, Path(folder))
            broker: Broker = BoundedBroker(configuration, within_files(SHARES), self._loop)
        await broker.start()
        self._settled.set()
        await self._over.wait()
        try:
            await asyncio.wait_for(broker.shutdown(), STOP_S)
        except asyncio.TimeoutError:
            logging.getLogger(__name__).debug("%s did not end in %s s", self.name, STOP_S)
        finally:
            for server in broker._servers.values():  # a server that waits for its clients keeps the port
                getattr(server.instance, "server", server.instance).close()


def _say_in_a_line(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task of amqtt handles; asyncio would log a traceback of each."""
    error = context.get("exception")
    lines.say(
        "the embedded broker had an error of its own and goes on",
        repr(error) if error else context["message"],
    )


def _check(options: BrokerOptions) -> None:
    if not is_loopback(options.host):
        raise BrokerStartError(
            f"amqtt on {options.host} is refused: it has no access list for retained "
            f"messages, so it serves this machine only (127.0.0.1): use mosquitto"
        )
    if options.tls or options.persistence:
        raise BrokerStartError("amqtt runs here without TLS and persistence, for one machine: use mosquitto")


def _configure(options: BrokerOptions, ports: tuple[int, int], folder: Path) -> dict[str, Any]:
    plugins: dict[str, Any] = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    if options.users:
        from pwdlib import PasswordHash  # comes with amqtt
        from pwdlib.hashers.argon2 import Argon2Hasher

        hasher = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=1024, parallelism=1),))
        passwords = folder / "passwords"
        passwords.write_text("".join(f"{user}:{hasher.hash(word)}\n" for user, word in options.users.items()))
        plugins = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(passwords)}}
    listeners = {"default": {"type": "tcp", "bind": f"{options.host}:{ports[0]}"}}
    if options.web:
        listeners["web"] = {"type": "ws", "bind": f"{options.host}:{ports[1]}"}
    return {"listeners": listeners, "plugins": plugins, "session_expiry_interval": EXPIRY_S}
