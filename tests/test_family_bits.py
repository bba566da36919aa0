"""Rows of every family have the same bits, whatever is in a call and wherever windows begin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits, cold, in_pieces, random_ids
from family_models import FAMILY_MODELS, MAIN, MIXTURES, QUANTS, with_keys, with_window
from specrs._specrs import Model
from specrs.attention import SinkWindow

LENGTH = 300
# Rows per call: each tile size of the kernels, a page of the cache, more than a pass has.
ROWS = [*range(1, 18), 64, 257]

#: Every family, and windows that begin inside, at the end and at the start of a page.
MODELS: dict[str, dict[str, Any]] = {
    **{name: FAMILY_MODELS[name] | {"quant": QUANTS[name]} for name in MAIN},
    "llama with experts": FAMILY_MODELS["llama with experts"] | {"quant": "Q8_0"},
    "gemma2, window 5": with_window("gemma2", 5),
    "gemma3, window 65": with_window("gemma3", 65) | {"quant": "Q8_0"},
    "gemma3 with a pattern": FAMILY_MODELS["gemma3 with a pattern"],
    "phi3, window 64": with_window("phi3", 64),
    "olmo2 with windows": FAMILY_MODELS["olmo2 with windows"] | {"quant": "Q8_0"},
    "olmo2, window 100": with_window("olmo2 with windows", 100),
}

Load = Callable[[str], Model]


@pytest.fixture(scope="module")
def load(tiny: Callable[..., Path], threads: int) -> Load:
    models: dict[str, Model] = {}

    def load_model(name: str) -> Model:
        if name not in models:
            models[name] = Model(tiny(**MODELS[name]), threads=threads)
        return models[name]

    return load_model


@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_rows(load: Load, name: str) -> None:
    model = load(name)
    tokens = random_ids(model, LENGTH)
    wanted = cold(model, tokens)
    for rows in ROWS:
        assert_same_bits(in_pieces(model.session(), tokens, [rows]), wanted)
    assert_same_bits(in_pieces(model.session(), tokens, [63, 1, 2, 65, 5]), wanted)


@pytest.mark.parametrize("name", MODELS)
def test_one_and_two_threads(tiny: Callable[..., Path], name: str) -> None:
    one, two = (Model(tiny(**MODELS[name]), threads=threads) for threads in (1, 2))
    tokens = random_ids(one, LENGTH, seed=1)
    wanted = cold(one, tokens)
    assert_same_bits(cold(two, tokens), wanted)
    for lengths in ([1], [5, 1, 16], [200, 3]):
        assert_same_bits(in_pieces(two.session(), tokens, lengths), wanted)


@pytest.mark.parametrize("name", MODELS)
def test_several_sessions_in_one_call(load: Load, name: str) -> None:
    model = load(name)
    inputs, wanted = [], []
    for seed, (past, rows) in enumerate([(0, 3), (4, 1), (63, 2), (64, 66), (130, 17), (299, 1)]):
        tokens = random_ids(model, past + rows, seed)
        session = model.session()
        if past:
            session.forward(tokens[:past])
        inputs.append((session, tokens[past:], rows))
        wanted.append(cold(model, tokens)[past:])
    for got, alone in zip(model.forward_many(inputs), wanted, strict=True):
        assert_same_bits(got, alone)


@pytest.mark.parametrize("name", MODELS)
def test_what_follows_a_rollback(load: Load, name: str) -> None:
    """Keys that no later position sees are needed again as soon as positions are taken back."""
    model = load(name)
    tokens, others = random_ids(model, LENGTH, seed=2), random_ids(model, LENGTH, seed=3)
    wanted = cold(model, tokens)
    session = model.session()
    session.forward(tokens)
    for length in (299, 236, 200, 193, 192, 191, 135, 130, 66, 64, 63, 6, 5, 1):
        session.truncate(length)
        session.forward(others[:40])  # a draft that is rejected
        session.truncate(length)
        end = min(length + 70, LENGTH)
        assert_same_bits(session.forward_all_positions(tokens[length:end]), wanted[length:end])


@pytest.mark.parametrize("name", MODELS)
def test_snapshots_and_forks(load: Load, name: str) -> None:
    model = load(name)
    tokens, others = random_ids(model, LENGTH, seed=4), random_ids(model, LENGTH, seed=5)
    wanted, wanted_others = cold(model, tokens), cold(model, tokens[:100] + others[100:])
    session = model.session()
    session.forward(tokens[:100])
    snapshot, fork = session.snapshot(), session.fork()
    session.forward(tokens[100:250])
    assert_same_bits(fork.forward_all_positions(others[100:]), wanted_others[100:])
    session.restore(snapshot)
    assert_same_bits(session.forward_all_positions(others[100:]), wanted_others[100:])
    session.restore(snapshot)
    assert_same_bits(session.forward_all_positions(tokens[100:]), wanted[100:])
    fork.truncate(60)
    assert_same_bits(fork.forward_all_positions(tokens[60:]), wanted[60:])


@pytest.mark.parametrize("name", MODELS)
def test_chosen_tokens_are_those_with_the_highest_logits(load: Load, name: str) -> None:
    model = load(name)
    for seed in range(5):
        tokens = random_ids(model, 60, seed)
        chosen = model.session().choose_last(tokens, len(tokens))
        assert chosen == cold(model, tokens).argmax(axis=1).tolist()


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_of_logits_that_a_cap_makes_equal_the_first_is_chosen(
    tiny: Callable[..., Path], threads: int, quant: str
) -> None:
    """Beyond 9 caps tanh is 1 in float32: candidates that are not the largest before it."""
    options = with_keys("gemma2", final_logit_softcapping=0.5)
    model = Model(tiny(**options | {"quant": quant}), threads=threads)
    tokens = random_ids(model, 100)
    logits = cold(model, tokens)
    equal = (logits == logits.max(axis=1, keepdims=True)).sum(axis=1)
    assert np.median(equal) > 2
    chosen = model.session().choose_last(tokens, len(tokens))
    assert chosen == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_may_have_all_rows_or_none(load: Load, name: str) -> None:
    """Equal tokens are equal at every position, and so go to the same experts."""
    model = load(name)
    token, *others = random_ids(model, 10, seed=6)
    same = [token] * 70
    wanted = cold(model, same)
    for rows in (1, 2, 17, 64):
        assert_same_bits(in_pieces(model.session(), same, [rows]), wanted)
    mixed = model.forward_many([(model.session(), same, 70), (model.session(), others, 9)])
    assert_same_bits(mixed[0], wanted)
    assert_same_bits(mixed[1], cold(model, others))


def test_what_counts_of_a_window_does_not_depend_on_threads(tiny: Callable[..., Path]) -> None:
    path = tiny(**FAMILY_MODELS["gemma3"])
    counted = []
    for threads in (1, 2):
        model = Model(path, threads=min(threads, len(os.sched_getaffinity(0))))
        session = model.session()
        kept = np.zeros(session.kept_shape(LENGTH), np.uint32)
        pattern = SinkWindow(sink=64, window=64)
        for start in range(0, LENGTH, 20):
            piece = random_ids(model, LENGTH)[start : start + 20]
            session.prefill(piece, attention=pattern, prompt_length=LENGTH, kept=kept)
        counted.append(kept)
        for layer, window in zip(kept, model.windows, strict=True):
            assert (layer.diagonal() > 0).all()
            assert window is None or not layer[-1, : (LENGTH - window) // 64 - 1].any()
    assert np.array_equal(counted[0], counted[1])


def test_a_session_loads_on_either_side_of_a_window(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path = tiny(**with_window("gemma3", 65))
    short, long = (Model(path, n_ctx=n_ctx, threads=1) for n_ctx in (50, 200))
    assert not any(short.windows)
    assert any(long.windows)
    ids = random_ids(short, 40)
    for one, other in ((short, long), (long, short)):
        session = one.session()
        session.forward(ids[:30])
        session.save(tmp_path / "saved")
        assert_same_bits(
            other.load_session(tmp_path / "saved").forward_all_positions(ids[30:]),
            session.forward_all_positions(ids[30:]),
        )
