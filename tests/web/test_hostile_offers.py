"""Offers that are not the aggregator's, or make no sense, told to a real page: each is refused in words."""

import msgspec
import pytest

from device_runtime.broker.security.signing import Signer
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import Contribution, Kind, Member

from .hostile import DEVICE, ISSUED, AttackedPage, altered, attacked_page

pytestmark = pytest.mark.slow

TOPIC = topics.down(DEVICE, "task")


@pytest.fixture(scope="module")
def attacked(chromium, tmp_path_factory):
    with attacked_page(chromium, tmp_path_factory.mktemp("attacked")) as page:
        yield page


def test_an_offer_that_is_not_signed_is_refused(attacked: AttackedPage):
    attacked.begin()
    attacked.aggregator.say("task", messages.encode(attacked.offered()))
    attacked.refused(r"offer on fl/v1/d/phone/dn/task refused: it is not signed")
    attacked.honest_round()


def test_an_offer_that_another_has_signed_is_refused(attacked: AttackedPage):
    attacked.attack(attacked.offered(), Signer(bytes(32)))
    attacked.refused(r"refused: it is not signed by the aggregator that this device is enrolled with")
    attacked.honest_round()


def test_an_offer_that_was_changed_under_its_signature_is_refused(attacked: AttackedPage):
    attacked.begin()
    sealed = attacked.aggregator.signer.seal(TOPIC, attacked.offered(), ISSUED)
    attacked.aggregator.say("task", altered(sealed, deadline_s=3600.0))
    attacked.refused(r"refused: it is not signed by the aggregator")


def test_an_offer_to_another_device_is_none_to_this_one(attacked: AttackedPage):
    attacked.begin()
    attacked.aggregator.say(
        "task", attacked.aggregator.signer.seal(topics.down("other", "task"), attacked.offered(), ISSUED)
    )
    attacked.refused(r"refused: it is not signed by the aggregator")


def test_an_offer_of_an_earlier_round_that_somebody_kept_is_refused(attacked: AttackedPage):
    contribution = attacked.honest_round()
    first = msgspec.structs.replace(attacked.offered(), run=contribution.run)
    later = msgspec.structs.replace(first, round=7)
    attacked.aggregator.tell(later)
    sent = attacked.until(
        lambda: [
            update for update in attacked.aggregator.of(Contribution, contribution.run) if update.round == 7
        ]
    )[0]
    attacked.aggregator.receipt(sent)
    attacked.page.get_by_text("Round 7: received, and counted").wait_for()
    attacked.attack(msgspec.structs.replace(first, round=2))
    attacked.refused(r"offer of round 2 refused: round 7 of this run was offered before")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"remaining_s": float("nan")}, r"offer of round 1 of 'digits': remaining_s is NaN"),
        ({"deadline_s": float("inf")}, r"deadline_s is Infinity, expected 0 or more"),
        ({"round": -3}, r"rounds are counted from 0"),
        ({"seed": -1}, r"seed is -1, expected 64 bits"),
        ({"kinds": ()}, r"round 1 left out: no kind of update is offered"),
        ({"kinds": (Kind("<b>full</b>", msgspec.Raw(b"\x80")),)}, r"no kind of update called '<b>full</b>'"),
        ({"kinds": (Kind("full", msgspec.Raw(b"\xc0")),)}, r"settings of full are no settings"),
        ({"kinds": (Kind("full", msgspec.Raw(b"\x81\xa2lr\xc0")),)}, r"settings of full: full.lr is null"),
    ],
    ids=lambda case: "" if isinstance(case, str) else next(iter(case)),
)
def test_an_offer_that_makes_no_sense_is_refused(attacked: AttackedPage, fields, words):
    attacked.attack(attacked.offered(**fields))
    attacked.refused(words)


def test_an_offer_without_a_base_or_with_a_blob_of_gigabytes_is_refused(attacked: AttackedPage):
    attacked.attack(attacked.offered(base=msgspec.structs.replace(attacked.base, checkpoint=())))
    attacked.refused(r"a base has no checkpoint")
    attacked.attack(attacked.offered(bundle=messages.Blob(bytes(32), 2**40 - 1)))
    attacked.refused(r"1099511627775 bytes are to be fetched at one time: at most 2147483648 are")
    attacked.attack(attacked.offered(bundle=messages.Blob(bytes(32), 2**30 + 1)))
    attacked.refused(r"blob 000000000000 of 1073741825 bytes: at most 1073741824 are kept here")
    attacked.attack(attacked.offered(bundle=messages.Blob(bytes(32), 0)))
    attacked.refused(r"what came as blob 000000000000 has another hash: discarded")
    attacked.honest_round()


def test_a_family_with_a_member_twice_is_refused(attacked: AttackedPage):
    member = Member("small", attacked.bundle, attacked.base)
    attacked.attack(attacked.offered(family=(member, member)))
    attacked.refused(r"family")


def test_rubbish_on_every_topic_of_the_device_is_dropped(attacked: AttackedPage):
    attacked.begin()
    for leaf in ("task", "n", "receipt", "get", "block/00/0", "what/is/this", f"block/{'0' * 64}/7"):
        for rubbish in (
            b"",
            b"\x00",
            b"\xc1" * 50,
            b"\xdd\xff\xff\xff\xff",
            b"\x99" + bytes(20),
            b"\x54\x01abcd",
        ):
            attacked.aggregator.say(leaf, rubbish)
    attacked.refused(r"ignored: ")
    attacked.honest_round()
