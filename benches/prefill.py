"""Long prompts: `python benches/prefill.py [--model M] [--lengths 512,2048,8192]`.

Prints the prefill speed of exact attention and of each pattern by length, what a position of
context costs, fidelity against exact attention on a long text, and a grid of passkey and
key-value questions by length and depth.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import specrs
from specrs.attention import Attention, BlockMean, DenseBelow, SinkWindow, SinkWindowLog, compare

PATTERNS: list[Attention] = [
    "dense",
    "auto",
    DenseBelow(2048, SinkWindow(window=1024)),
    DenseBelow(2048, SinkWindowLog(window=1024)),
    DenseBelow(2048, BlockMean(alpha=0.02)),
    DenseBelow(2048, BlockMean(alpha=0.1)),
]
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--model", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument("--lengths", default="512,1024,2048,4096,8000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", type=Path, help="a long text to compare the patterns on")
    parser.add_argument("--no-retrieval", action="store_true", help="speed and fidelity only")
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")]
    llm = specrs.Llama(specrs.pull(arguments.model))
    print(f"{llm.path.name}, {llm.kernels}, {llm.threads} threads")
    speed(llm, [length for length in lengths if length < llm.n_ctx], arguments.repeats)
    if arguments.text:
        ids = llm.tokenize(arguments.text.read_text(encoding="utf-8"))[: llm.n_ctx - 33]
        for pattern in PATTERNS[1:]:
            print(f"\n{compare(llm, ids, pattern)}")
    if not arguments.no_retrieval:
        for name, question in (("passkey", passkey), ("key-value", key_value)):
            retrieval(llm, name, question, [n for n in lengths if 1024 <= n < llm.n_ctx - 300])


def speed(llm: specrs.Llama, lengths: Sequence[int], repeats: int) -> None:
    """Print tokens a second, exact and sparse in turns, and the slope of the time per token."""
    random = np.random.default_rng(0)
    ids = random.integers(0, llm.n_vocab, max(lengths)).tolist()
    print(f"\n{'tokens/s':<60}" + "".join(f"{length:>9}" for length in lengths))
    seconds: dict[tuple[int, int], list[float]] = {}
    for length in lengths:
        for _ in range(repeats):
            for i, pattern in enumerate(PATTERNS):
                session = llm.session()
                start = time.perf_counter()
                session.prefill(ids[:length], attention=pattern)
                seconds.setdefault((i, length), []).append(time.perf_counter() - start)
    for i, pattern in enumerate(PATTERNS):
        medians = [statistics.median(seconds[i, length]) for length in lengths]
        row = "".join(f"{n / s:>9.0f}" for n, s in zip(lengths, medians, strict=True))
        per_token = [1e3 * s / n for n, s in zip(lengths, medians, strict=True)]
        slope = np.polyfit(lengths, per_token, 1)[0] if len(lengths) > 1 else float("nan")
        print(f"{pattern!s:<60}{row}   {1e3 * slope:.3f} µs a token and token of context")


def passkey(depth: float, sentences: int) -> tuple[str, str]:
    """Hide a number among `sentences` repetitions of the filler; the text and the answer."""
    before = round(depth * sentences)
    text = (
        FILLER * before
        + "The pass key is 71432. Remember it. 71432 is the pass key. "
        + FILLER * (sentences - before)
        + "What is the pass key? The pass key is"
    )
    return text, "71432"


def key_value(depth: float, sentences: int) -> tuple[str, str]:
    """Ask for one of many values; the text and the answer."""
    count = max(5, sentences * 2)
    random = np.random.default_rng(1)
    values = random.choice(90000, count, replace=False) + 10000
    asked = min(count - 1, round(depth * count))
    lines = "".join(f"The code of item {i + 100} is {value}.\n" for i, value in enumerate(values))
    return f"{lines}The code of item {asked + 100} is", str(values[asked])


def retrieval(llm: specrs.Llama, name: str, question: object, lengths: Sequence[int]) -> None:
    """Print which answers are right, a row for each pattern and length, a column for each depth."""
    assert callable(question)
    print(f"\n{name:<60}{'length':>8}  depth " + " ".join(f"{depth:>4.0%}" for depth in DEPTHS))
    for length in lengths:
        sentences = 1
        while len(llm.tokenize(question(0.5, sentences + 1)[0])) < length:
            sentences += 1
        for pattern in PATTERNS:
            marks = []
            for depth in DEPTHS:
                text, answer = question(depth, sentences)
                out = llm.generate(text, max_tokens=8, attention=pattern)
                marks.append("yes" if answer in out.text else "-")
            print(f"{pattern!s:<60}{length:>8}        " + " ".join(f"{m:>4}" for m in marks))


if __name__ == "__main__":
    main()
