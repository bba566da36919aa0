"""What passes cost: learned by rows and by how far these look back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fake_engine import toy_llama
from schedules import Schedule, Wish
from specrs.serving.cost import PassCost, positions_seen
from specrs.speculation.costs import ASSUMED_OF_PASSES, MeasuredCost

CURVE = MeasuredCost(ASSUMED_OF_PASSES)  # in steps of one row


def true(rows: int, seen: int) -> float:
    """Seconds of a pass of a machine whose long prompts take as long again for looking back."""
    return 0.003 * CURVE(rows) + 1.5e-7 * seen


def test_what_rows_look_at() -> None:
    """The first of three rows at position 5 looks at six positions: its own too."""
    assert positions_seen(5, 3) == 6 + 7 + 8


def test_both_parts_are_learned() -> None:
    cost, noise = PassCost(), random.Random(1)
    for turn in range(200):
        rows, start = [(8, 300), (100, 100), (100, 3000), (256, 2000)][turn % 4]
        seen = positions_seen(start, rows)
        cost.update(rows, seen, true(rows, seen) * noise.uniform(0.95, 1.05))
    for rows, start in ((8, 300), (100, 0), (100, 1500), (100, 3000), (200, 2000)):
        seen = positions_seen(start, rows)
        assert cost(rows, seen) == pytest.approx(true(rows, seen), rel=0.15)


def test_a_surprise_in_a_long_prompt_says_little_of_short_passes() -> None:
    cost = PassCost()
    for _ in range(50):
        cost.update(8, 800, true(8, 800))
    for start in range(0, 4000, 100):
        seen = positions_seen(start, 100)
        cost.update(100, seen, true(100, seen))
    assert cost(8, 800) == pytest.approx(true(8, 800), rel=0.15)


def test_running_replies_do_not_stall_for_a_long_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the first long prompt on: no pass takes 60 ms where 50 are allowed."""
    llm = toy_llama(monkeypatch, tmp_path / "toy", n_ctx=4000, order=2)
    options = {"max_tokens": 100, "ignore_eos": True}
    wishes = [Wish([5 + i] * 32, options) for i in range(8)]
    wishes.append(Wish([3] * 3000, {"max_tokens": 1}, arrives=40))
    schedule = Schedule(llm, wishes, tick=0.0, cost=PassCost())
    forward_many, passes = llm._model.forward_many, []

    def timed(inputs: Any, *, choose: Any) -> Any:
        inputs = list(inputs)
        rows = sum(len(tokens) for _, tokens, _ in inputs)
        seen = sum(positions_seen(len(i[0]._session), len(i[1])) for i in inputs)
        passes.append((rows, true(rows, seen)))
        schedule.now += passes[-1][1]
        return forward_many(inputs, choose=choose)

    monkeypatch.setattr(llm._model, "forward_many", timed)
    schedule.run()
    beside = [seconds for rows, seconds in passes[40:] if rows > 9]
    assert len(beside) > 20
    assert max(beside) < 0.06
    assert sum(beside) / len(beside) > 0.04  # nor is time wasted
