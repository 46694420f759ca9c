"""A helper's messages: requests, lists of seeds and sums in blocks, presence; no broker."""

from contextlib import closing

import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import Blobs, blob_of
from device_runtime.broker.wire.link import Connected, Disconnected, Received
from device_runtime.broker.wire.messages import Get, Mask, State, decode, encode
from device_runtime.broker.wire.sum_messages import HelperState, SumAnswer, SumCheck, SumSeed
from device_runtime.broker.wire.transfer import answer_get
from device_runtime.mask_helper import helper as helpers
from device_runtime.mask_helper.helper import HelperClocks, HelperSettings, MaskHelper
from device_runtime.mask_helper.ledger import Ledger
from device_runtime.mask_helper.summing import SumLimits
from device_runtime.strategies.masking.masks import MaskedVector

from .conftest import SECRETS

THREE = ("pi-1", "pi-2", "pi-3")
LARGE = 40_000
"""Values of a vector that does not fit into a message."""


class Wire:
    """A link of which a test sees what is published."""

    url = "mqtt://broker"

    def __init__(self):
        self.sent = []
        self.under_way = 0

    def publish(self, topic, payload, retain=False):
        self.sent.append((topic, payload))
        return True

    def unacknowledged(self, topic=""):
        return self.under_way

    def take(self, leaf, kind):
        """The messages of this leaf since the last call, and no longer those."""
        topic = topics.up("club", leaf)
        messages = [decode(payload, kind) for where, payload in self.sent if where == topic]
        self.sent = [message for message in self.sent if message[0] != topic]
        return messages

    def blocks(self, blob):
        """Blocks of a blob by number, as they were sent."""
        prefix = topics.up("club", f"block/{blob.hex}/")
        return {int(where[len(prefix) :]): data for where, data in self.sent if where.startswith(prefix)}


class Bench:
    """A helper on a wire, and an aggregator's blobs; the helper's clock is the test's."""

    def __init__(self, folder, clock, limits):
        self.wire, self.clock = Wire(), clock
        self.ledger = Ledger(folder / "helper", lambda size: SECRETS[0][:size])
        settings = HelperSettings("club", folder / "helper", limits)
        clocks = HelperClocks(clock, lambda: 1_700_000_000.0)
        self.helper = MaskHelper(settings, 7, self.ledger, clocks)
        self.helper.begin(self.wire)
        self.blobs = Blobs(folder / "aggregator")

    def hear(self, leaf, message, retain=False):
        payload = message if isinstance(message, bytes) else encode(message)
        self.helper.inbox.put(Received(topics.down("club", leaf), payload, retain))
        self.helper.step()

    def work(self, most=5000):
        """Steps until nothing waits; Gets are answered from the aggregator's blobs."""
        for _ in range(most):
            if not self.helper.figures.waiting:
                return
            self.helper.step()
            for get in self.wire.take("get", Get):
                for index, data in answer_get(self.blobs, get):
                    self.hear(topics.block(get.blob.sha, index), data)
        raise AssertionError(f"{self.helper.figures.waiting} requests wait after {most} steps")

    def answers(self, *requests):
        for request in requests:
            self.hear("sum", request)
        self.work()
        return self.wire.take("sum", SumAnswer)

    def close(self):
        self.ledger.close()


@pytest.fixture
def bench(tmp_path, clock):
    with closing(Bench(tmp_path, clock, SumLimits())) as test_bench:
        yield test_bench


@pytest.fixture
def restarted(tmp_path, clock, bench):
    """The helper's next life, on what the first one left on disk."""
    benches = []

    def restart(limits=None):
        bench.close()
        benches.append(Bench(tmp_path, clock, limits or SumLimits()))
        return benches[-1]

    yield restart
    for test_bench in benches:
        test_bench.close()


def read(answer, masks, content=b""):
    return MaskedVector.from_bytes(content or answer.body, masks.values, masks.sums)


