import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from tests.simulation.wire.broker import Subscriptions

LEVEL = st.sampled_from(["fl", "d", "up", "pi-1"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTER = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(LEVEL | st.just("+"), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
)


@given(st.lists(st.lists(FILTER, max_size=3), min_size=1, max_size=4), TOPIC)
def test_the_index_finds_whom_mqtt_s_own_rule_finds(filters, topic):
    subscriptions = Subscriptions()
    for client, patterns in enumerate(filters):
        subscriptions.add(str(client), tuple(patterns))
    expected = tuple(
        str(client)
        for client, own in enumerate(filters)
        if any(topic_matches_sub(pattern, topic) for pattern in own)
    )
    assert subscriptions.of(topic) == expected
    assert all(subscriptions.wants(client, topic) for client in expected)


@pytest.mark.parametrize("pattern", ["fl/all/round", "fl/d/pi-1/dn/#", "fl/d/+/up/#", "#"])
def test_who_has_left_gets_nothing(pattern):
    subscriptions = Subscriptions()
    subscriptions.add("pi-1", (pattern,))
    subscriptions.remove("pi-1")
    assert not any(
        subscriptions.of(topic) for topic in ("fl/all/round", "fl/d/pi-1/dn/get", "fl/d/pi-1/up/get")
    )
