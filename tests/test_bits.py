"""Rows of logits have the same bits however the tokens are split, batched or threaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bits import assert_same_bits, cold, in_pieces, random_ids
from blocks import QUANT_TYPES
from specrs._specrs import Model

# Rows per call: each tile size of the kernels, one less and one more.
ROWS = [*range(1, 18), 31, 33]

Load = Callable[[str], Model]


@pytest.fixture(scope="session")
def load(tiny: Callable[..., Path], threads: int) -> Load:
    models: dict[str, Model] = {}

    def load_model(quant: str) -> Model:
        if quant not in models:
            models[quant] = Model(tiny(quant=quant, seed=1), threads=threads)
        return models[quant]

    return load_model


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_any_number_of_rows(load: Load, quant: str) -> None:
    model = load(quant)
    tokens = random_ids(model, 68)  # four more than a cache block of 64 positions
    wanted = cold(model, tokens)
    for rows in ROWS:
        assert_same_bits(in_pieces(model.session(), tokens, [rows]), wanted)


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("n_ff", [72, 80])
def test_incomplete_tiles(tiny: Callable[..., Path], threads: int, n_ff: int) -> None:
    model = Model(tiny(n_ff=n_ff, seed=1), threads=threads)
    tokens = random_ids(model, 40)
    wanted = model.session().forward_all_positions(tokens)
    for rows in (1, 3, 17):
        assert_same_bits(model.session().forward_all_positions(tokens[:rows]), wanted[:rows])


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_one_and_two_threads(tiny: Callable[..., Path], quant: str) -> None:
    one, two = (Model(tiny(quant=quant, seed=1), threads=threads) for threads in (1, 2))
    assert (one.threads, two.threads) == (1, 2)
    tokens = random_ids(one, 70, seed=2)
    wanted = cold(one, tokens)
    assert_same_bits(cold(two, tokens), wanted)
    assert_same_bits(in_pieces(two.session(), tokens, [1]), wanted)
    assert_same_bits(in_pieces(two.session(), tokens, [5, 1, 16]), wanted)


@pytest.mark.parametrize(
    ("past", "rows"), [(1, 2), (2, 3), (7, 3), (16, 16), (31, 2), (63, 2), (128, 9)]
)
def test_many_rows_on_a_warm_cache(load: Load, past: int, rows: int) -> None:
    model = load("Q4_0")
    tokens = random_ids(model, past + rows, seed=3)
    session = model.session()
    session.forward(tokens[:past])
    at_once = session.forward_all_positions(tokens[past:])
    one_by_one = in_pieces(model.session(), tokens, [1])
    assert_same_bits(at_once, one_by_one[past:])


@pytest.mark.parametrize("quant", ["F32", "Q4_1", "Q6_K"])
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_any_split(load: Load, quant: str, lengths: list[int], seed: int) -> None:
    model = load(quant)
    tokens = random_ids(model, 150, seed)
    assert_same_bits(in_pieces(model.session(), tokens, lengths), cold(model, tokens))


@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize(
    "shape",
    [
        {"n_head_kv": 1},
        {"n_head_kv": 1, "head_dim": 32},
        {"n_embd": 96, "n_head": 6, "n_head_kv": 3},
        {"n_embd": 96, "n_head": 3, "n_head_kv": 3, "head_dim": 32, "quant": "Q4_0"},
    ],
    ids=str,
)
def test_attention_of_a_few_rows_shared_by_two_threads(
    tiny: Callable[..., Path], shape: dict[str, Any]
) -> None:
    """Odd numbers of heads make two threads share one of them, wherever its segments end."""
    one, two = (Model(tiny(seed=1, n_ctx=1024, **shape), threads=threads) for threads in (1, 2))
    tokens = random_ids(one, 900, seed=7)
    wanted = cold(one, tokens)
    assert_same_bits(in_pieces(two.session(), tokens, [1, 2, 5, 16, 31]), wanted)


@pytest.mark.parametrize("quant", ["F16", "Q4_0", "Q4_K"])
def test_what_follows_a_fork_or_a_rejected_draft(load: Load, quant: str) -> None:
    model = load(quant)
    tokens = random_ids(model, 100, seed=4)
    wanted = cold(model, tokens)
    session = model.session()
    session.forward(tokens[:70])
    fork = session.fork()
    fork.forward(random_ids(model, 30, seed=5))  # writes its own copy of the shared block
    session.forward(random_ids(model, 8, seed=6))  # a draft
    session.truncate(70)
    assert_same_bits(session.forward_all_positions(tokens[70:]), wanted[70:])
    fork.truncate(70)
    assert_same_bits(fork.forward_all_positions(tokens[70:]), wanted[70:])


def test_other_sessions_of_the_model_do_not_matter(load: Load) -> None:
    model = load("Q4_0")
    sessions = [model.session() for _ in range(3)]
    sequences = [random_ids(model, 60, seed) for seed in range(10, 13)]
    for start in range(0, 60, 6):
        for session, tokens in zip(sessions, sequences, strict=True):
            rows = session.forward_all_positions(tokens[start : start + 6])
            assert_same_bits(rows, cold(model, tokens[: start + 6])[start:])


def test_two_loads_of_a_file_agree(tiny: Callable[..., Path], threads: int) -> None:
    first, second = (Model(tiny(quant="Q5_K"), threads=threads) for _ in range(2))
    tokens = random_ids(first, 40)
    assert_same_bits(cold(first, tokens), cold(second, tokens))
