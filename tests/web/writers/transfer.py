"""Blobs in blocks: hashes, what a Get is answered with, and what a pull asks for as time goes by."""

import random
import tempfile
from pathlib import Path
from typing import Any

from device_runtime.broker.wire import transfer
from device_runtime.broker.wire.blobs import BLOCK, Blobs, blob_of, block_count, block_length
from device_runtime.broker.wire.messages import Blob, Get
from device_runtime.broker.wire.transfer import Pull, answer_get

SIZES = (0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17)
BLOCKS = 40
GETS = ((0,), (3, 1, 1, 0), (-1, 4, 99), tuple(range(60)), ())


def content(size: int) -> bytes:
    """Byte i is (i * i + i // 251) mod 256."""
    return bytes((i * i + i // 251) % 256 for i in range(size))


def pull_script(seed: int, folder: Path) -> list[dict[str, Any]]:
    """What a pull is told at random, over a link that loses and repeats, and what it says."""
    draw = random.Random(seed)
    data = content(BLOCK * (BLOCKS - 1) + 5)
    blob = blob_of(data)
    pull = Pull(blob, Blobs(folder).partial(blob))
    now, coming, script = 0.0, list[int](), list[dict[str, Any]]()
    while not pull.done:
        now = round(now + draw.choice((0.0, 0.25, 1.0, 3.5, 20.0)), 2)
        match draw.choices(("wanted", "received", "restart", "expect"), (10, 20, 1, 1))[0]:
            case "wanted":
                blocks = pull.next_blocks(now)
                coming += blocks
                step: dict[str, Any] = {"do": "wanted", "says": blocks}
            case "received":
                if not coming:
                    continue
                index = coming.pop(draw.randrange(len(coming))) if draw.random() < 0.8 else coming[0]
                length = block_length(blob, index)
                cut = draw.random() < 0.1
                block = data[index * BLOCK : index * BLOCK + length - cut]
                says = pull.received(index, block, now) if draw.random() < 0.8 else None
                step = {"do": "received", "index": index, "cut": cut, "says": says}
                if says is None:
                    continue  # lost on the way
            case "restart":
                pull.restart()
                step = {"do": "restart", "says": None}
            case _:
                pull.expect(now)
                step = {"do": "expect", "says": None}
        script.append({"now": now, **step, "unanswered": pull.unanswered, "refused": pull.refused})
    return script


def vectors() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        blobs = Blobs(Path(folder) / "blobs")
        large = blobs.put(content(SIZES[-1]))
        unknown = Blob(bytes(32), BLOCK)
        answers = [
            {
                "sha": blob.sha,
                "size": blob.size,
                "blocks": blocks,
                "answer": [
                    (index, len(data)) for index, data in answer_get(blobs, Get(blob=blob, blocks=blocks))
                ],
            }
            for blob in (large, unknown)
            for blocks in GETS
        ]
        scripts = [pull_script(seed, Path(folder) / str(seed)) for seed in range(4)]
    return {
        "block": BLOCK,
        "window": transfer.WINDOW,
        "blobs": [
            {
                "size": size,
                "sha": blob_of(content(size)).sha,
                "lengths": [
                    block_length(blob_of(content(size)), index)
                    for index in range(block_count(blob_of(content(size))))
                ],
            }
            for size in SIZES
        ],
        "answers": answers,
        "pulled": BLOCK * (BLOCKS - 1) + 5,
        "pulls": scripts,
    }