def is_sum(total, expected):
    return (total.values == expected.values).all() and (total.sums == expected.sums).all()


def test_a_request_is_answered_with_the_sum(bench, masking):
    masks = masking()
    request, _ = masks.request(*THREE)
    [answer] = bench.answers(request)
    assert (answer.id, answer.refusal, answer.blob) == (request.id, "", None)
    assert is_sum(read(answer, masks), masks.expected(*THREE))
    figures = bench.helper.figures
    assert (figures.sums, figures.devices, figures.refusals, figures.waiting) == (1, 3, 0, 0)


def test_a_refusal_says_why_and_a_later_set_is_summed(bench, masking):
    masks = masking()
    few, _ = masks.request("pi-1", "pi-2")
    enough, _ = masks.request(*THREE)
    first, second = bench.answers(few, enough)
    assert (first.id, first.body) == (few.id, b"")
    assert first.refusal == "the set has 2 devices, the round promises 3 or more"
    assert second.id == enough.id and second.refusal == ""
    assert (bench.helper.figures.refusals, bench.helper.figures.sums) == (1, 1)


def test_a_set_that_differs_by_one_device_is_refused_after_a_restart_too(bench, restarted, masking):
    masks = masking()
    more, _ = masks.request(*THREE, "pi-4")
    assert bench.answers(masks.request(*THREE)[0])[0].refusal == ""
    for life in range(2):
        live = restarted() if life else bench
        [answer] = live.answers(more)
        assert answer.body == b"" and answer.blob is None
        assert "pi-1, pi-2, pi-3 of 4 devices: in another set of round 4" in answer.refusal


def test_the_same_request_has_the_same_answer_in_each_life(bench, restarted, masking):
    masks = masking(sums=0, more={"noise_milli": 9000, "clip_milli": 8000, "exponents": ((5, 9),)})
    request, _ = masks.request(*THREE)
    [first] = bench.answers(request)
    assert bench.answers(request) == [first]
    assert restarted().answers(request) == [first]
    assert not is_sum(read(first, masks), masks.expected(*THREE))  # it has noise


def test_a_request_that_came_twice_before_its_answer_is_answered_once(bench, masking):
    request, _ = masking().request(*THREE)
    assert len(bench.answers(request, request)) == 1


def test_a_long_list_of_seeds_is_fetched_in_blocks(bench, masking):
    masks = masking()
    many = [f"pi-{number}" for number in range(1500)]
    _, content = masks.request(*many)
    blob = bench.blobs.put(content)
    assert blob.size > 65536
    [answer] = bench.answers(masks.request(*many, body=b"", blob=blob)[0])
    assert is_sum(read(answer, masks), masks.expected(*many))


def test_a_list_that_nobody_has_or_whose_blocks_do_not_come_is_given_up_and_asked_for_again(bench, masking):
    masks = masking()
    _, content = masks.request(*THREE)
    request, _ = masks.request(*THREE, body=b"", blob=blob_of(content))
    assert bench.answers(request) == []  # the aggregator says that it has no such blob
    bench.hear("sum", request)
    while bench.helper.figures.waiting:
        bench.clock.sleep(60.0)
        bench.helper.step()
    assert len(bench.wire.take("get", Get)) > helpers.MOST_SILENCES
    bench.blobs.put(content)
    [answer] = bench.answers(request)
    assert is_sum(read(answer, masks), masks.expected(*THREE))


def test_blocks_that_are_lost_with_the_link_are_asked_for_again_at_once(bench, masking):
    masks = masking()
    _, content = masks.request(*THREE)
    blob = bench.blobs.put(content)
    bench.hear("sum", masks.request(*THREE, body=b"", blob=blob)[0])
    assert len(bench.wire.take("get", Get)) == 1
    for event in (Disconnected("gone"), Connected(first=False)):
        bench.helper.inbox.put(event)
        bench.helper.step()
    assert len(bench.wire.take("get", Get)) == 1
    assert bench.helper.figures.connected


