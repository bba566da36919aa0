"""The comparison of sparse with exact prefill, and the command that prints it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specrs
from bits import random_ids
from specrs import cli
from specrs.attention import Antidiagonal, BlockMean, DenseBelow, SinkWindow, compare
from specrs.attention.fidelity import check_heat_map

TEXT = "Every evening the keeper climbed the steps to light the great lamp. " * 30


@pytest.fixture
def llm(tiny: Callable[..., Path], threads: int) -> specrs.Llama:
    return specrs.Llama(tiny(quant="Q4_0", n_ctx=1024), threads=threads)


def test_a_pattern_that_keeps_everything_differs_nowhere(llm: specrs.Llama) -> None:
    report = compare(llm, random_ids(llm._model, 700), SinkWindow(window=704))
    assert report.kl_mean == 0
    assert report.top1 == 1
    assert report.density == [1.0, 1.0]
    assert report.same_tokens == len(report.dense_tokens) == 32
    assert [(bucket.start, bucket.stop) for bucket in report.buckets] == [(0, 512), (512, 700)]


def test_what_is_exact_below_a_position_is_counted(llm: specrs.Llama) -> None:
    # The last rows are few enough to be shared out by segments where nothing is counted.
    report = compare(llm, random_ids(llm._model, 270), DenseBelow(512, BlockMean()), new_tokens=1)
    assert report.density == [1.0, 1.0]
    assert "nothing was left out" in str(report)


@pytest.mark.parametrize(
    "inner",
    [
        BlockMean(alpha=0.9, least=0),
        BlockMean(alpha=1e-30, least=0.01),
        Antidiagonal(tau=0.1, window=64),
    ],
    ids=repr,
)
def test_a_report_tells_where_and_how_much_differs(
    llm: specrs.Llama, inner: specrs.attention.Pattern
) -> None:
    seen: list[tuple[int, int]] = []
    report = compare(
        llm,
        random_ids(llm._model, 700),
        DenseBelow(512, inner),
        new_tokens=5,
        progress=lambda *now: seen.append(now),
    )
    exact, sparse = report.buckets
    assert exact.kl_mean == 0
    assert exact.dense_loss == exact.sparse_loss
    assert sparse.kl_mean > 0
    assert all(0.5 < density < 1 for density in report.density)
    kept = report.kept
    assert (np.diagonal(kept, axis1=1, axis2=2) == 1).all()
    assert (np.triu(kept, 1) == 0).all()
    assert len(report.dense_tokens) == len(report.sparse_tokens) == 5
    assert seen == sorted(seen)
    assert seen[-1] == (2800, 2800)
    assert "density" in str(report)
    assert "nothing was left out" not in str(report)
    short = compare(llm, random_ids(llm._model, 500), DenseBelow(512, inner), new_tokens=1)
    assert "nothing was left out" in str(short)


def test_there_must_be_something_to_compare(llm: specrs.Llama) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(llm, [1, 2, 3], "dense")
    with pytest.raises(ValueError, match="no tokens"):
        compare(llm, [], "auto")
    with pytest.raises(ValueError, match="new_tokens must be 0 or more, not -1"):
        compare(llm, [1, 2, 3], "auto", new_tokens=-1)
    with pytest.raises(specrs.ContextOverflow):
        compare(llm, [1] * 1025, "auto")


def test_the_heat_map_needs_matplotlib(
    llm: specrs.Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = compare(llm, random_ids(llm._model, 200), SinkWindow(window=64), new_tokens=1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        report.save_heat_map(tmp_path / "kept.png")


@pytest.mark.parametrize(("name", "fault"), [("kept.txt", "end in"), ("no/kept.png", "folder")])
def test_where_a_heat_map_can_go(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_heat_map(tmp_path / name)


def sparse_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Run the command in this process."""
    monkeypatch.setattr(sys, "argv", ["specrs", "sparse-check", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return (int(ended.value.code or 0), *capsys.readouterr())


def test_sparse_check_prints_a_report_and_draws(
    llm: specrs.Llama,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    file, image = tmp_path / "long.txt", tmp_path / "kept.png"
    file.write_text(TEXT[: 8 * len(TEXT) // len(llm.tokenize(TEXT)) * 100])
    pattern = "DenseBelow(128, SinkWindow(window=64))"
    options = ["--model", llm.path, "--attention", pattern, "--max-tokens", 3, "--heat-map", image]
    code, out, err = sparse_check(monkeypatch, capsys, file, *options)
    assert code == 0, err
    assert "DenseBelow(128, SinkWindow(sink=64, window=64))" in out
    assert "mean KL" in out
    assert image.read_bytes().startswith(b"\x89PNG")


def test_sparse_check_refuses_what_it_cannot_compare(
    llm: specrs.Llama,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "short.txt"
    file.write_text("Hello")
    for attention, message in (
        ("dense", "nothing to compare"),
        ("Window(3)", "is no pattern"),
        ("-" * 60_000 + "1", "is no pattern"),
        ("SinkWindow(window=0)", "window must be between 64"),
    ):
        options = ["--model", llm.path, "--attention", attention]
        code, out, err = sparse_check(monkeypatch, capsys, file, *options)
        assert code == 2
        assert message in err
        assert out.count("\n") <= 1
    code, _, err = sparse_check(monkeypatch, capsys, file, "--max-tokens", -1)
    assert (code, "--max-tokens must be 0 or more" in err) == (2, True)
    file.write_text("")
    code, _, err = sparse_check(monkeypatch, capsys, file)
    assert (code, "short.txt is empty" in err) == (2, True)
