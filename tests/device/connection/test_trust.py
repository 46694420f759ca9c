"""Whose offers a device acts on."""

import logging
import subprocess
import sys

import msgspec
import pytest

from device_runtime.broker.security.signing import NotTrusted, Signer
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import Base, MessageError, Offer, encode
from device_runtime.device.connection.trust import RUNS, Trust

BLOB = blob_of(b"x")
SIGNER, OTHER = Signer(bytes(range(32))), Signer(bytes(32))
TASK = topics.down("a", "task")


def offer(number=1, run="r"):
    return Offer(
        task="t",
        run=run,
        round=number,
        seed=5,
        deadline_s=20.0,
        remaining_s=20.0,
        bundle=BLOB,
        base=Base(checkpoint=(BLOB,), sha=BLOB.sha),
        kinds=(),
    )


def sealed(number=1, run="r", by=SIGNER, issued=7):
    return by.seal(TASK, offer(number, run), issued)


@pytest.mark.parametrize("payload", [encode(offer()), sealed(), sealed(by=OTHER)])
def test_a_device_that_knows_no_key_takes_any_offer(payload):
    assert Trust().offer(TASK, payload) == offer()


def test_without_a_key_rubbish_is_still_refused():
    for payload in (b"", b"\x93\x03\x01", encode(offer())[:-3]):
        with pytest.raises(MessageError):
            Trust().offer(TASK, payload)


def test_a_device_with_a_key_takes_that_one_s_offers_alone():
    trust = Trust(SIGNER.public)
    assert trust.offer(TASK, sealed()) == offer()
    for payload in (encode(offer(2)), sealed(2, by=OTHER)):
        with pytest.raises(NotTrusted):
            trust.offer(TASK, payload)
    assert trust.offer(TASK, sealed(2)) == offer(2)


def test_an_offer_of_an_earlier_round_that_somebody_kept_is_refused():
    trust, earlier = Trust(SIGNER.public), sealed(4)
    trust.offer(TASK, earlier)
    trust.offer(TASK, sealed(5))
    with pytest.raises(MessageError, match="round 4 refused: round 5 of this run was offered before"):
        trust.offer(TASK, earlier)
    for number, run in ((5, "r"), (0, "r"), (1, "another"), (6, "r")):  # again, the lobby, another run, on
        assert trust.offer(TASK, sealed(number, run)) == offer(number, run)
    with pytest.raises(MessageError, match="round 6"):
        trust.offer(TASK, earlier)


def test_an_offer_that_is_older_than_one_taken_is_refused_also_in_another_life(tmp_path):
    old = sealed(1, "yesterday's", issued=7)
    Trust(SIGNER.public, folder=tmp_path).offer(TASK, sealed(1, "today's", issued=9))
    trust = Trust(SIGNER.public, folder=tmp_path)
    with pytest.raises(MessageError, match="it was issued at 7, and one of 9 was taken before"):
        trust.offer(TASK, old)
    assert trust.offer(TASK, sealed(2, "today's", issued=9)).round == 2
    assert trust.offer(TASK, old, retained=True).run == "yesterday's"  # a sign that there is a task, no more
    done = msgspec.structs.replace(offer(1), done=True)
    with pytest.raises(MessageError, match="was taken before"):
        trust.offer(TASK, SIGNER.seal(TASK, done, 8), retained=True)


def test_a_new_key_of_the_aggregator_is_kept_and_what_was_issued_before_it_stays_known(tmp_path):
    from device_runtime.broker.security.enrolment import Enrolment

    enrolment = Enrolment("mqtts://h:1", "a", "p", b"", SIGNER.public, 5, bytes(32))
    enrolment.save(tmp_path)
    trust = Trust(SIGNER.public, folder=tmp_path)
    trust.offer(TASK, sealed(issued=9))
    link = SIGNER.succeeded(OTHER.public, 3)
    next_topic, payload = topics.down("a", "n"), b"\x04\x02abcd"
    assert trust.offer(TASK, OTHER.seal(TASK, offer(1), 9, (link,))) == offer(1)
    mac = OTHER.agree(trust.key).mac(next_topic, "r", payload)
    assert trust.next(next_topic, "r", small.with_mac(payload, mac)).round == 2
    renewed = Enrolment.load(tmp_path)
    assert renewed == msgspec.structs.replace(enrolment, key=OTHER.public)
    again = Trust(renewed.key, folder=tmp_path)
    with pytest.raises(NotTrusted):
        again.offer(TASK, sealed(2, issued=10))
    with pytest.raises(MessageError, match="issued at 8, and one of 9 was taken"):
        again.offer(TASK, sealed(2, by=OTHER, issued=8))


