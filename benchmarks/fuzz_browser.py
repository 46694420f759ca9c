"""The browser's decoders, in Node, on random and mutated bytes, beside Python's on the same.

    .venv/bin/python benchmarks/fuzz_browser.py                    # 200,000 inputs, some minutes
    .venv/bin/python benchmarks/fuzz_browser.py --inputs 5000      # a look
    .venv/bin/python benchmarks/fuzz_browser.py --only steps --seed 7

An input is as in fuzz.py, or a sound one in which a value stands for another. It fails where Node's decoder
throws another error than the house's own, takes longer than SLOWEST_S, or more memory than GROWTH_BYTES and
some for each byte; and where one side reads what the other refuses, or reads something else. `stricter`
counts what only one side refuses and is known to: see `AGREED`. Ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).parent.parent
sys.path[0] = str(ROOT)  # where benchmarks is a package

import msgspec
from tabulate import tabulate

from benchmarks.browser_decoders import Pair, pairs
from benchmarks.fuzz import mutated

SLOWEST_S = 1.0
"""Seconds that one input may take in Node."""
GROWTH_BYTES, GROWTH_PER_BYTE = 8 << 20, 64
"""Bytes that Node may take for one input, garbage included."""
BATCH = 200
LONGEST_S = 60.0
"""For a batch."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 255, 2**31, 2**32, 2**53, 2**53 + 2, 2**63, 2**64 - 1, -(2**63),
    0.5, -0.5, 1e-50, 1e308, "", "a", "x" * 80, "__proto__", "constructor", "é", "\u00a0", "\u202e",
    "\u2028", "\U0001f600", "full", [], [0], [[]], [1] * 40, {}, {"a": 1}, {"__proto__": 1},
)  # fmt: skip
"""That stand in for a value of a sound input."""
AGREED = {
    "expected -9007199254740992 to": "whole numbers beyond 2**53 are none of JavaScript's",
    "beyond 2**53 are not counted": "the same",
    "compressed, expected as it is": "bundles travel uncompressed, and are unpacked by Python alone",
    "The key __proto__ is not allowed": "the library's, which keeps settings of this name from being read",
    "files, at most 100 are read": "a list that counts itself wrongly, which Python reads to its end",
    ", with a name twice": "of two entries of one name JavaScript reads the last",
    "got `float`": "JavaScript has one sort of numbers: 2.0 is 2",
    "is set: MOON's term is not trained in a browser": "kinds that a browser does not train, or not all of",
    "archive is not a sound zip": "the browser reads a zip's list, and believes hashes, not sums",
}
"""Parts of what one side says as it refuses what the other reads, and why that may be."""


@dataclass
class Outcome:
    inputs: int = 0
    refused: int = 0
    stricter: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    growth: int = 0
    seconds: float = 0.0
    first: list[str] = field(default_factory=list)

    def fails(self, number: int, why: str) -> None:
        self.failed += 1
        if len(self.first) < 5:
            self.first.append(f"input {number}: {why}")


@dataclass(frozen=True)
class Answer:
    verdict: int
    seconds: float
    growth: int
    content: bytes


