"""Generate texts with known entropy, which is the lowest loss that a model can reach.

    python -m training.source --out-dir DIR [--letters 8 --documents 2000 --length 64 --seed 1]

A Markov chain generates train.jsonl and val.jsonl. Its states are letters and an end-of-document state.
source.json contains two values, in nats per predicted byte:

    entropy   the entropy of the chain, which is the loss of the best possible model on infinite data
    val       the loss on val.jsonl if the chain's own probabilities are the prediction. A model can have a
              lower loss only by chance.

A model needs a context of only one letter, because the next state depends only on the current state.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Chain:
    """A Markov chain. `next[i][j]` is the probability that j follows i. The last state ends a document."""

    next: tuple[tuple[float, ...], ...]

    @property
    def letters(self) -> str:
        return string.ascii_lowercase[: len(self.next) - 1]

    def document(self, numbers: random.Random) -> str:
        """Return the text of a random document, which may be empty."""
        end = state = len(self.next) - 1
        text: list[str] = []
        while True:
            state = numbers.choices(range(end + 1), self.next[state])[0]
            if state == end:
                return "".join(text)
            text.append(self.letters[state])

    def shares(self) -> list[float]:
        """Return the stationary distribution of the states."""
        shares = [1 / len(self.next)] * len(self.next)
        for _ in range(10_000):
            next_shares = [
                sum(shares[i] * self.next[i][j] for i in range(len(shares))) for j in range(len(shares))
            ]
            if max(abs(a - b) for a, b in zip(shares, next_shares, strict=True)) < 1e-15:
                break
            shares = next_shares
        return shares

    def entropy(self) -> float:
        """Return the entropy of the next state, given the current state, in nats."""
        return sum(
            share * -sum(p * math.log(p) for p in row if p)
            for share, row in zip(self.shares(), self.next, strict=True)
        )

    def loss(self, documents: Sequence[str]) -> float:
        """Return the mean loss in nats on the documents if the chain's own probabilities are the prediction.

        As in train_framework.py, every byte in the document stream except the first is predicted.
        """
        end = len(self.next) - 1
        states = [state for text in documents for state in [*map(self.letters.index, text), end]]
        losses = [-math.log(self.next[before][now]) for before, now in pairwise(states)]
        return sum(losses) / len(losses)


def chain(letters: int, length: float, seed: int) -> Chain:
    """Return a random chain in which each state has only a few likely successors.

    Documents have `length` letters on average.
    """
    numbers = random.Random(seed)
    rows = []
    for state in range(letters + 1):
        weights = [numbers.expovariate(1.0) ** 3 + 0.01 for _ in range(letters)]
        end_share = 0.0 if state == letters else 1 / length
        rows.append((*(weight / sum(weights) * (1 - end_share) for weight in weights), end_share))
    return Chain(tuple(rows))


def main(arguments: list[str] | None = None) -> int:
    """Write the files, and return the exit code."""
    parser = argparse.ArgumentParser("python -m training.source", description=__doc__.splitlines()[0])
    parser.add_argument("--out-dir", type=Path, required=True)
    parser.add_argument("--letters", type=int, default=8, choices=range(2, 27), metavar="2…26")
    parser.add_argument(
        "--documents", type=int, default=2000, help="documents in train.jsonl; val.jsonl has a tenth of them"
    )
    parser.add_argument("--length", type=float, default=64, help="average number of letters per document")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    source = chain(options.letters, options.length, options.seed)
    options.out_dir.mkdir(parents=True, exist_ok=True)
    texts: dict[str, list[str]] = {}
    for name, count in (("train", options.documents), ("val", max(10, options.documents // 10))):
        numbers = random.Random(f"{options.seed}/{name}")
        texts[name] = [source.document(numbers) for _ in range(count)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[name])
        (options.out_dir / f"{name}.jsonl").write_text(lines)
    figures = {"entropy": source.entropy(), "val": source.loss(texts["val"])}
    (options.out_dir / "source.json").write_text(json.dumps(figures))
    print(
        f"{options.out_dir}: entropy {figures['entropy']:.4f} "
        f"nats per byte; loss on val.jsonl {figures['val']:.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
