"""The bench counts right, and the models it makes are what they say."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fake_engine import Scripted, toy_llama
from specrs import Chain, FixedLength, Llama
from specrs.cli.bench import (
    PROMPTS,
    Contestant,
    Figures,
    Prompt,
    compare,
    read_prompts,
    record,
    table,
)

ROOT = Path(__file__).parent.parent
SPEC_BENCH = ROOT / "tests" / "data" / "spec_bench_60.jsonl"


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=256, order=1, end_ids=[])


def test_drafters_see_the_prompt_before_the_clock_runs(llm: Llama) -> None:
    calls: list[tuple[list[int], int]] = []

    class Watching:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            calls.append((list(tokens), k))
            return []

    chain = Contestant(Chain(Watching(), Watching()), lambda: FixedLength(3))
    compare(llm, {"chain": chain}, [Prompt("a", [5, 6, 7])], max_tokens=4, rounds=1)
    assert calls[:2] == [([5, 6, 7], 1)] * 2
    assert all(k == 3 for _, k in calls[2:4])


def test_figures_of_a_known_drafter(llm: Llama) -> None:
    """Drafts of two of which the first is right: every step makes two tokens."""
    prompt = [5, 6, 7]
    truth = prompt + llm.generate(prompt, max_tokens=20).tokens

    class HalfRight:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            right = truth[len(tokens) : len(tokens) + 1]
            return [*right, (truth[len(tokens) + 1] + 1) % 30][:k] if len(tokens) < 22 else right

    done: list[int] = []
    contestants = {"half": Contestant(HalfRight(), lambda: FixedLength(2))}
    results = compare(
        llm,
        contestants,
        [Prompt("a", prompt), Prompt("b", prompt), Prompt("a", prompt)],
        max_tokens=20,
        rounds=2,
        progress=done.append,
    )
    assert done == [1, 2, 3]
    assert list(results["half"]) == ["a", "all", "b"]
    whole, part = results["half"]["all"], results["half"]["a"]
    assert (whole.tokens, whole.different) == (3 * 2 * 20, 0)
    assert (whole.steps, part.steps) == (30, 20)
    assert whole.acceptance_rate == whole.accepted / whole.drafted
    assert whole.tried[0] == whole.right[0] == 30
    assert whole.tried[1] >= 27
    assert whole.right[1] == 0
    assert whole.plain_seconds > 0
    assert whole.speedup == whole.plain_seconds / whole.seconds
    lines = table(results).splitlines()
    assert lines[0] == "| decode time, plain / drafted | all | a | b | accepted | different |"
    assert "0 of 120" in lines[2]
    assert json.loads(json.dumps(record(results)))["half"]["a"]["steps"] == 20


def test_a_difference_is_counted(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that accepts what it would not have said itself does not go unnoticed."""
    monkeypatch.setattr(
        "specrs.decoding.loop.verify", lambda picks, draft: [*draft, list(picks)[-1]]
    )
    wrong = Scripted([9] * 300)
    contestants = {"wrong": Contestant(wrong, lambda: FixedLength(1))}
    results = compare(llm, contestants, [Prompt("a", [5, 6])], max_tokens=10, rounds=1)
    assert results["wrong"]["all"].different > 0


def test_figures_add_up() -> None:
    total = Figures()
    total.add(Figures(10, 1, 2.0, 1.0, 5, 4, 3, [3, 2], [2, 2]))
    total.add(Figures(10, 0, 1.0, 1.0, 5, 1, 9, [3], [1]))
    assert total == Figures(20, 1, 3.0, 2.0, 10, 5, 12, [6, 2], [3, 2])
    assert (total.speedup, total.acceptance_rate) == (1.5, 0.5)


def test_prompts_by_task(llm: Llama, tmp_path: Path) -> None:
    rows = [{"task": task, "prompt": "abcdefgh" * n} for task, n in (("x", 1), ("x", 2), ("y", 20))]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    prompts = read_prompts(llm, path, None, most=50)
    assert [(p.task, len(p.tokens)) for p in prompts] == [("x", 8), ("y", 50), ("x", 16)]
    assert [p.task for p in read_prompts(llm, path, 2)] == ["x", "y"]
    tasks = [json.loads(line)["task"] for line in SPEC_BENCH.read_text().splitlines()]
    assert len(tasks) == 60
    assert len(set(tasks)) == len(PROMPTS) == 6


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benches"), *sys.path])


@pytest.mark.usefixtures("benches")
def test_a_widened_model_says_the_same(
    tiny: Callable[..., Path], tmp_path: Path, threads: int
) -> None:
    from derive import drop_layers, widen

    source = tiny()
    small = Llama(source, threads=threads)
    width = 3 * int(small.metadata["llama.feed_forward_length"])
    large = Llama(widen(source, tmp_path / "large.gguf", width), threads=threads)
    assert large.metadata["llama.feed_forward_length"] == width
    assert large.weight_bytes > 1.5 * small.weight_bytes
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    ours = large.session().forward_all_positions(ids)
    theirs = small.session().forward_all_positions(ids)
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * float(np.abs(theirs).max()))
    layers = int(small.metadata["llama.block_count"])
    draft = Llama(drop_layers(source, tmp_path / "draft.gguf", (0,)), threads=threads)
    assert draft.metadata["llama.block_count"] == layers - 1
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(ValueError, match="must be a multiple of"):
        widen(source, tmp_path / "x", 7)
    with pytest.raises(ValueError, match="has layers 0 to"):
        drop_layers(source, tmp_path / "x", (99,))


@pytest.mark.usefixtures("benches")
def test_the_theoretical_curve() -> None:
    pytest.importorskip("matplotlib")
    from speculative_plots import expected_speedup

    cost = {1: 2.0, 3: 2.4, 9: 6.0}
    assert expected_speedup(0.0, 0, cost, 0.5) == 1
    assert expected_speedup(1.0, 2, cost, 0.0) == pytest.approx(3 / 1.2)
    assert expected_speedup(0.5, 2, cost, 0.1) == pytest.approx(1.75 / 1.4)
    assert expected_speedup(0.5, 1, cost, 0.0) == pytest.approx(1.5 / 1.1)