def test_a_new_key_that_is_not_kept_leaves_known_what_was_issued_by_the_one_before(tmp_path, monkeypatch):
    from device_runtime.broker.security.enrolment import Enrolment, EnrolmentError

    Enrolment("mqtts://h:1", "a", "p", b"", SIGNER.public, 5, bytes(32)).save(tmp_path)
    trust = Trust(SIGNER.public, folder=tmp_path)
    trust.offer(TASK, sealed(issued=9))

    def full(_self, _folder):
        raise EnrolmentError("cannot keep the enrolment: no space left on device")

    monkeypatch.setattr(Enrolment, "save", full)
    link = SIGNER.succeeded(OTHER.public, 3)
    trust.offer(TASK, OTHER.seal(TASK, offer(1), 9, (link,)))
    with pytest.raises(MessageError, match="issued at 8, and one of 9 was taken"):
        Trust(SIGNER.public, folder=tmp_path).offer(TASK, sealed(2, issued=8))


def test_when_offers_were_issued_counts_for_one_task_and_one_aggregator(tmp_path):
    Trust(SIGNER.public, folder=tmp_path).offer(TASK, sealed(issued=9))
    other = msgspec.structs.replace(offer(), task="u")
    trust = Trust(SIGNER.public, folder=tmp_path)
    assert trust.offer(TASK, SIGNER.seal(TASK, other, 3)).task == "u"
    assert Trust(OTHER.public, folder=tmp_path).offer(TASK, sealed(by=OTHER, issued=3)) == offer()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"key":1}', b"\xff"])
def test_a_damaged_file_of_issued_offers_is_said_and_replaced(tmp_path, caplog, content):
    (tmp_path / "issued.json").write_bytes(content)
    Trust(SIGNER.public, folder=tmp_path).offer(TASK, sealed(issued=9))
    assert "cannot be read" in caplog.text
    with pytest.raises(MessageError):
        Trust(SIGNER.public, folder=tmp_path).offer(TASK, sealed(issued=8))


def test_forged_offers_do_not_move_what_is_remembered():
    trust = Trust(SIGNER.public)
    with pytest.raises(NotTrusted):
        trust.offer(TASK, sealed(9, by=OTHER))
    assert trust.offer(TASK, sealed(1)) == offer(1)


def test_what_is_remembered_is_bounded():
    trust = Trust(SIGNER.public)
    for number in range(3 * RUNS):
        trust.offer(TASK, sealed(2, str(number)))
    assert len(trust._rounds) == RUNS


class Line:
    url = "a test"

    def publish(self, topic, payload, retain=False):
        return True

    def unacknowledged(self, topic=""):
        return 0


def test_an_agent_ignores_a_forged_offer_and_says_so(caplog, tmp_path):
    from device_runtime.device.agent.agent import Agent
    from device_runtime.device.training.local_task import Settings

    settings = Settings("a", tmp_path / "none.npz", tmp_path, aggregator=SIGNER.public)
    agent = Agent(settings, 1, lambda: 0.0)
    agent.begin(Line())
    with caplog.at_level(logging.WARNING):
        for payload in (encode(offer()), sealed(by=OTHER)):
            agent.inbox.put(Received(TASK, payload))
            assert agent.step()
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        f"ignored: offer on {TASK} refused: it is not signed",
        f"ignored: offer on {TASK} refused: it is not signed by the aggregator that this device is enrolled "
        "with",
    ]
    assert not agent.waiting
    done = msgspec.structs.replace(offer(), done=True)
    agent.inbox.put(Received(TASK, SIGNER.seal(TASK, done, 1)))
    agent.step()
    assert agent.done


def test_an_agent_with_a_key_of_its_own_signs_its_hello_and_takes_no_receipt_without_a_word(tmp_path, caplog):
    from device_runtime.broker.security.signing import DeviceSigner, verify_message
    from device_runtime.broker.wire.messages import Hello, Receipt, decode
    from device_runtime.device.agent.agent import Agent
    from device_runtime.device.training.local_task import Settings

    class Heard(Line):
        messages = ()

        def publish(self, topic, payload, retain=False):
            self.messages = (*self.messages, (topic, payload))
            return True

    secret = bytes(range(50, 82))
    settings = Settings("a", tmp_path / "none.npz", tmp_path, aggregator=SIGNER.public, secret=secret)
    assert "secret" not in repr(settings)
    agent, line = Agent(settings, 1, lambda: 0.0), Heard()
    agent.begin(line)
    agent.hello()
    [(topic, payload)] = line.messages
    hello = decode(verify_message(DeviceSigner(secret).public, topic, payload), Hello)
    assert SIGNER.agree(hello.key)
    where = topics.down("a", "receipt")
    receipt = encode(Receipt(boot=1, seq=1, round=1, status="accepted"))
    agent.inbox.put(Received(where, receipt))
    agent.step()
    assert "receipt on fl/v1/d/a/dn/receipt refused" in caplog.text
    caplog.clear()
    agent.inbox.put(Received(where, receipt + SIGNER.agree(hello.key).mac(where, "", receipt)))
    agent.step()
    assert caplog.text == ""


def test_a_device_that_is_not_enrolled_loads_no_cryptography():
    code = "import sys, device_runtime.cli.on_device.join; assert 'nacl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