def test_a_list_too_long_for_the_owner_is_refused_before_it_is_fetched(bench, restarted, masking):
    masks = masking()
    content = bytes(1025)
    request, _ = masks.request(*THREE, body=b"", blob=blob_of(content))
    [answer] = restarted(SumLimits(most_devices=2)).answers(request)
    assert answer.refusal == "the list of seeds has 1025 bytes, at most 1024 are read here"


def test_a_large_sum_is_told_as_a_blob_and_served_in_blocks(bench, masking):
    masks = masking(values=LARGE)
    [answer] = bench.answers(masks.request(*THREE)[0])
    assert answer.body == b"" and answer.blob.size == 4 * LARGE + 16
    bench.hear("get", Get(blob=answer.blob, blocks=(0, 1, 2)))
    content = b"".join(data for _, data in sorted(bench.wire.blocks(answer.blob).items()))
    assert is_sum(read(answer, masks, content), masks.expected(*THREE))


def test_a_block_that_is_still_on_its_way_is_not_sent_twice(bench, masking):
    [answer] = bench.answers(masking(values=LARGE).request(*THREE)[0])
    bench.wire.under_way = 1
    bench.hear("get", Get(blob=answer.blob, blocks=(0,)))
    assert bench.wire.blocks(answer.blob) == {}


def test_a_sum_whose_blob_is_gone_is_made_again(bench, restarted, masking):
    masks = masking(values=LARGE)
    request, _ = masks.request(*THREE)
    [answer] = bench.answers(request)
    for life in range(2):
        live = restarted() if life else bench
        live.helper._blobs.remove(answer.blob)
        live.hear("get", Get(blob=answer.blob, blocks=(0,)))
        assert live.wire.blocks(answer.blob) == {-1: b""}
        assert live.answers(request) == [answer]
        assert live.helper._blobs.has(answer.blob)


def test_only_the_newest_answers_are_kept_and_no_list_of_seeds(bench, masking):
    for number in range(helpers.MOST_ANSWERS + 3):
        masks = masking(values=LARGE, more={"round": number})
        content = masks.request(*THREE)[1]
        request, _ = masks.request(*THREE, body=b"", blob=bench.blobs.put(content))
        assert len(bench.answers(request)) == 1
    folder = bench.helper._blobs.folder
    whole = [path for path in folder.iterdir() if path.is_file()]
    assert {path.stat().st_size for path in whole} == {4 * LARGE + 16}
    assert len(whole) == helpers.MOST_ANSWERS
    assert list((folder / "partial").iterdir()) == []


def test_blocks_of_an_earlier_answer_are_sent_while_a_sum_is_made(bench, masking):
    [answer] = bench.answers(masking(values=LARGE).request(*THREE)[0])
    bench.hear("sum", masking(more={"round": 5}).request(*THREE)[0])
    assert bench.helper.figures.waiting == 1
    bench.hear("get", Get(blob=answer.blob, blocks=(0,)))
    assert list(bench.wire.blocks(answer.blob)) == [0]
    assert bench.helper.figures.waiting == 1


def test_more_requests_than_can_wait_are_dropped(bench, masking, monkeypatch, caplog):
    monkeypatch.setattr(helpers, "MOST_WAITING", 2)
    requests = [masking(more={"round": number}).request(*THREE)[0] for number in range(3)]
    assert [answer.id for answer in bench.answers(*requests)] == [message.id for message in requests[:2]]
    assert "request dropped: 2 wait already" in caplog.text


def test_what_is_no_request_is_ignored(bench, masking, caplog):
    request, _ = masking().request(*THREE)
    bench.hear("sum", b"rubbish")
    bench.hear("sum", request, retain=True)
    bench.hear("task", b"")
    bench.helper.inbox.put(Received("fl/v1/elsewhere", b""))
    bench.helper.step()
    assert "ignored: not a SumRequest" in caplog.text
    assert "is not a device topic" in caplog.text
    assert bench.wire.sent == []
    assert len(bench.answers(request)) == 1


