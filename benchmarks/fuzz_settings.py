"""Targets of fuzz.py that read settings, tokens, and messages about sums and steps."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from benchmarks.fuzz_target import InFile, Target, mutated
from device_runtime.aggregator.configuration import config
from device_runtime.aggregator.errors import ConfigError, TaskError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.enrolment import FILE, Enrolment
from device_runtime.broker.wire import compact_round, messages, step_log
from device_runtime.broker.wire.messages import Mask, Message, Step
from device_runtime.broker.wire.sum_messages import SumAnswer, SumRequest, SumSeed
from device_runtime.cli.on_device import join
from device_runtime.cli.on_device.policy_options import RULES
from device_runtime.device.errors import PolicyError
from device_runtime.device.service import device_file
from device_runtime.mask_helper import summing
from device_runtime.mask_helper.summing import SumLimits, SumRefused
from device_runtime.models.data.labels import LabelMap
from device_runtime.models.data.sample_source import SampleSource
from device_runtime.models.errors import DataError, ModelError
from device_runtime.models.text import file as tokenizer_file
from device_runtime.models.text.file import SYMBOLS
from device_runtime.profiles.device import ProfileError
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios import scenario as scenarios

ROOT = Path(__file__).parent.parent
LIMITS = SumLimits()
TASK = b"""bundle = "b"
rounds = 9
family = ["smaller.zip"]
deadline_quantile = 0.9
server = { name = "fedadam", lr = 0.1 }
[statistics]
moments = true
[masks]
helpers = ["a=0000000000000000000000000000000000000000000000000000000000000000"]
min_group = 3
[[kinds]]
name = "full"
until_round = 5
settings = { epochs = 5, lr = 0.05, terms = { fedprox = { mu = 0.1 } } }
[[kinds]]
name = "width-slice"
from_round = 2
settings = { members = ["smaller.zip"] }
"""
MAP = b"""[labels]
"*" = "yes"
door = ""
[aliases]
no = ["kitchen", "background noise"]
"""
DEVICE = b"""broker = "mqtt://h"
data = "d"
memory = 64
labels = "l.toml"
[policy]
mains = true
allow_kinds = "full"
between = ["22:00-06:30"]
"""
TOKENIZERS = (
    json.dumps(
        {
            "normalizer": {"type": "BertNormalizer"},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "vocab": {"[UNK]": 0, "text": 1, "a": 2, "##s": 3},
            },
            "added_tokens": [{"id": 3, "content": "<mask>"}],
        }
    ).encode(),
    json.dumps(
        {
            "pre_tokenizer": {"type": "ByteLevel"},
            "model": {
                "type": "BPE",
                "vocab": {symbol: number for number, symbol in enumerate((*SYMBOLS, "te", "xt"))},
                "merges": ["t e", "x t"],
            },
        }
    ).encode(),
)

VALUES = (
    b"nan", b"inf", b"-inf", b"-1", b"0", b"1e400", b"99999999999999999999999999", b'""', b"[]", b"{}",
    b"true", b"1979-05-27", b'["a", 1]', b"{ a = 1 }", b'"' + b"x" * 5000 + b'"', b"0.5", b"[[[[]]]]",
    b'"\\u0000"', b'"\\u202e"', b"'~'", b"'/'", b'"../.."', b"[{}]", b"[nan]",
)  # fmt: skip


def values_mutated(draw: random.Random, sound: tuple[bytes, ...]) -> bytes:
    """Gives keys of a TOML file other values, renames them, and moves or doubles lines."""
    if draw.random() < 0.2:
        return mutated(draw, sound)
    lines = draw.choice(sound).split(b"\n")
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        key, equals, value = lines[at].partition(b"=")
        match draw.randrange(6):
            case 0 if equals:
                lines[at] = key + b"= " + draw.choice(VALUES)
            case 1 if equals:
                lines[at] = draw.choice(lines).partition(b"=")[0] + b" =" + value
            case 2:
                lines.insert(at, draw.choice(lines))
            case 3:
                del lines[at]
                lines = lines or [b""]
            case 4:
                lines[at] = lines[at].lstrip(b"# ")
            case _ if equals:
                lines[at] = key + b"= " + draw.choice(VALUES)
    return b"\n".join(lines)


def message_of(kind: type[Message]) -> Callable[[bytes], object]:
    return lambda data: messages.decode(data, kind)


def in_file(read: Callable[[Path], object]) -> InFile:
    """Reads the bytes as the file that this reader expects."""
    return InFile("labels.toml" if read is labels_of else FILE if read is enrolment_of else "file.toml", read)


def shipped(folder: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((ROOT / "profiles" / folder).glob("*.toml")))


def token_of(data: bytes) -> object:
    return Enrolment.of_token(data.decode("utf-8", "surrogateescape"))


def offer_of(data: bytes) -> object:
    return compact_round.decode_offer(data)


def enrolment_of(path: Path) -> object:
    return Enrolment.load(path.parent)


def task_of(path: Path) -> object:
    return tasks.load(path, {})


def server_of(path: Path) -> object:
    return config.load(path, {})


def fleet_of(path: Path) -> object:
    return fleets.load(path).draw(4, 0)


def scenario_of(path: Path) -> object:
    return scenarios.load(path)


def labels_of(path: Path) -> object:
    label_map = LabelMap.of(SampleSource(path.parent), ("yes", "no"))
    return label_map.names


def device_of(path: Path) -> object:
    """The options of `join` with this device file."""
    parser = argparse.ArgumentParser()
    join.add_arguments(parser)
    options = parser.parse_args(["--config", str(path)])
    options.flag_names = frozenset()
    device_file.fill(options, parser, RULES)
    return options


def texts_of(data: bytes) -> object:
    return list(tokenizer_file.decode(data).tokenizer().ids("A text, é 你 1_000!"))


def sums_of(data: bytes) -> object:
    """A request for a sum of masks, with its list of seeds."""
    request = messages.decode(data, SumRequest)
    summing.check_request(request, LIMITS)
    with suppress(SumRefused):  # its masks are of no device
        summing.opened_set(bytes(32), request, request.body, LIMITS)
    return request


def setting_targets() -> list[Target]:
    key = bytes(range(32))
    seeds = (
        SumSeed("pi-1", "full", Mask(key, (bytes(16),))),
        SumSeed("pi-2", "full", Mask(key, (bytes(16),))),
    )
    sum_request = SumRequest(
        id=key, task="t", run="r", round=3, kind="full", at=0, min_group=2, values=100, sums=0,
        body=msgspec.msgpack.encode(seeds),
    )  # fmt: skip
    answer = SumAnswer(id=key, body=b"sum")
    step = Step(3, "g/1", 7, "all", 0.1, 1.0, (0.5, -0.25))
    following = compact_round.CompactOffer(4, bytes(compact_round.CHECK_BYTES), scalars=(0.5,))
    enrolment = Enrolment("mqtts://broker.example:8883", "pi-1", "p" * 22, b"certificate", key, 1_700_000_000)
    tasks_of = (TASK, (ROOT / "deploy" / "site" / "task.toml").read_bytes())
    servers = ((ROOT / "deploy" / "site" / "server.toml").read_bytes().replace(b"{{http}}", b"8443"),)
    return [
        Target("sum request", sums_of, (BrokerError, SumRefused), (messages.encode(sum_request),), 0.5),
        Target("sum answer", message_of(SumAnswer), (BrokerError,), (messages.encode(answer),), 0.3),
        Target("compact offer", offer_of, (BrokerError,), (compact_round.encode_offer(following),), 0.3),
        Target("step log", step_log.decode, (BrokerError,), (step_log.encode([step, step]),), 0.5),
        Target("token", token_of, (BrokerError,), (enrolment.token.encode(),), 0.3),
        Target("enrolment", in_file(enrolment_of), (BrokerError,), (msgspec.json.encode(enrolment),), 0.2),
        Target("task file", in_file(task_of), (TaskError,), tasks_of, 0.3, values_mutated),
        Target("server file", in_file(server_of), (ConfigError,), servers, 0.2, values_mutated),
        Target("fleet", in_file(fleet_of), (ProfileError,), shipped("fleets"), 0.1, values_mutated),
        Target(
            "scenario", in_file(scenarios.load), (ScenarioError,), shipped("scenarios"), 0.1, values_mutated
        ),
        Target("label map", in_file(labels_of), (DataError,), (MAP,), 0.3, values_mutated),
        Target("device file", in_file(device_of), (PolicyError,), (DEVICE,), 0.3, values_mutated),
        Target("tokenizer", texts_of, (ModelError,), TOKENIZERS, 0.2),
    ]