class Node:
    """benchmarks/fuzz_browser.js, which lives until it is closed."""

    def __init__(self) -> None:
        command = ["node", str(ROOT / "benchmarks" / "fuzz_browser.js")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answers(self, name: str, inputs: list[bytes]) -> Iterator[Answer]:
        """In order. Node is killed where they take longer than LONGEST_S."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise OSError("node has no pipes")
        late = threading.Timer(LONGEST_S, self._process.kill)
        late.daemon = True
        late.start()
        writer = threading.Thread(target=_write, args=(stdin, name, inputs))
        writer.start()
        for _ in inputs:
            head = stdout.read(21)
            if len(head) < 21:
                raise OSError(f"{name}: node has ended, or took longer than {LONGEST_S:.0f} s")
            verdict, seconds, growth, size = struct.unpack("<BddI", head)
            yield Answer(verdict, seconds, int(growth), stdout.read(size))
        writer.join()
        late.cancel()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _write(stdin: BinaryIO, name: str, inputs: list[bytes]) -> None:
    name_bytes = name.encode()
    for data in inputs:
        stdin.write(struct.pack("<I", len(name_bytes)) + name_bytes + struct.pack("<I", len(data)) + data)
    stdin.flush()


def mutant(draw: random.Random, pair: Pair) -> bytes:
    """Damaged bytes, or a sound input with other values in one to three places."""
    if not pair.form or draw.random() < 0.5:
        return mutated(draw, pair.sound)
    data = draw.choice(pair.sound)
    if pair.form == "msgpack":
        value = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(_other(draw, value, (*VALUES, b"", b"abc", bytes(32))))
    head = 0 if pair.form == "json" else 8
    end = head and 8 + int.from_bytes(data[:8], "little")
    head_ = json.dumps(_other(draw, json.loads(data[head : end or None]), (*VALUES, "\ud800"))).encode()
    return head_ if not head else len(head_).to_bytes(8, "little") + head_ + data[end:]


def _other(draw: random.Random, value: Any, values: tuple[Any, ...]) -> Any:
    for _ in range(draw.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return deepcopy(draw.choice(values))
        holder, key = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 2:
                holder[key] = deepcopy(draw.choice(places)[0])
            case _:
                holder[key] = deepcopy(draw.choice(values))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner_ in list(inner):
        yield value, key
        yield from _places(inner_)


def fuzz(pair: Pair, node: Node, inputs: int, seed: int, keep: Path | None = None) -> Outcome:
    """Feed it to both sides, and compare."""
    draw = random.Random(f"{seed}:{pair.name}")  # noqa: S311 - inputs
    outcome, started = Outcome(), time.perf_counter()
    if pair.before:
        list(node.answers(f"before {pair.before[0]}", [pair.before[1]]))
    for reply in node.answers(pair.name, list(pair.sound)):
        if reply.verdict != 1:
            raise OSError(f"a sound {pair.name} is not read: {reply.content.decode()}")
    while outcome.inputs < inputs:
        batch = [mutant(draw, pair) for _ in range(min(BATCH, inputs - outcome.inputs))]
        for data, answer in zip(batch, node.answers(pair.name, batch), strict=True):
            before = outcome.failed
            _judge(pair, data, answer, outcome)
            if keep and outcome.failed > before:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{pair.name.replace(' ', '-')}-{outcome.inputs}").write_bytes(data)
            outcome.inputs += 1
    outcome.seconds = time.perf_counter() - started
    return outcome


def _judge(pair: Pair, data: bytes, answer: Answer, outcome: Outcome) -> None:
    outcome.refused += answer.verdict == 0
    outcome.slowest_s = max(outcome.slowest_s, answer.seconds)
    outcome.growth = max(outcome.growth, answer.growth)
    text = answer.content.decode("utf-8", "replace")[:400]
    if answer.verdict == 2:
        outcome.fails(outcome.inputs, f"node: {' '.join(text.split())}")
    elif answer.seconds > SLOWEST_S:
        outcome.fails(outcome.inputs, f"node took {answer.seconds:.1f} s for {len(data)} bytes")
    elif answer.growth > GROWTH_BYTES + GROWTH_PER_BYTE * len(data):
        outcome.fails(outcome.inputs, f"node grew by {answer.growth >> 20} MB for {len(data)} bytes")
    elif pair.read:
        _compare(pair, data, answer, outcome)


def _compare(pair: Pair, data: bytes, answer: Answer, outcome: Outcome) -> None:
    refusal = text = answer.content.decode("utf-8", "replace")
    try:
        ours = pair.read(data) if pair.read else None
        if answer.verdict == 1:
            if not pair.alike(ours, answer.content):
                outcome.fails(outcome.inputs, f"Python reads something else: {text[:200]} / {ours!r:.200}")
            return
        wrong = f"Python reads what Node refuses: {text[:300]}"
    except pair.errors as error:
        if answer.verdict == 0:
            return
        refusal = str(error)
        wrong = f"Node reads what Python refuses: {refusal[:300]}"
    except Exception as error:
        outcome.fails(outcome.inputs, f"Python: {type(error).__name__}: {str(error)[:300]}")
        return
    if any(part in refusal for part in AGREED):
        outcome.stricter += 1
    else:
        outcome.fails(outcome.inputs, wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200_000, help="in all (default: 200,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="NAME", help="one decoder")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    options = parser.parse_args()
    chosen = [decoder for decoder in pairs() if options.only in (None, decoder.name)]
    if not chosen:
        parser.error(
            f"there is no decoder {options.only!r}; there are {', '.join(each.name for each in pairs())}"
        )
    whole, rows, failed = sum(decoder.share for decoder in chosen), [], 0
    node = Node()
    try:
        for pair in chosen:
            inputs = max(1, round(options.inputs * pair.share / whole))
            print(f"{pair.name}: {inputs:,} inputs ...", file=sys.stderr, flush=True)
            came = fuzz(pair, node, inputs, options.seed, options.keep)
            failed += came.failed
            for line in came.first:
                print(f"  {line}", file=sys.stderr, flush=True)
            rows.append(
                (pair.name, f"{came.inputs:,}", f"{came.refused:,}", came.stricter if pair.read else "",
                 came.failed, f"{1e3 * came.slowest_s:.1f} ms", f"{came.growth / 1e6:.1f} MB",
                 f"{came.seconds:.0f} s")
            )  # fmt: skip
    finally:
        node.close()
    print(tabulate(rows, ("decoder", "inputs", "refused", "stricter", "failed", "slowest", "memory", "took")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
