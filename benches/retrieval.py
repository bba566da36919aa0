"""Questions whose answer hides in a long prompt, asked by length, depth and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import specrs
from specrs.attention import Attention

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)


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


QUESTIONS: dict[str, Callable[[float, int], tuple[str, str]]] = {
    "passkey": passkey,
    "key-value": key_value,
}


def grid(
    llm: specrs.Llama, name: str, patterns: Sequence[Attention], lengths: Sequence[int]
) -> list[dict[str, object]]:
    """Print and return which answers are right: a row for each length and pattern."""
    question = QUESTIONS[name]
    print(f"\n{name:<72}{'length':>8}  depth " + " ".join(f"{depth:>4.0%}" for depth in DEPTHS))
    rows: list[dict[str, object]] = []
    for length in lengths:
        sentences = _sentences(llm, question, length)
        for pattern in patterns:
            right = []
            for depth in DEPTHS:
                text, answer = question(depth, sentences)
                right.append(answer in llm.generate(text, max_tokens=8, attention=pattern).text)
            marks = " ".join(f"{'yes' if found else '-':>4}" for found in right)
            print(f"{pattern!s:<72}{length:>8}        {marks}", flush=True)
            rows.append({"task": name, "length": length, "attention": str(pattern), "right": right})
    return rows


def _sentences(
    llm: specrs.Llama, question: Callable[[float, int], tuple[str, str]], length: int
) -> int:
    """Return how many sentences make a prompt of at most `length` tokens."""
    low, high = 1, length
    while high - low > 1:
        middle = (low + high) // 2
        if len(llm.tokenize(question(0.5, middle)[0])) <= length:
            low = middle
        else:
            high = middle
    return low
