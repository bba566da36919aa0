"""Gemma 3 270M: windows, lossless speculation, sessions beyond a window, sparse prefill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specrs
from bits import assert_same_bits, in_pieces
from specrs._specrs import Model
from specrs.attention import DenseLayers, SinkWindow
from specrs.cli.demo import DEMO_RECORDS

DATA = Path(__file__).parent / "data"

# Of its 18 blocks 5, 11 and 17 see all positions, the others so many.
WINDOW = 512


@pytest.fixture(scope="module")
def llm(gemma3: Path, threads: int) -> specrs.Llama:
    return specrs.Llama(gemma3, threads=threads)


@pytest.fixture(scope="module")
def model(gemma3: Path, threads: int) -> Model:
    return Model(gemma3, threads=threads)


@pytest.fixture(scope="module")
def long_text(llm: specrs.Llama) -> list[int]:
    """Give 1,200 tokens of English, more than two windows."""
    lines = (DATA / "spec_bench_60.jsonl").read_text().splitlines()
    text = "\n\n".join(json.loads(line)["prompt"] for line in lines)
    return llm.tokenize(text)[:1200]


def prompts(llm: specrs.Llama) -> list[list[int]]:
    """Give the beginnings of 20 texts of all six tasks of Spec-Bench."""
    lines = (DATA / "spec_bench_60.jsonl").read_text().splitlines()
    return [llm.tokenize(json.loads(line)["prompt"])[:50] for line in lines[::3]]


def test_it_knows_what_follows(llm: specrs.Llama) -> None:
    for prompt, words in [
        ("The capital of France is the city of", "Paris"),
        ("The opposite of hot is", "cold"),
        ("1, 2, 3, 4, 5, 6, 7,", "8, 9, 10"),
        ("Monday, Tuesday, Wednesday,", "Thursday, Friday"),
    ]:
        assert words in llm.generate(prompt, max_tokens=10).text, prompt


def test_greedy_generation_repeats_itself(llm: specrs.Llama, gemma3: Path, threads: int) -> None:
    again = specrs.Llama(gemma3, threads=threads)
    for prompt in prompts(llm)[:3]:
        tokens = llm.generate(prompt, max_tokens=20).tokens
        assert llm.generate(prompt, max_tokens=20).tokens == tokens
        assert again.generate(prompt, max_tokens=20).tokens == tokens


@pytest.mark.parametrize(
    "sampling",
    [specrs.Sampling(), specrs.Sampling(temperature=0.8, top_p=0.95, seed=7)],
    ids=["greedy", "sampled"],
)
def test_speculation_changes_nothing(llm: specrs.Llama, sampling: specrs.Sampling) -> None:
    makers: list[Callable[[], Any]] = [
        specrs.PromptLookup,
        specrs.SuffixDecoding,
        lambda: specrs.DraftModel(llm),
    ]
    drafters = [make() for make in makers]
    compared = drafted = 0
    for i, prompt in enumerate(prompts(llm)):
        plain = llm.generate(prompt, max_tokens=20, sampling=sampling)
        for drafter in drafters:
            fast = llm.generate(
                prompt,
                max_tokens=20,
                sampling=sampling,
                drafter=drafter,
                draft_length=specrs.FixedLength(3),
            )
            assert fast.tokens == plain.tokens, f"prompt {i}, {type(drafter).__name__}"
            compared += len(fast.tokens)
            drafted += fast.stats.num_draft_tokens
    print(f"{compared} ids compared, {drafted} drafted")
    assert compared > 20 * 3 * 10
    assert drafted > compared / 2


def test_a_perfect_draft_is_accepted_beyond_the_window(
    llm: specrs.Llama, long_text: list[int]
) -> None:
    out = llm.generate(
        long_text[: WINDOW + 100],
        max_tokens=40,
        ignore_eos=True,
        drafter=specrs.DraftModel(llm),
        draft_length=specrs.FixedLength(4),
    )
    assert out.stats.acceptance_rate == 1.0


def test_lookup_pays_on_the_records_of_the_demo(llm: specrs.Llama) -> None:
    out = llm.generate(
        DEMO_RECORDS,
        max_tokens=60,
        drafter=specrs.PromptLookup(),
        draft_length=specrs.FixedLength(8),
    )
    assert out.stats.tokens_per_call > 2


def test_rows_beyond_the_window_keep_their_bits(model: Model, long_text: list[int]) -> None:
    tokens = long_text[: WINDOW + 200]
    wanted = model.session().forward_all_positions(tokens)
    for lengths in ([300], [WINDOW - 1, 1, 2, 64], [WINDOW, 65, 7, 1]):
        assert_same_bits(in_pieces(model.session(), tokens, lengths), wanted)


def test_a_session_goes_back_and_forks_beyond_the_window(
    model: Model, long_text: list[int]
) -> None:
    """Keys of positions that no later row sees are still there when the session is cut back."""
    tokens, other = long_text[: WINDOW + 300], long_text[-50:]

    def fresh(ids: list[int]) -> Any:
        session = model.session()
        session.prefill(ids[:-1])
        return session.forward(ids[-1:])

    session = model.session()
    session.prefill(tokens)
    snapshot = session.snapshot()
    fork = session.fork()
    for length in (WINDOW + 250, WINDOW, WINDOW - 5, 100):
        session.truncate(length)
        assert_same_bits(session.forward(other), fresh(tokens[:length] + other))
        session.truncate(length)
    session.restore(snapshot)
    assert_same_bits(session.forward(other), fresh(tokens + other))
    assert_same_bits(fork.forward(other[::-1]), fresh(tokens + other[::-1]))


def test_sparse_prefill_acts_on_blocks_without_a_window_alone(
    model: Model, long_text: list[int]
) -> None:
    pattern = SinkWindow(sink=64, window=64)
    wanted = model.session().prefill(long_text, positions=1)

    def sparse(first: int, last: int) -> Any:
        attention = DenseLayers(first, last, pattern)
        return model.session().prefill(long_text, attention=attention, positions=1)

    assert_same_bits(sparse(12, 1), wanted)  # blocks 12 to 16 have windows
    for first, last in [(11, 6), (5, 12), (0, 0)]:  # block 11, block 5, all
        assert not np.array_equal(sparse(first, last), wanted)
