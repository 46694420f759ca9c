"""Topics as Python makes and reads them."""

from typing import Any

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import packet_bytes, qos_of

SHA = bytes(range(32))
ADDRESSES = (
    topics.up("pi-07", "hello"),
    topics.down("a.b_c-d", "task"),
    topics.up("1", topics.block(SHA, 0)),
    topics.down("x" * 64, topics.block(SHA, -1)),
    topics.down("d", topics.block(SHA, 12_345_678)),
)
SAID = (
    "fl/v1/d/x/up/hello",
    "fl/v1/d/ü/up/plan",
    "fl/v1/d/x/up/c",
    "fl/v1/d/x/dn/n",
    topics.offer("digits"),
)
OTHERS = (
    "",
    "fl/v1/d/x/up",
    "fl/v2/d/x/up/hello",
    "fl/v1/d/x/sideways/hello",
    "fl/v1/d/-x/up/hello",
    "fl/v1/d/ü/up/hello",
    f"fl/v1/d/{'x' * 65}/up/hello",
    "fl/v1/d/x/up/block/00/1",
    f"fl/v1/d/x/up/block/{SHA.hex().upper()}/1",
    f"fl/v1/d/x/up/block/{SHA.hex()}/-2",
    f"fl/v1/d/x/up/block/{SHA.hex()}/123456789",
    f"fl/v1/d/x/up/block/{SHA.hex()}/1\n",
    "fl/v1/all/round/digits",
)


def refused(topic: str) -> str:
    try:
        topics.parse(topic)
    except topics.TopicError as error:
        return str(error)
    raise AssertionError(f"{topic} is read")


def vectors() -> dict[str, Any]:
    parsed = {topic: topics.parse(topic) for topic in ADDRESSES}
    return {
        "offers": topics.OFFERS,
        "offer": topics.offer("digits"),
        "addresses": [
            {
                "topic": topic,
                "device": address.device,
                "leaf": address.leaf,
                "sha": address.sha,
                "index": address.index,
            }
            for topic, address in parsed.items()
        ],
        "others": [{"topic": topic, "python": refused(topic)} for topic in OTHERS],
        "packets": [
            {
                "topic": topic,
                "first": first,
                "size": size,
                "qos": qos_of(topic, bytes([first]) * size),
                "bytes": packet_bytes(topic, bytes([first]) * size),
                "mqtt5": packet_bytes(topic, bytes([first]) * size, 1, True),
            }
            for topic in SAID
            for first in (0x04, 0x9D)
            for size in (0, 1, 100, 120, 16_000, 16_400, 65_536, 3_000_000)
        ],
    }
