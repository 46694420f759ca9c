"""Masked rounds within the process of a test: devices that mask their updates, and mask helpers.

Both use the real core (`strategies.masking`); only their link is the bench's.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan

import msgspec
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import INLINE_LIMIT, Get
from device_runtime.broker.wire.sum_messages import (
    HelperState,
    SumAnswer,
    SumCheck,
    SumRequest,
    SumSeed,
    sum_question_in,
)
from device_runtime.broker.wire.transfer import answer_get, opening_blocks
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.noise import add_noise
from device_runtime.strategies.masking.seeds import MaskPurpose, seal, unseal
from device_runtime.strategies.masking.sums import Weighed


@dataclass
class Helper:
    """A mask helper.

    refusal: what it answers instead of a sum. wrong: its sums are of another seed. noise: its random bytes.
    used: the devices of the sums that it has told, by round; it tells no second one of any of them.
    """

    name: str
    secret: bytes
    folder: object
    refusal: str = ""
    wrong: bool = False
    noise: Callable[[int], bytes] = os.urandom
    answered: dict = field(default_factory=dict)
    used: dict = field(default_factory=dict)

    @property
    def written(self):
        return f"{self.name}={crypto_scalarmult_base(self.secret).hex()}"

    def requests(self, b):
        """All requests that the bench has sent to it, in order."""
        return [question for question in self._questions(b) if isinstance(question, SumRequest)]

    def checks(self, b):
        """All requests that the bench has asked it to check, in order."""
        return [question.request for question in self._questions(b) if isinstance(question, SumCheck)]

    def _questions(self, b):
        topic = topics.down(self.name, "sum")
        return [sum_question_in(payload) for where, payload in b.link.sent if where == topic]

    def check(self, b):
        """Answers every check that it has not answered yet. Returns whether there was one."""
        new = [request for request in self.checks(b) if ("check", request.id) not in self.answered]
        for request in new:
            refusal, invalid, used = "", [], []
            for seed in self._seeds(b, request):
                try:
                    unseal(self.secret, seed.mask, request.at, MaskPurpose.of_request(request, seed))
                except MaskError as error:
                    refusal = str(error)
                    invalid.append(seed.device)
                if seed.device in self.used.get((request.run, request.round), {}):
                    used.append(seed.device)
            refusal = refusal or ("used before" if used else "")
            answer = SumAnswer(
                id=request.id, refusal=refusal, invalid=tuple(invalid), used=tuple(used), checked=True
            )
            self.answered["check", request.id] = answer
            self.say(b, answer)
        return bool(new)

    def answer(self, b):
        """Answers every request that it has not answered yet, and gives every block that is asked for."""
        for request in self.requests(b):
            if request.id not in self.answered:
                self.answered[request.id] = self._sum(b, request)
                self.say(b, self.answered[request.id])
        b.service.tick()

    def say(self, b, answer):
        count = len(b.link.sent)
        b.say(self.name, "sum", answer)
        while gets := self._gets(b, count):
            count = len(b.link.sent)
            for get in gets:
                for index, data in answer_get(self._blobs, get):
                    b.raw(topics.up(self.name, topics.block(get.blob.sha, index)), data)

    def come(self, b, checks=False):
        b.say(self.name, "state", HelperState(boot=1, online=True, checks=checks))

    @property
    def _blobs(self):
        return Blobs(self.folder / self.name)

    def _gets(self, b, since):
        topic = topics.down(self.name, "get")
        return [messages.decode(payload, Get) for where, payload in b.link.sent[since:] if where == topic]

    def _seeds(self, b, request):
        body = request.body
        if request.blob:
            b.say(self.name, "get", opening_blocks(request.blob))
            topic = topics.down(self.name, f"block/{request.blob.hex}/")
            blocks = {where: payload for where, payload in b.link.sent if where.startswith(topic)}
            body = b"".join(blocks[f"{topic}{at}"] for at in range(len(blocks)))
            assert hashlib.sha256(body).digest() == request.blob.sha
        return msgspec.msgpack.decode(body, type=tuple[SumSeed, ...])

    def _sum(self, b, request):
        if self.refusal:
            return SumAnswer(id=request.id, refusal=self.refusal)
        total = MaskedVector.zeros(request.values, request.sums)
        for seed in self._seeds(b, request):
            purpose = MaskPurpose.of_request(request, seed)
            total.add_masks([unseal(self.secret, seed.mask, request.at, purpose)])
            assert (
                self.used.setdefault((request.run, request.round), {}).setdefault(seed.device, request.id)
                == request.id
            )
        if request.noise_milli:
            deviation = request.noise_milli * request.clip_milli / 1e6 / len(seed.mask.tags) ** 0.5
            add_noise(total, request.exponents, deviation, self.noise)
        if self.wrong:
            total.add_masks([bytes(32)])
        content = total.to_bytes()
        if len(content) <= INLINE_LIMIT:
            return SumAnswer(id=request.id, body=content)
        return SumAnswer(id=request.id, blob=self._blobs.put(content))


def masked_contribution(b, device, kind, update, number=1, form=None):
    """The masked contribution of a device to round `number`: (tensors, num_examples) or a Update."""
    run = b.service.rounds
    strategy = next(entry.strategy for entry in run.task.kinds if entry.name == kind)
    strategy = variant_named(strategy, strategy.variants()[0].variant if form is None else form)
    if not isinstance(update, Update):
        update = Update(kind, update[0], update[1], 0.5, strategy.variant)
    masks = b.store.sums.masks(number)
    manifest = run.tools.manifests[strategy.member]
    layout = layout_of(strategy, manifest, run.weights(number, strategy.member), masks)
    vector, _ = sums.write(Weighed(update, strategy, masks.most_weight), layout, masks.clip_milli / 1000)
    purpose = MaskPurpose(
        b.task.name,
        run.run,
        number,
        kind,
        strategy.variant,
        device,
        masks.min_group,
        masks.noise_milli,
        masks.clip_milli,
        layout.exponents if masks.noise_milli else (),
    )
    secret = hashlib.sha256(f"{device} {number} {kind}".encode()).digest()
    mask, seeds = seal(secret, [helper.key for helper in masks.helpers], purpose)
    vector.add_masks(seeds)
    message = b.contribution(kind, (vector.to_bytes(), update.num_examples), number, mask=mask)
    metrics = msgspec.structs.replace(message.metrics, train_loss=nan)
    return msgspec.structs.replace(message, form=strategy.variant, metrics=metrics)


@pytest.fixture
def mask_of():
    """Masks an update: (bench, device, kind, update, round, form) -> Contribution."""
    return masked_contribution


@pytest.fixture
def helpers(tmp_path):
    return [Helper(name, bytes([at + 1]) * 32, tmp_path) for at, name in enumerate(("helper-a", "helper-b"))]


@pytest.fixture
def masked_task(make_task, helpers):
    """A task with two mask helpers, and sums of two devices or more."""

    def make(*kinds, min_group=2, **settings):
        masks = MaskSettings(tuple(helper.written for helper in helpers), min_group)
        return make_task(*kinds, masks=masks, **settings)

    return make
