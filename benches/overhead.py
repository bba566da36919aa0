"""What a step costs beside the forward: `python benches/overhead.py [--vocabulary N]`.

A session that answers at once with logits made in advance takes the model's place, so the time of a
step is the loop, the choice and the comparison alone; greedy choices are the engine's part. Medians
over the steps of a generation, then of a batch, where scheduling is added. Then what a proposal
costs per new token, by the length of the text.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs import FixedLength, PromptLookup, Sampling, SuffixDecoding
from specrs.decoding.generate import steps
from specrs.decoding.loop import Generation
from specrs.serving.cost import PassCost
from specrs.serving.pages import Pages
from specrs.serving.step import Steps

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
        self.highest: list[int] = rows.argmax(axis=1).tolist()
        self.tokens: list[int] = []
        self.sparse_spans: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def forward_last(self, tokens: Sequence[int], positions: int) -> npt.NDArray[np.float32]:
        """Answer with rows made in advance."""
        self.tokens += tokens
        start = len(self.tokens) % (len(self.rows) - positions)
        return self.rows[start : start + positions]

    def choose_last(self, tokens: Sequence[int], positions: int) -> list[int]:
        """Answer with their highest logits."""
        self.tokens += tokens
        start = len(self.tokens) % (len(self.rows) - positions)
        return self.highest[start : start + positions]

    def truncate(self, length: int) -> None:
        """Forget all ids from `length` on."""
        del self.tokens[length:]

    def lease(self) -> Prepared:
        """Let the one generation change the session."""
        return self

    def release(self) -> None:
        """End the lease."""

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class PreparedModel:
    """A model whose sessions are such."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self.rows = rows

    def session(self) -> Prepared:
        """Return a new session."""
        return Prepared(self.rows)

    def forward_many(
        self, inputs: Sequence[tuple[Prepared, list[int], int]], *, choose: Sequence[bool]
    ) -> list[Any]:
        """Answer for each session."""
        return [
            (lease.choose_last if chooses else lease.forward_last)(tokens, positions)
            for (lease, tokens, positions), chooses in zip(inputs, choose, strict=True)
        ]


class Repeating:
    """Draft one id over and over: nearly always rejected, so that each step makes one choice."""

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return as many ids as are asked for, whatever came before."""
        del tokens
        return [0] * k


def generation_of(rows: npt.NDArray[np.float32], sampling: Sampling, **options: Any) -> Generation:
    """Return what to generate."""
    return Generation(
        prompt=[1, 2, 3] * 300,
        n_ctx=4096,
        n_vocab=rows.shape[1],
        max_tokens=400,
        sampling=sampling,
        length=FixedLength(4),
        ends=lambda _: False,
        **options,
    )


def step_ms(rows: npt.NDArray[np.float32], sampling: Sampling, **options: Any) -> float:
    """Give the median time of a step."""
    generation = generation_of(rows, sampling, **options)
    events = steps(Prepared(rows), generation)  # type: ignore[arg-type]
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in events]
    return 1000 * statistics.median(end - start for start, end in pairwise(times))


def batch_ms(rows: npt.NDArray[np.float32], sampling: Sampling, count: int) -> float:
    """Give the median time of a step of a batch, for each of its `count` requests."""
    together = Steps(
        PreparedModel(rows),  # type: ignore[arg-type]
        Pages(10_000),
        max_requests=count,
        keep_prefixes=False,
        cost=PassCost(),
    )
    for number in range(count):
        generation = generation_of(rows, sampling, drafter=None)
        together.add(together.prepare(number, generation))
    times = []
    for _ in range(350):
        started = time.perf_counter()
        together.step()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times) / count


def proposal_us(drafter: PromptLookup | SuffixDecoding, length: int) -> float:
    """Give the median time of taking in a token and proposing, in a text of made-up phrases."""
    rng = random.Random(1)
    phrases = [[rng.randrange(49_152) for _ in range(rng.randrange(2, 8))] for _ in range(3000)]
    text: list[int] = []
    while len(text) < length:
        text += rng.choice(phrases)
    drafter.propose(text, 16)
    times = []
    for _ in range(2000):
        text.append(rng.choice(rng.choice(phrases)))
        started = time.perf_counter()
        drafter.propose(text, 16)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=49_152)
    n_vocab = parser.parse_args().vocabulary
    # Logits of the spread of real ones: a few tokens hold most of the probability.
    generator = np.random.default_rng(0)
    rows = (generator.standard_t(5, (64, n_vocab)) * 2.5).astype(np.float32)
    print(f"ms per step, {n_vocab} tokens of vocabulary")
    print(f"{'':<30}{'plain':>8}{'4 drafted':>11}{'logprobs 5':>12}")
    for name, sampling in SETTINGS.items():
        plain = step_ms(rows, sampling, drafter=None)
        drafted = step_ms(rows, sampling, drafter=Repeating())
        told = step_ms(rows, sampling, drafter=None, logprobs=5)
        print(f"{name:<30}{plain:>8.3f}{drafted:>11.3f}{told:>12.3f}")
    counts = (1, 8, 16)
    print("\nms per request and step of a batch, by requests")
    print(f"{'':<30}" + "".join(f"{count:>8}" for count in counts))
    for name, sampling in SETTINGS.items():
        cells = "".join(f"{batch_ms(rows, sampling, count):>8.3f}" for count in counts)
        print(f"{name:<30}{cells}")
    lengths = (1_000, 10_000, 100_000)
    print("\nmicroseconds per token and proposal")
    print(f"{'tokens of text':<30}" + "".join(f"{length:>10,}" for length in lengths))
    for make in (PromptLookup, SuffixDecoding):
        cells = "".join(f"{proposal_us(make(), length):>10.2f}" for length in lengths)
        print(f"{make.__name__:<30}{cells}")


if __name__ == "__main__":
    main()
