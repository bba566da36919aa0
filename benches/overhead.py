"""What a step costs beside the forward: `python benches/overhead.py [--vocabulary N]`.

A session that answers at once with logits made in advance takes the model's place, so the time of a
step is the loop, the choice and the comparison alone. Medians over the steps of a generation.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs import FixedLength, Sampling
from specrs.generate import steps

SETTINGS = {
    "greedy": Sampling(),
    "temperature 0.8, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "temperature 1": Sampling(temperature=1.0),
    "top-k 40": Sampling(temperature=0.8, top_k=40),
    "min-p 0.05": Sampling(temperature=1.0, min_p=0.05),
    "top-p and penalties": Sampling(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2
    ),
}


class Prepared:
    """A session without a model: every row is one of a few made in advance."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self.rows = rows
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def forward_last(self, tokens: Sequence[int], positions: int) -> npt.NDArray[np.float32]:
        """Answer with rows made in advance."""
        self.tokens += tokens
        start = len(self.tokens) % (len(self.rows) - positions)
        return self.rows[start : start + positions]

    def truncate(self, length: int) -> None:
        """Forget all ids from `length` on."""
        del self.tokens[length:]


class Repeating:
    """Draft one id over and over: nearly always rejected, so that each step makes one choice."""

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return as many ids as are asked for, whatever came before."""
        del tokens
        return [0] * k


def step_ms(rows: npt.NDArray[np.float32], sampling: Sampling, **options: Any) -> float:
    """Give the median time of a step."""
    events = steps(
        Prepared(rows),  # type: ignore[arg-type]
        [1, 2, 3] * 300,
        n_ctx=4096,
        n_vocab=rows.shape[1],
        max_tokens=400,
        sampling=sampling,
        length=FixedLength(4),
        ends=lambda _: False,
        **options,
    )
    return 1000 * statistics.median(step.seconds for step in events)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=49_152)
    n_vocab = parser.parse_args().vocabulary
    # Logits of the spread of real ones: a few tokens hold most of the probability.
    random = np.random.default_rng(0)
    rows = (random.standard_t(5, (64, n_vocab)) * 2.5).astype(np.float32)
    print(f"ms per step, {n_vocab} tokens of vocabulary")
    print(f"{'':<30}{'plain':>8}{'4 drafted':>11}{'logprobs 5':>12}")
    for name, sampling in SETTINGS.items():
        plain = step_ms(rows, sampling, drafter=None)
        drafted = step_ms(rows, sampling, drafter=Repeating())
        told = step_ms(rows, sampling, drafter=None, logprobs=5)
        print(f"{name:<30}{plain:>8.3f}{drafted:>11.3f}{told:>12.3f}")


if __name__ == "__main__":
    main()
