"""Whose offers a device acts on."""

import logging
import subprocess
import sys

import msgspec
import pytest

from broker import topics
from broker.blobs import name
from broker.link import Received
from broker.messages import Base, MessageError, Offer, encode
from broker.signing import NotTrusted, Signer
from device_runtime.trust import RUNS, Trust

BLOB = name(b"x")
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


def sealed(number=1, run="r", by=SIGNER):
    return by.seal(TASK, offer(number, run), 7)


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
    trust, kept = Trust(SIGNER.public), sealed(4)
    trust.offer(TASK, kept)
    trust.offer(TASK, sealed(5))
    with pytest.raises(MessageError, match="round 4 refused: round 5 of this run was offered before"):
        trust.offer(TASK, kept)
    for number, run in ((5, "r"), (0, "r"), (1, "another"), (6, "r")):  # again, the lobby, another run, on
        assert trust.offer(TASK, sealed(number, run)) == offer(number, run)
    with pytest.raises(MessageError, match="round 6"):
        trust.offer(TASK, kept)


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

    def under_way(self, topic=""):
        return 0


def test_an_agent_ignores_a_forged_offer_and_says_so(caplog, tmp_path):
    from device_runtime.agent import Agent
    from device_runtime.task import Settings

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


def test_a_device_that_is_not_enrolled_loads_no_cryptography():
    code = "import sys, device_runtime.commands.join; assert 'nacl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
