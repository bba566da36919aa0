"""Sparse prefill: what is guaranteed to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bits
import specrs
from bits import assert_same_bits, cold, random_ids
from specrs._specrs import Model
from specrs.attention import (
    Antidiagonal,
    Attention,
    BlockMean,
    Custom,
    DenseBelow,
    DenseLayers,
    DenseTail,
    LayerSplit,
    SinkWindow,
    SinkWindowLog,
)

N_CTX = 1024
LENGTH = 601  # nine blocks and a part
SPLITS = (1, 7, 24, 63, 64, 65, 127, 256, 600)
OUTPUTS = 10_000_000  # the least that is compared over all splits and patterns

EVERY_OTHER = np.tri(8, dtype=bool)
EVERY_OTHER[2:, 1::2] = False
np.fill_diagonal(EVERY_OTHER, val=True)

# With no DenseTail, which depends on where a prompt ends.
PATTERNS = [
    SinkWindow(sink=64, window=64),
    SinkWindow(sink=0, window=128),
    SinkWindowLog(sink=64, window=64),
    Custom(EVERY_OTHER),
    BlockMean(alpha=0.5, spread=0.5, sink=64, window=64),
    BlockMean(alpha=0.9, sink=0, window=64, correct=False),
    BlockMean(alpha=1e-30, least=0.01, window=64),
    BlockMean(alpha=0.01, spread=1.0, least=0.02, window=64, correct=False),
    Antidiagonal(tau=0.5, window=64),
    Antidiagonal(stride=64, tau=0.7, sink=0, window=64),
    DenseBelow(192, SinkWindow(window=64)),
    DenseBelow(192, BlockMean(alpha=0.5, window=64)),
    DenseLayers(1, 0, SinkWindow(window=64)),
    DenseLayers(0.4, 0, SinkWindow(window=64)),
    LayerSplit(1, SinkWindow(window=64), SinkWindowLog(window=64)),
    # As "auto", for a short prompt.
    DenseBelow(192, LayerSplit(0.4, BlockMean(alpha=1e-30, least=0.01), BlockMean(least=0.02))),
]
DYNAMIC = ("BlockMean", "Antidiagonal")
STATIC = [pattern for pattern in PATTERNS if not any(kind in repr(pattern) for kind in DYNAMIC)]


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path], threads: int) -> Model:
    return Model(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)


@pytest.fixture(scope="module")
def tokens(model: Model) -> list[int]:
    return random_ids(model, LENGTH)


@pytest.fixture(params=PATTERNS, ids=repr)
def pattern(request: pytest.FixtureRequest) -> Attention:
    chosen: Attention = request.param
    return chosen


def sparse(model: Model, tokens: list[int], pattern: Attention) -> np.ndarray:
    """Logits after each of `tokens`, prefilled in one call."""
    return model.session().prefill(tokens, attention=pattern, positions=len(tokens))


def test_a_pattern_changes_what_it_leaves_out(
    model: Model, tokens: list[int], pattern: Attention
) -> None:
    dense, got = cold(model, tokens), sparse(model, tokens, pattern)
    assert not np.array_equal(dense, got)
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    "everything",
    [
        SinkWindow(window=640),
        SinkWindow(sink=640, window=64),
        Custom(np.tri(10, dtype=bool)),
        Custom(np.ones((1, 1), dtype=bool)),
        BlockMean(alpha=1e-30, least=0),
        BlockMean(alpha=0.9, least=0, window=640),
        BlockMean(alpha=1e-30, least=1e-30),
        Antidiagonal(tau=0.1, window=640),
        Antidiagonal(stride=1, tau=0.9999998),
        DenseBelow(640, SinkWindow(window=64)),
        DenseBelow(640, BlockMean(window=64)),
        DenseLayers(2, 0, SinkWindow(window=64)),
        DenseLayers(1, 1, SinkWindow(window=64)),
        DenseLayers(0.4, 0.6, SinkWindow(window=64)),
        LayerSplit(1, SinkWindow(window=640), BlockMean(alpha=1e-30, least=0)),
        DenseTail(601, SinkWindow(window=64)),
        "auto",
        "dense",
    ],
    ids=repr,
)
def test_a_pattern_that_keeps_everything_is_exact(
    model: Model, tokens: list[int], everything: Attention
) -> None:
    assert_same_bits(sparse(model, tokens, everything), cold(model, tokens))


def test_means_stand_in_for_what_scores_too_low(model: Model, tokens: list[int]) -> None:
    with_means, without = (
        sparse(model, tokens, BlockMean(alpha=1e-30, least=0.01, correct=correct))
        for correct in (True, False)
    )
    assert not np.array_equal(with_means, without)


def test_dense_below_is_exact_up_to_there(model: Model, tokens: list[int]) -> None:
    for inner in (SinkWindow(window=64), BlockMean(alpha=0.9, window=64)):
        got = sparse(model, tokens, DenseBelow(320, inner))
        assert_same_bits(got[:320], cold(model, tokens)[:320])
        assert not np.array_equal(got, cold(model, tokens))


def test_any_split_of_a_prompt_has_the_same_bits(
    model: Model, tokens: list[int], pattern: Attention
) -> None:
    before, whole = bits.compared, sparse(model, tokens, pattern)
    for lengths in SPLITS:
        session, rows = model.session(), []
        for start in range(0, LENGTH, lengths):
            piece = tokens[start : start + lengths]
            rows.append(session.prefill(piece, attention=pattern, positions=len(piece)))
        assert_same_bits(np.concatenate(rows), whole)
        assert session.tokens == tokens
    assert bits.compared - before >= OUTPUTS / len(PATTERNS)


def test_what_follows_changes_nothing(model: Model, tokens: list[int], pattern: Attention) -> None:
    whole = sparse(model, tokens, pattern)
    for length in (1, 64, 65, 200, 448, 600):
        other = tokens[:length] + random_ids(model, LENGTH - length, seed=7)
        assert_same_bits(sparse(model, other, pattern)[:length], whole[:length])


@pytest.mark.usefixtures("two_cpus")
def test_threads_change_nothing(
    tiny: Callable[..., Path], model: Model, tokens: list[int], pattern: Attention
) -> None:
    other = Model(tiny(quant="Q4_0", n_ctx=N_CTX), threads=1 if model.threads > 1 else 2)
    assert_same_bits(sparse(other, tokens, pattern), sparse(model, tokens, pattern))


def test_a_dense_tail_is_exact_given_what_is_before_it(model: Model, tokens: list[int]) -> None:
    window = SinkWindow(window=64)
    session = model.session()
    session.prefill(tokens[:512], attention=window)
    expected = session.forward_all_positions(tokens[512:])
    got = sparse(model, tokens, DenseTail(60, window))  # begins at 541, in the block from 512 on
    assert_same_bits(got[512:], expected)
    assert_same_bits(got[:512], sparse(model, tokens, window)[:512])


def test_decoding_is_dense_and_speculation_changes_nothing(
    tiny: Callable[..., Path], threads: int, tokens: list[int], pattern: Attention
) -> None:
    llm = specrs.Llama(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)
    options: Any = {"max_tokens": 100, "ignore_eos": True, "attention": pattern}
    plain = llm.generate(tokens, **options)
    session = llm.session()
    session.prefill(tokens[:-1], attention=pattern)
    expected, logits = [], session.forward(tokens[-1:])
    for _ in range(100):
        expected.append(int(logits.argmax()))
        logits = session.forward(expected[-1:])
    assert plain.tokens == expected
    drafted = llm.generate(tokens, drafter=specrs.PromptLookup(), **options)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.num_draft_tokens > 0


def test_a_fork_and_a_file_keep_the_pattern(
    model: Model, tokens: list[int], pattern: Attention, tmp_path: Path
) -> None:
    session = model.session()
    session.prefill(tokens[:400], attention=pattern)
    session.save(tmp_path / "a.session")
    expected = session.sparse_spans
    assert [name for _, _, name in expected] == [repr(pattern)]
    assert expected[0][1] == 400
    whole = sparse(model, tokens, pattern)
    for other in (session.fork(), model.load_session(tmp_path / "a.session")):
        assert other.sparse_spans == expected
        rest = other.prefill(tokens[400:], attention=pattern, positions=LENGTH - 400)
        assert_same_bits(rest, whole[400:])
        assert len(other.sparse_spans) == 1
    session.truncate(10)
    assert all(end <= 10 for _, end, _ in session.sparse_spans)


def test_cached_positions_are_never_less_exact_than_asked_for(
    tiny: Callable[..., Path], threads: int, tokens: list[int]
) -> None:
    llm = specrs.Llama(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)
    window = SinkWindow(window=64)
    session = llm.session()
    for attention in (window, "dense", BlockMean(alpha=0.9, window=64), window):
        got = llm.generate(tokens, max_tokens=8, session=session, attention=attention)
        fresh = llm.generate(tokens, max_tokens=8, attention=attention)
        if attention == window and session.sparse_spans:
            assert got.tokens == fresh.tokens
        assert {name for _, _, name in session.sparse_spans} <= {repr(attention)}
    again = llm.generate(tokens, max_tokens=8, session=session, attention=window)
    assert again.tokens == got.tokens


@pytest.mark.parametrize(
    "attention",
    [
        DenseTail(128, SinkWindow(window=64)),
        DenseTail(np.uint8(128), SinkWindow(window=64)),
        DenseBelow(64, DenseTail(128, SinkWindow(window=64))),
        LayerSplit(1, DenseTail(128, SinkWindow(window=64)), SinkWindow(window=64)),
    ],
    ids=repr,
)
def test_a_shorter_prompt_gets_a_tail_of_its_own(
    tiny: Callable[..., Path], threads: int, tokens: list[int], attention: Attention
) -> None:
    llm = specrs.Llama(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)
    options: dict[str, Any] = {"attention": attention, "max_tokens": 8, "logprobs": 3}
    session = llm.session()
    llm.generate(tokens, session=session, **options)
    fresh = llm.generate(tokens[:400], **options)
    tail = (400 - 128) // 64 * 64
    # The second time all is cached; the tail counts as exact only where all layers were.
    for cached in (tail, tail if isinstance(attention, LayerSplit) else 399):
        got = llm.generate(tokens[:400], session=session, **options)
        assert got.stats.cached_tokens == cached
        assert got.logprobs == fresh.logprobs


def test_arrays_for_counts_are_checked_before_any_work(model: Model, tokens: list[int]) -> None:
    session = model.session()
    read_only = np.zeros(session.kept_shape(100), np.uint32)
    read_only.flags.writeable = False
    for wrong, message in (
        (read_only, "kept cannot be written to"),
        (np.zeros(session.kept_shape(64), np.uint32), "kept has shape"),
        (np.zeros(session.kept_shape(100), np.int32), "kept must be a numpy array of uint32"),
        ([0], "kept must be a numpy array of uint32"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            session.prefill(tokens[:100], attention=SinkWindow(), kept=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="progress must be callable, not 3"):
        session.prefill(tokens[:100], progress=3)  # type: ignore[arg-type]
    assert len(session) == 0
    with pytest.raises(specrs.ContextOverflow):
        session.kept_shape(2**64 - 1)


def test_a_report_of_progress_cannot_use_its_session(model: Model) -> None:
    session = model.session()
    seen = []

    def report(done: int, total: int) -> None:
        for use in (session.fork, session.reset, lambda: len(session)):
            with pytest.raises(RuntimeError, match="a report of progress cannot wait for it"):
                use()
        seen.append((done, total))

    nothing = session.prefill(random_ids(model, 20), positions=0, progress=report)
    assert nothing.shape == (0, model.n_vocab)
    assert seen == [(20, 20)]
    assert len(session) == 20


def test_progress_is_reported_and_can_cancel(model: Model) -> None:
    tokens = random_ids(model, 1000)
    session = model.session()
    session.forward(tokens[:10])
    before = session.snapshot()
    seen: list[tuple[int, int]] = []
    session.prefill(tokens[10:], progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen[-1] == (990, 990)
    assert seen == sorted(seen)
    assert_same_bits(session.forward([3]), cold(model, [*tokens, 3])[-1])

    def cancel(done: int, total: int) -> None:
        raise RuntimeError("enough")

    session.restore(before)
    with pytest.raises(RuntimeError, match="enough"):
        session.prefill(tokens[10:], progress=cancel)
    assert session.tokens == tokens[:10]
    assert_same_bits(session.forward(tokens[10:20]), cold(model, tokens[:20])[-1])


def test_a_generation_reports_its_prompt_and_can_be_cancelled(
    tiny: Callable[..., Path], threads: int
) -> None:
    llm = specrs.Llama(tiny(quant="Q4_0", n_ctx=N_CTX), threads=threads)
    ids = random_ids(llm._model, 900)
    seen: list[tuple[int, int]] = []
    for attention in ("dense", SinkWindow(window=64)):
        seen.clear()
        session = llm.session()
        out = llm.generate(
            ids, max_tokens=4, attention=attention, progress=lambda *now: seen.append(now)
        )
        assert out.tokens == llm.generate(ids, max_tokens=4, attention=attention).tokens
        assert len(seen) == 2
        assert seen[-1][0] == seen[-1][1] >= 899

        def cancel(done: int, total: int) -> None:
            raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            llm.generate(ids, session=session, attention=attention, progress=cancel)
        assert len(session) == 0
    with pytest.raises(TypeError, match="progress"):
        llm.generate(ids, progress=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", STATIC, ids=repr)
def test_the_candle_engine_masks_the_same_positions(
    tiny: Callable[..., Path], tokens: list[int], pattern: Attention
) -> None:
    """Both engines differ by their own rounding only: far less than the pattern changes."""
    path = tiny(quant="F32", n_ctx=N_CTX)
    candle, cpu = Model(path, device="candle-cpu"), Model(path)
    got = sparse(candle, tokens, pattern)
    own_error = np.abs(cold(candle, tokens) - cold(cpu, tokens)).max()
    error = np.abs(got - sparse(cpu, tokens, pattern)).max()
    assert error <= 4 * own_error
    assert error < np.abs(got - cold(candle, tokens)).max() / 4


def test_the_candle_engine_refuses_what_it_cannot_run(tiny: Callable[..., Path]) -> None:
    llm = specrs.Llama(tiny(quant="F32", n_ctx=N_CTX), device="candle-cpu")
    half = LayerSplit(1, SinkWindow(), BlockMean())
    for attention in ("auto", BlockMean(), DenseBelow(64, BlockMean()), half, Antidiagonal()):
        with pytest.raises(ValueError, match=r"(BlockMean|Antidiagonal).*cpu"):
            llm.generate([1, 2, 3], attention=attention)
        with pytest.raises(ValueError, match=r"(BlockMean|Antidiagonal).*cpu"):
            llm.session().prefill([1, 2, 3], attention=attention)
