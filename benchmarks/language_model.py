"""A small RoBERTa, pre-trained on the sentences of SST-2 by masked language modelling, as a folder to export.

4 layers, 4,000 tokens learnt from the same sentences: 1.3 million parameters where it is 128 wide, on one
core in less than a quarter of an hour. The same seed gives the same bits on one machine. It knows no other
text, and no label. Sentences come from DEVICE_RUNTIME_DATA; the folder is of the form of `transformers`.

    python benchmarks/language_model.py --out runs/sst2-roberta
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_runtime.models.text.file import TokenizerFile, encode
from device_runtime.models.text.vocabulary import learn_tokenizer, texts_of

DATA = Path(os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data"))
TOKENS, LENGTH, LAYERS, HEADS = 4000, 64, 4, 4
BATCH, RATE, WARM = 64, 1e-3, 100
NEAR = 16  # batches that are sorted together
CHOSEN, MASKED, CHANGED = 0.15, 0.8, 0.1  # of tokens; of those chosen (Devlin et al. 2019, 3.1)
START, PADDING, END, MASK = 0, 1, 2, 4


def main() -> None:
    """Trains, says the loss on the way, writes config.json, model.safetensors and tokenizer.json."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--width", type=int, default=128)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    texts = texts_of(DATA / "sst2_train.tsv")
    tokenizer = learn_tokenizer(texts, "byte-pairs/1", TOKENS)
    ids, holdout = (rows(tokenizer, some) for some in (texts, texts_of(DATA / "sst2_dev.tsv")))
    model = network(arguments.width)
    begun = time.process_time()
    train(model, ids, holdout, arguments.steps, np.random.default_rng(arguments.seed))
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(arguments.out)
    (arguments.out / "tokenizer.json").write_bytes(encode(tokenizer))
    print(
        f"{arguments.out}: {arguments.steps} steps in {time.process_time() - begun:.0f} s of processor time"
    )


def network(width: int) -> nn.Module:
    """With random weights of torch's global generator."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=TOKENS, max_position_embeddings=LENGTH + 2, hidden_size=width, type_vocab_size=1,
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * width,
            layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def rows(file: TokenizerFile, texts: list[str]) -> list[NDArray[np.int64]]:
    """The ids of each text, at most LENGTH, with what stands around it."""
    tokenizer = file.tokenizer()
    texts_ids = (list(tokenizer.ids(text))[: LENGTH - 2] for text in texts)
    return [np.array([START, *ids, END]) for ids in texts_ids]


def train(
    model: nn.Module,
    ids: list[NDArray[np.int64]],
    holdout: list[NDArray[np.int64]],
    steps: int,
    rng: np.random.Generator,
) -> None:
    """AdamW, the rate warmed up and then falling to 0 in a line."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM, (steps - step) / max(1, steps - WARM))
    )
    fixed = [batch for batch, _ in zip(batches(holdout, np.random.default_rng(1)), range(8), strict=False)]
    total = 0.0
    for step, (x, where, y) in zip(range(1, steps + 1), batches(ids, rng), strict=False):
        loss = masked_loss(model, x, where, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % 100 == 0 or step == steps:
            with torch.no_grad():
                other = sum(masked_loss(model, *batch).item() for batch in fixed) / len(fixed)
            mean = total / (step % 100 or 100)
            print(f"step {step}: loss {mean:.3f}, on other sentences {other:.3f}", flush=True)
            total = 0.0


def masked_loss(model: nn.Module, x: Tensor, where: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy at the chosen tokens alone: the head is computed nowhere else."""
    states = model.roberta(input_ids=x, attention_mask=(x != PADDING).long())[0]
    return nn.functional.cross_entropy(model.lm_head(states[where]), y)


def batches(
    ids: list[NDArray[np.int64]], rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """x (n, longest), where tokens were chosen, and what they were.

    Each pass has another order; texts of one batch are about as long, so that little is filled up.
    """
    while True:
        order = rng.permutation(len(ids))
        near = [order[i : i + NEAR * BATCH] for i in range(0, len(order), NEAR * BATCH)]
        near = [sorted(some, key=lambda number: len(ids[number])) for some in near]
        alike = [some[i : i + BATCH] for some in near for i in range(0, len(some), BATCH)]
        for chosen in rng.permutation(len(alike)):
            part = [ids[i] for i in alike[chosen]]
            x = np.full((len(part), max(map(len, part))), PADDING)
            for row, sample in zip(x, part, strict=True):
                row[: len(sample)] = sample
            where = (rng.random(x.shape) < CHOSEN) & (x > MASK)
            y = torch.from_numpy(x[where])
            draw, other = rng.random(len(y)), rng.integers(MASK + 1, TOKENS, len(y))
            shown_ids = np.where(draw < MASKED + CHANGED, other, x[where])
            x[where] = np.where(draw < MASKED, MASK, shown_ids)
            yield torch.from_numpy(x), torch.from_numpy(where), y


if __name__ == "__main__":
    main()
