"""Who gets what: MQTT topic filters, looked up without trying every subscriber's."""

from __future__ import annotations

from collections.abc import Iterator

from paho.mqtt.client import topic_matches_sub


class Subscriptions:
    """Filters of clients, by name; `+` and `#` as in MQTT 3.1.1, section 4.7."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[str, ...]] = {}
        self._exact: dict[str, dict[str, None]] = {}
        self._patterns: dict[tuple[str, str], None] = {}

    def add(self, client: str, filters: tuple[str, ...]) -> None:
        """In place of what this client had before."""
        self.remove(client)
        self._of[client] = filters
        for wanted in filters:
            if "+" in wanted or "#" in wanted.removesuffix("/#"):
                self._patterns[wanted, client] = None
            else:
                self._exact.setdefault(wanted, {})[client] = None

    def remove(self, client: str) -> None:
        for wanted in self._of.pop(client, ()):
            self._patterns.pop((wanted, client), None)
            if wanted in self._exact:
                self._exact[wanted].pop(client, None)

    def wants(self, client: str, topic: str) -> bool:
        return any(topic_matches_sub(wanted, topic) for wanted in self._of.get(client, ()))

    def of(self, topic: str) -> tuple[str, ...]:
        """The clients that get this topic, each once, by name."""
        found = {client for wanted in _literal(topic) for client in self._exact.get(wanted, ())}
        found.update(client for wanted, client in self._patterns if topic_matches_sub(wanted, topic))
        return tuple(sorted(found))


def _literal(topic: str) -> Iterator[str]:
    """The filters without `+` that match: the topic itself, and each level above it with `#`."""
    yield topic
    parts = topic.split("/")
    for levels in range(1, len(parts) + 1):
        yield "/".join(parts[:levels]) + "/#"