def test_a_full_disk_is_no_refusal(bench, masking, monkeypatch, caplog):
    from device_runtime.broker.errors import BlobError

    request, _ = masking(values=LARGE).request(*THREE)

    def full(_content):
        raise BlobError("cannot write x: no space left on device: free some space")

    with monkeypatch.context() as patch:
        patch.setattr(bench.helper._blobs, "put", full)
        assert bench.answers(request) == []
    assert "not made: cannot write x: no space left on device" in caplog.text
    assert len(bench.answers(request)) == 1


def test_presence_says_who_is_there_and_how_it_left(bench):
    states = [
        decode(will.payload, State)
        for will in (bench.helper.greeting(), bench.helper.will(), bench.helper.farewell())
    ]
    assert [(state.boot, state.online, state.leaving) for state in states] == [
        (7, True, False),
        (7, False, False),
        (7, False, True),
    ]
    assert bench.helper.greeting().topic == "fl/v1/d/club/up/state" and bench.helper.greeting().retain
    assert bench.helper.subscriptions == ("fl/v1/d/club/dn/#",)


def test_a_loop_that_does_nothing_is_silent(bench):
    bench.clock.sleep(30.0)
    assert bench.helper.silence_s() == 30.0
    bench.helper.step()
    assert bench.helper.silence_s() == 0.0


def test_memory_does_not_grow_with_the_devices(bench, masking):
    """A vector of 4 MB, and two copies of it as bytes, however many devices there are."""
    import tracemalloc

    peaks = []
    for number, devices in enumerate((3, 60)):
        masks = masking(values=1_000_000, more={"round": number})
        request, _ = masks.request(*(f"pi-{at}" for at in range(devices)))
        tracemalloc.start()
        bench.answers(request)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 14e6


def checked(bench, request):
    bench.hear("sum", SumCheck(request=request))
    bench.work()
    [answer] = bench.wire.take("sum", SumAnswer)
    assert (answer.id, answer.checked, answer.body, answer.blob) == (request.id, True, b"", None)
    return answer


def test_a_check_names_the_devices_whose_masks_are_wrong_and_uses_no_mask(bench, masking):
    masks = masking()
    wrong = masks.sealed("pi-0", round=3), masks.sealed("pi-9", min_group=2)
    answer = checked(bench, masks.request(*THREE, *wrong)[0])
    assert answer.invalid == ("pi-0", "pi-9")
    assert answer.refusal.startswith("the mask of pi-0 is not for this helper, or not for full in round 4")
    assert answer.refusal.endswith("; nor can those of pi-9 be opened")
    request, _ = masks.request(*THREE)
    assert checked(bench, request).invalid == ()
    [answer] = bench.answers(request)
    assert is_sum(read(answer, masks), masks.expected(*THREE))


def test_a_check_names_devices_that_are_in_another_set_but_not_of_the_same_one(bench, restarted, masking):
    masks = masking()
    request, _ = masks.request(*THREE)
    bench.answers(request)
    again = restarted()
    assert checked(again, request).used == ()
    assert checked(again, masks.request(*THREE, "pi-4")[0]).used == THREE


def test_a_set_that_is_too_small_is_refused_by_a_check_too(bench, masking):
    masks = masking()
    answer = checked(bench, masks.request("pi-1", "pi-2")[0])
    assert answer.refusal == "the set has 2 devices, the round promises 3 or more"
    assert answer.invalid == answer.used == ()


def test_one_device_with_masks_for_more_helpers_makes_no_liars_of_the_others(bench, masking):
    masks = masking()
    seed = masks.sealed("pi-0")
    more = SumSeed("pi-0", "", Mask(key=seed.mask.key, tags=(*seed.mask.tags, bytes(16))))
    assert checked(bench, masks.request(more, *THREE)[0]).invalid == ("pi-0",)


def test_presence_says_that_a_helper_checks(bench):
    assert decode(bench.helper.greeting().payload, HelperState).checks
