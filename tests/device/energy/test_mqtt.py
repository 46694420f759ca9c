import socket
import time

import pytest

from device_runtime.broker.servers import mosquitto
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.energy import MeterError, energy_of, find_meter
from device_runtime.device.energy.mqtt import MeterTopic, MqttMeter

TASMOTA = '{"Time":"2023-05-19T20:52:56","ENERGY":{"Total":514.153,"Power":56,"Voltage":234}}'


@pytest.fixture(scope="module")
def broker():
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    started = Mosquitto()
    yield started
    started.stop()


def port(broker):
    return BrokerUrl.parse(broker.url).port


@pytest.fixture
def publish(broker):
    from paho.mqtt.publish import single

    def send(topic, payload):
        single(topic, payload, retain=True, hostname="127.0.0.1", port=port(broker))

    return send


def test_an_address_is_broker_topic_path_and_unit():
    source = MeterTopic.of("mqtt://user:secret@127.0.0.1:1884/tele/plug/SENSOR#ENERGY.Power,kW")
    assert (source.url.port, source.url.user, source.url.password) == (1884, "user", "secret")
    assert (source.topic, source.path, source.unit) == ("tele/plug/SENSOR", "ENERGY.Power", "kW")


def test_a_plug_s_broker_on_the_network_may_be_plain_where_no_password_goes_there():
    assert MeterTopic.of("mqtt://plugs.home/a").topic == "a"
    with pytest.raises(MeterError, match="--meter mqtt://plugs.home/a: .* in the clear") as refused:
        find_meter("mqtt://user:secret@plugs.home/a")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["mqtt:", "mqtt://127.0.0.1", "mqtt://127.0.0.1/a/+", "mqtt://127.0.0.1/a#p,furlong", "mqtt://h:x/a"],
)
def test_what_is_no_address_is_refused_with_one_that_is(text):
    with pytest.raises(MeterError, match="expected mqtt://.*USER:PASSWORD"):
        MeterTopic.of(text)


def test_a_password_that_the_broker_refuses_is_said_and_not_waited_out(broker, clock):
    secured = Mosquitto(BrokerOptions(users={"plug": "secret"}))
    try:
        wrong = secured.url.replace("mqtt://", "mqtt://plug:wrong@")
        meter = MqttMeter(MeterTopic.of(f"{wrong}/t"), clock, wait_s=600.0)
        with pytest.raises(MeterError, match=r"the broker refuses: (Not|Bad)") as refused:
            meter.read()
        assert "wrong@" not in str(refused.value)
    finally:
        secured.stop()


def test_what_comes_between_two_readings_is_integrated(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t"), clock, wait_s=0.0)
    meter.hear(b"4")
    first = meter.read()
    clock.now = 10.0
    meter.hear(b"4")
    clock.now = 15.0
    last = meter.read()
    assert last.joules - first.joules == 60.0
    assert last.variance == (5 * 4.0) ** 2  # since the last message it may have been anything
    meter.rest()
    clock.now = 60.0
    meter.hear(b"4")
    assert meter.read().joules - first.joules == 60.0


def test_of_work_that_is_over_before_the_plug_speaks_again_nothing_is_known(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t"), clock, wait_s=0.0)
    meter.hear(b"4")
    first = meter.read()
    clock.now = 5.0
    assert energy_of(meter.about, first, meter.read()).uncertainty == 1.0


def test_a_counter_of_energy_is_refused(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t#ENERGY.Total"), clock, wait_s=0.0)
    meter.hear(b"0.5 kWh")
    with pytest.raises(MeterError):
        meter.read()
    with pytest.raises(MeterError, match="UNIT of W, mW, kW"):
        MeterTopic.of("mqtt://127.0.0.1/t#ENERGY.Total,kWh")


def test_without_a_message_there_is_no_reading_and_it_says_why(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t"), clock, wait_s=0.01)
    with pytest.raises(MeterError, match="mqtt://127.0.0.1:1, t: no message in 0.01 s"):
        meter.read()
    meter.hear(b'{"colour": "red"}')
    with pytest.raises(MeterError, match="say where the figure is"):
        meter.read()


def test_a_plug_that_fell_silent_is_no_longer_believed(clock):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # no answer yet, so that no outage is known
        topic = MeterTopic.of(f"mqtt://127.0.0.1:{silent.getsockname()[1]}/t")
        meter = MqttMeter(topic, clock, wait_s=0.0)
        meter.hear(b"4")
        clock.now = 75.0
        meter.read()
        clock.now = 76.0
        with pytest.raises(MeterError, match="no message for 76 s: it should speak more often"):
            meter.read()


def test_a_message_that_is_no_figure_does_not_undo_the_last_one(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t"), clock, wait_s=0.0)
    meter.hear(b"4")
    first = meter.read()
    clock.now = 1.0
    meter.hear(b"offline")
    assert meter.read().joules - first.joules == 4.0


def test_a_real_broker_s_plug_is_found(broker, publish):
    publish("tele/plug/SENSOR", TASMOTA)
    choice = find_meter(f"mqtt://127.0.0.1:{port(broker)}/tele/plug/SENSOR")
    assert choice.source == "mqtt"
    first = choice.meter.read()
    publish("tele/plug/SENSOR", TASMOTA)
    assert choice.meter.read().joules >= first.joules
    choice.meter.rest()


@pytest.mark.slow  # paho waits at least a second before it connects again
def test_a_broker_that_says_nothing_is_left_and_tried_again(clock, monkeypatch):
    monkeypatch.setattr("device_runtime.device.energy.mqtt.STEP_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        meter = MqttMeter(MeterTopic.of(f"mqtt://127.0.0.1:{server.getsockname()[1]}/t"), clock, wait_s=0.1)
        silent, again = server.accept()[0], server.accept()[0]  # the first one said nothing
        with silent, again, pytest.raises(MeterError, match="no message in 0.1 s"):
            meter.read()


def test_why_there_is_no_message_is_said_where_it_is_known(clock):
    meter = MqttMeter(MeterTopic.of("mqtt://127.0.0.1:1/t"), clock, wait_s=5.0)
    for _ in range(200):
        if meter._outage:
            break
        time.sleep(0.02)
    meter._wait_s = 0.0
    with pytest.raises(MeterError, match="no message in 0 s: no broker answers"):
        meter.read()
