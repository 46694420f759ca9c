import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.device.energy.command import Quantity, in_message, quantity
from device_runtime.device.energy.meter import MeterError

# A status of a Shelly of the second generation (tests of evcc), a SENSOR message of a Tasmota plug (tests of
# a public logger), one of a Sonoff Dual with two channels (tests of a public collector), and one of a Shelly
# of the first generation.
SHELLY = (
    b'{"id":0, "source":"HTTP", "output":false, "apower":47.11, "voltage":232.0, "current":0.000, "pf":0.00, '
    b'"aenergy":{"total":5.125,"by_minute":[0.000,0.000,0.000],"minute_ts":1675718520},'
    b'"temperature":{"tC":25.3, "tF":77.5}}'
)
TASMOTA = (
    b'{"Time":"2023-05-19T20:52:56","ENERGY":{"TotalStartTime":"2022-03-20T15:20:48","Total":514.153,'
    b'"Yesterday":1.495,"Today":0.537,"Period":0,"Power":56,"ApparentPower":92,"ReactivePower":73,"Factor":0.61,'
    b'"Voltage":234,"Current":0.392}}'
)
DUAL = b'{"Time":"2026-09-18T11:19:21","ENERGY":{"Total":[2.813,0.254],"Power":[52,5],"Voltage":235}}'
SHELLY_1 = b'{"meters":[{"power":88.2,"is_valid":true}]}'


@pytest.mark.parametrize(
    "text, expected",
    [
        ("12.3", Quantity(12.3)),
        (" 12.3 W\n", Quantity(12.3)),
        ("250mW", Quantity(0.25)),
        ("-4.5e1", Quantity(-45.0)),
        ("815 J", Quantity(815.0, True)),
        ("0.5 Wh", Quantity(1800.0, True)),
        ("2 kWh", Quantity(7.2e6, True)),
    ],
)
def test_numbers_with_and_without_a_unit(text, expected):
    assert quantity(text) == expected


@pytest.mark.parametrize("text", ["", "W", "12,3", "12 V", "nan", "inf W", "1e999", "12 W 3"])
def test_what_is_no_power_is_refused(text):
    with pytest.raises(MeterError, match="is no power or energy"):
        quantity(text)


@pytest.mark.parametrize(
    "payload, path, unit, expected",
    [
        (b"47.1", "", "", Quantity(47.1)),
        (b"0.25 kWh", "", "", Quantity(0.9e6, True)),
        (SHELLY, "", "", Quantity(47.11)),
        (SHELLY, "aenergy.total", "Wh", Quantity(5.125 * 3600, True)),
        (TASMOTA, "", "", Quantity(56.0)),
        (TASMOTA, "ENERGY.Today", "kWh", Quantity(0.537 * 3.6e6, True)),
        (DUAL, "ENERGY.Power.1", "", Quantity(5.0)),
        (SHELLY_1, "meters.0.power", "", Quantity(88.2)),
        (b'{"state": "412.7"}', "state", "", Quantity(412.7)),
    ],
)
def test_messages_of_smart_plugs(payload, path, unit, expected):
    amount = in_message(payload, path, unit)
    assert amount.energy is expected.energy
    assert amount.value == pytest.approx(expected.value)


def test_json_without_a_known_field_asks_for_the_path():
    with pytest.raises(MeterError, match="has none of apower, .*: say where the figure is: #PATH"):
        in_message(b'{"watts": 3}')


@pytest.mark.parametrize(
    "payload",
    [b"9" * 5000, b"[" * 60_000, b'{"power":' + b"9" * 500 + b"}", bytes(70_000), b"1" * 60_000 + b"!"],
)
def test_a_message_that_is_meant_to_harm_is_refused_at_once(payload):
    with pytest.raises(MeterError):
        in_message(payload)


@pytest.mark.parametrize("path", ["ENERGY.Nothing", "ENERGY", "ENERGY.Power.2", "Time.0"])
def test_a_path_to_no_number_is_named(path):
    with pytest.raises(MeterError):
        in_message(DUAL, path)


@pytest.mark.slow
@given(payload=st.binary(max_size=60), path=st.text(max_size=12))
def test_any_message_is_a_quantity_or_a_meter_error(payload, path):
    try:
        assert isinstance(in_message(payload, path), Quantity)
    except MeterError as error:
        assert "\n" not in str(error)
