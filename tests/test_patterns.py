"""Attention patterns as values: what is refused, and how they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specrs
from specrs.attention import (
    Antidiagonal,
    BlockMean,
    Custom,
    DenseBelow,
    DenseLayers,
    DenseTail,
    LayerSplit,
    Pattern,
    SinkWindow,
    SinkWindowLog,
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SinkWindow(window=0), "window must be between 64"),
        (lambda: SinkWindow(window=-64), "window must be between 64"),
        (lambda: SinkWindow(window=1 << 40), "window must be between 64"),
        (lambda: SinkWindow(sink=-1), "sink must be between 0"),
        (lambda: SinkWindow(window=100), "use 64 or 128"),
        (lambda: SinkWindowLog(sink=1), "use 0 or 64"),
        (lambda: BlockMean(alpha=0), "alpha"),
        (lambda: BlockMean(alpha=1.5), "alpha"),
        (lambda: BlockMean(alpha=float("nan")), "alpha"),
        (lambda: BlockMean(alpha=-0.1), "alpha"),
        (lambda: BlockMean(alpha=1e300), "alpha"),
        (lambda: BlockMean(alpha=1e-300), "alpha"),
        (lambda: BlockMean(spread=-1), "spread must be between 0 and 8"),
        (lambda: BlockMean(spread=9), "spread must be between 0 and 8"),
        (lambda: BlockMean(least=-0.1), "least"),
        (lambda: BlockMean(least=1), "least"),
        (lambda: BlockMean(least=float("nan")), "least"),
        (lambda: BlockMean(window=0), "window must be between 64"),
        (lambda: Antidiagonal(window=0), "window must be between 64"),
        (lambda: Antidiagonal(window=1 << 40), "window must be between 64"),
        (lambda: Antidiagonal(sink=-64), "sink must be between 0"),
        (lambda: Antidiagonal(sink=65), "use 64 or 128"),
        (lambda: Antidiagonal(stride=0), "stride must be between 1"),
        (lambda: Antidiagonal(stride=-8), "stride must be between 1"),
        (lambda: Antidiagonal(stride=3), "1, 2, 4, 8, 16, 32 or 64"),
        (lambda: Antidiagonal(stride=128), "1, 2, 4, 8, 16, 32 or 64"),
        (lambda: Antidiagonal(tau=0), "tau"),
        (lambda: Antidiagonal(tau=1.0), "tau"),
        (lambda: Antidiagonal(tau=float("nan")), "tau"),
        (lambda: DenseBelow(1 << 40, SinkWindow()), "positions must be between 0"),
        (lambda: DenseBelow(-64, SinkWindow()), "positions must be between 0"),
        (lambda: DenseBelow(100, SinkWindow()), "use 64 or 128"),
        (lambda: DenseLayers(-1, 0, SinkWindow()), "first must be between 0"),
        (lambda: DenseLayers(1.5, 0, SinkWindow()), "first must be a number between 0 and 1"),
        (lambda: DenseLayers(1, -0.5, SinkWindow()), "last must be a number between 0 and 1"),
        (lambda: LayerSplit(-1, SinkWindow(), BlockMean()), "first must be between 0"),
        (lambda: LayerSplit(1.0, SinkWindow(), BlockMean()), "first must be a number between 0"),
        (lambda: DenseTail(-1, SinkWindow()), "positions must be between 0"),
        (lambda: Custom(np.ones((2, 3), dtype=bool)), r"square.*\(2, 3\)"),
        (lambda: Custom(np.ones(4, dtype=bool)), "square"),
        (lambda: Custom(np.zeros((0, 0), dtype=bool)), "square"),
        (lambda: Custom(np.array([[1, 0], [1, 0]], dtype=bool)), "hides block 1 from itself"),
    ],
)
def test_bad_values_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: SinkWindow(window=64.0),  # type: ignore[arg-type]
        lambda: SinkWindow(sink="a"),  # type: ignore[arg-type]
        lambda: SinkWindow(sink=False),
        lambda: DenseLayers(True, 0, SinkWindow()),
        lambda: DenseTail(True, SinkWindow()),
        lambda: BlockMean(correct=1),  # type: ignore[arg-type]
        lambda: BlockMean(alpha="0.1"),  # type: ignore[arg-type]
        lambda: BlockMean(alpha=True),
        lambda: BlockMean(least=None),  # type: ignore[arg-type]
        lambda: Antidiagonal(stride=8.0),  # type: ignore[arg-type]
        lambda: Antidiagonal(tau=None),  # type: ignore[arg-type]
        lambda: DenseBelow(64, "dense"),  # type: ignore[arg-type]
        lambda: DenseLayers("1", 0, SinkWindow()),  # type: ignore[arg-type]
        lambda: LayerSplit(2, SinkWindow(), "dense"),  # type: ignore[arg-type]
        lambda: LayerSplit(2, None, SinkWindow()),  # type: ignore[arg-type]
        lambda: DenseTail(64, SinkWindow),  # type: ignore[arg-type]
        lambda: Custom(np.ones((2, 2))),  # type: ignore[arg-type]
    ],
)
def test_bad_types_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        build()


def test_attention_must_be_a_pattern(tiny: Callable[..., Path]) -> None:
    llm = specrs.Llama(tiny(quant="F32"))
    with pytest.raises(ValueError, match="'sparse' is unknown"):
        llm.generate([1, 2], attention="sparse")
    with pytest.raises(ValueError, match='"sparse" is unknown'):
        llm.session().prefill([1, 2], attention="sparse")
    for wrong in (None, 3, SinkWindow):
        with pytest.raises(TypeError, match="SinkWindow"):
            llm.generate([1, 2], attention=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="SinkWindow"):
        llm.session().prefill([1, 2], attention=3)
    with pytest.raises(ValueError, match="no tokens"):
        llm.session().prefill([], attention=SinkWindow())
    with pytest.raises(specrs.ContextOverflow):
        llm.session().prefill([1] * 5000, attention=SinkWindow())


def test_patterns_print_as_they_are_made() -> None:
    inner = DenseTail(9, SinkWindowLog(sink=128, window=256))
    pattern = DenseBelow(128, DenseLayers(2, 0.25, inner))
    assert eval(repr(pattern)) == pattern
    assert hash(eval(repr(pattern))) == hash(pattern)
    for simple in (
        SinkWindow(),
        Antidiagonal(stride=16),
        BlockMean(),
        BlockMean(alpha=0.1, correct=False),
        BlockMean(least=0),
        LayerSplit(0.4, BlockMean(spread=4.0), SinkWindow()),
    ):
        assert eval(repr(simple)) == simple
    assert Custom(np.tri(3, dtype=bool)) == Custom(np.tri(3, dtype=bool))
    assert Custom(np.tri(3, dtype=bool)) != Custom(np.ones((3, 3), dtype=bool))


def test_patterns_that_hold_too_many_are_refused() -> None:
    def nested(wrap: Callable[[Pattern], Pattern], times: int) -> Pattern:
        pattern: Pattern = SinkWindow()
        for _ in range(times):
            pattern = wrap(pattern)
        return pattern

    assert repr(nested(lambda inner: LayerSplit(1, inner, inner), 4)).count("SinkWindow") == 16
    for wrap in (lambda inner: LayerSplit(1, inner, inner), lambda inner: DenseBelow(64, inner)):
        with pytest.raises(ValueError, match="nest fewer"):
            nested(wrap, 400)
