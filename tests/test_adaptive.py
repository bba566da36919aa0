"""The controller on made-up costs and drafters: what pays is drafted, nothing else for long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specrs import AdaptiveLength, Chain, Draft, FixedLength, LengthPolicy, replay
from specrs.decoding.step import Step
from specrs.speculation.adaptive import Acceptance, class_of
from specrs.speculation.costs import MeasuredCost


def flat(rows: int) -> float:
    """Cost of rows on an engine that is limited by memory at first, as the CPU engine is."""
    return max(1.0 + 0.05 * (rows - 1), 0.17 * rows)


def linear(rows: int) -> float:
    """Cost on an engine that gains nothing from several rows."""
    return float(rows)


TEXT = random.Random(0).choices(range(1000), k=1200)


class Guessing:
    """Is right with probability `accuracy`, independently at each position."""

    def __init__(self, accuracy: float, matched: int = 0, seed: int = 1) -> None:
        self.accuracy = accuracy
        self.matched = matched
        self.random = random.Random(seed)

    def propose(self, tokens: Sequence[int], k: int) -> Draft:
        ids = [
            token if self.random.random() < self.accuracy else 9999
            for token in TEXT[len(tokens) : len(tokens) + k]
        ]
        return Draft(ids, matched=self.matched)


def speed(
    accuracy: float,
    policy: LengthPolicy,
    cost: Callable[[int], float],
    draft_cost: float,
) -> float:
    return replay(
        TEXT, Guessing(accuracy), draft_length=policy, cost=cost, draft_cost=draft_cost
    ).speedup


@pytest.mark.parametrize("cost", [flat, linear])
@pytest.mark.parametrize("draft_cost", [0.0, 0.15])
@pytest.mark.parametrize("accuracy", [0.0, 0.2, 0.4, 0.6, 0.7, 0.84, 0.95, 1.0])
def test_close_to_the_best_fixed_length_and_to_plain_decoding(
    accuracy: float, draft_cost: float, cost: Callable[[int], float]
) -> None:
    adaptive = speed(accuracy, AdaptiveLength(cost, draft_cost=draft_cost), cost, draft_cost)
    fixed = max(
        speed(accuracy, FixedLength(k), cost, draft_cost) for k in (1, 2, 3, 4, 6, 8, 12, 16, 24)
    )
    assert adaptive >= 0.95 * max(fixed, 1.0)
    assert adaptive >= 0.97


def test_the_same_costs_give_the_same_choices() -> None:
    runs = [replay(TEXT, Guessing(0.7), cost=flat, draft_cost=0.1).trace.tokens for _ in range(2)]
    assert runs[0] == runs[1] == TEXT[1:]


def test_classes_of_drafts_are_told_apart() -> None:
    """Of two kinds of drafts, good and bad ones, only the good ones are verified in the end."""
    good, bad = Guessing(0.95, matched=3), Guessing(0.0, matched=1)

    class Mixed:
        def propose(self, tokens: Sequence[int], k: int) -> Draft:
            return (good if len(tokens) % 3 == 0 else bad).propose(tokens, k)

    steps = replay(TEXT, Mixed(), cost=flat).trace
    late = [step for step in steps if step.drafted and step.position > 600]
    drafted = {n: sum(step.drafted for step in late if step.matched == n) for n in (1, 3)}
    assert 20 * drafted[1] < drafted[3], drafted
    assert max(step.drafted for step in late if step.matched == 3) >= 8


def test_a_chain_goes_on_where_a_draft_does_not_pay() -> None:
    class Bad(Guessing):
        pass

    chain = Chain(Bad(0.0), Guessing(0.9))
    steps = replay(TEXT, chain, cost=flat).trace
    late = [step.drafter for step in steps if step.position > 600]
    assert late.count("Guessing") > 0.9 * len(late)


def test_a_drafter_that_becomes_good_is_found_again() -> None:
    class Late(Guessing):
        def propose(self, tokens: Sequence[int], k: int) -> Draft:
            self.accuracy = 0.0 if len(tokens) < 600 else 0.95
            return super().propose(tokens, k)

    steps = replay(TEXT, Late(0), cost=flat, draft_cost=0.05).trace
    assert sum(step.drafted for step in steps if 300 < step.position < 600) < 60
    late = [step for step in steps if step.position > 900]
    assert sum(len(step.tokens) for step in late) / len(late) > 4


def test_trying_is_bounded() -> None:
    steps = replay(TEXT, Guessing(0.0), cost=linear, draft_cost=1.0).trace
    wasted = sum(2.0 * step.drafted for step in steps[1:])
    assert 0 < wasted < 0.03 * len(TEXT)
    policy = AdaptiveLength(linear, draft_cost=1.0, exploration=0.0)
    steps = replay(TEXT, Guessing(0.0), cost=linear, draft_cost=1.0, draft_length=policy).trace
    assert not any(step.drafted for step in steps if step.position > 60)


def test_acceptance_without_evidence_follows_the_position_before() -> None:
    acceptance = Acceptance(0)
    for _ in range(200):
        acceptance.update(2, 2)
    rates = acceptance.rates(4)
    assert rates == pytest.approx([0.98, 0.98, 0.98, 0.98], abs=0.03)
    for _ in range(200):
        acceptance.update(2, 1)
    rates = acceptance.rates(4)
    assert rates[0] > 0.95
    assert rates[1] < 0.1
    assert acceptance.gains(2) == pytest.approx([0, rates[0], rates[0] * (1 + rates[1])])


def test_classes_of_matched_contexts() -> None:
    matched = [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 1000]
    assert [class_of(n) for n in matched] == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6]


def test_the_measured_curve_is_that_of_the_machine() -> None:
    """Noise, spikes and a machine that is slower for a while do not hide the curve."""
    rng = random.Random(3)
    cost = MeasuredCost()
    for i in range(3000):
        rows = rng.choice([1, 1, 1, 2, 3, 5, 9, 17])
        load = 2.5 if 1000 < i < 1400 else 1.0
        spike = 20.0 if rng.random() < 0.03 else 1.0
        cost.update(rows, 0.004 * linear(rows) * load * spike * rng.uniform(0.9, 1.2))
    for rows in (2, 3, 5, 9, 17):
        assert cost(rows) / cost(1) == pytest.approx(linear(rows), rel=0.2)
    assert cost(1) == pytest.approx(0.004, rel=0.25)


def test_prompts_and_nonsense_are_not_measured() -> None:
    cost = MeasuredCost()
    before = [cost(rows) for rows in (1, 8, 40, 80)]
    for rows, seconds in ((500, 3.0), (1, 0.0), (1, -1.0), (0, 1.0)):
        cost.update(rows, seconds)
    assert [cost(rows) for rows in (1, 8, 40, 80)] == before
    assert cost(80) == 2 * cost(40)


def step(drafted: int, accepted: int, **settings: Any) -> Step:
    return Step(
        **{
            "position": 5,
            "tokens": [1] * (accepted + 1),
            "drafter": "Mine" if drafted else None,
            "drafted": drafted,
            "accepted": accepted,
            "evaluated": 1 + drafted,
            "draft_seconds": 0.0,
            "verify_seconds": 0.01 * linear(1 + drafted),
            "finish_reason": None,
            **settings,
        }
    )


def test_costs_of_forwards_and_drafting_are_measured() -> None:
    policy = AdaptiveLength()
    for _ in range(300):
        policy.update(step(0, 0))
        for drafted in (2, 4, 8):
            policy.update(step(drafted, 1, draft_seconds=0.002 * drafted))
    assert policy.cost(5) / policy.cost(1) == pytest.approx(5, rel=0.2)
    assert policy._draft_costs["Mine"] == pytest.approx(0.002, rel=0.01)
    assert policy.next("Mine") <= 1  # with rows that cost as much as steps nothing pays
    assert policy.next("Free") == policy.UNTRIED  # not known yet


def test_the_prompt_teaches_nothing() -> None:
    policy = AdaptiveLength()
    policy.update(step(4, 4, evaluated=500, verify_seconds=2.0))
    assert policy.explain() == "Nothing was measured yet."


def test_it_explains_itself() -> None:
    policy = AdaptiveLength(flat)
    replay(TEXT, Chain(Guessing(0.9, matched=5)), draft_length=policy, cost=flat)
    text = policy.explain()
    assert "A forward of one row costs 1; relative to it, of more rows: 2: 1.05, 4: 1.15" in text
    assert "Guessing after 4–7 tokens: " in text
    assert "Next: up to " in text
    bad = AdaptiveLength(linear)
    replay(TEXT, Guessing(0.1), draft_length=bad, cost=linear)
    assert "Next: none, for the tokens that would be right do not pay" in bad.explain()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"max_length": 0}, ValueError, "max_length must be at least 1, not 0"),
        ({"exploration": 1.0}, ValueError, "exploration must be below 1, not 1.0"),
        ({"exploration": float("nan")}, ValueError, "exploration must be from 0 to 1"),
        ({"cost": 1.5}, TypeError, "cost must be a function of rows, not 1.5"),
    ],
)
def test_settings_out_of_range(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"AdaptiveLength: {words}"):
        AdaptiveLength(**settings)
