"""Traces survive files, and a replay does what the generation would have done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_engine import Scripted, toy_llama
from specrs import (
    AdaptiveLength,
    Chain,
    Drafter,
    FixedLength,
    Llama,
    PromptLookup,
    SuffixDecoding,
    Trace,
    replay,
)
from specrs.decoding.step import Step

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=256, order=1)


def traced(llm: Llama, drafter: Drafter | None = None, k: int = 4) -> Trace:
    length = None if drafter is None else FixedLength(k)
    out = llm.generate(
        PROMPT,
        max_tokens=60,
        ignore_eos=True,
        drafter=drafter,
        draft_length=length,
        trace=True,
    )
    assert out.trace is not None
    assert out.trace.tokens == out.tokens
    return out.trace


def counted(steps: Sequence[Step]) -> list[tuple[object, ...]]:
    return [
        (s.position, s.tokens, s.drafter, s.drafted, s.accepted, s.evaluated, s.matched)
        for s in steps
    ]


@pytest.mark.parametrize(
    "make",
    [
        PromptLookup,
        SuffixDecoding,
        lambda: Chain(PromptLookup(min_ngram_size=3), SuffixDecoding()),
        lambda: Scripted([i % 30 for i in range(90)]),
    ],
)
def test_a_replay_does_what_the_generation_does(llm: Llama, make: type[Drafter]) -> None:
    """From a plain recording to the steps of any drafter."""
    real = traced(llm, make())
    again = replay(traced(llm), make(), draft_length=FixedLength(4))
    assert counted(again.trace) == counted(real)
    assert again.stats.num_drafts > 0
    assert again.stats.forward_calls == len(real)


def test_tokens_are_enough(llm: Llama) -> None:
    trace = traced(llm)
    from_tokens = replay(trace.tokens, PromptLookup(), prompt=PROMPT)
    assert from_tokens.trace.tokens == trace.tokens
    # Without a prompt, the first id is the prompt.
    whole = replay([*PROMPT, *trace.tokens], PromptLookup())
    assert whole.trace.prompt == PROMPT[:1]
    assert whole.trace.tokens == [*PROMPT[1:], *trace.tokens]


def test_times_are_those_of_the_cost() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 5

    def cost(rows: int) -> float:
        return 10.0 + rows

    outcome = replay(text, Scripted(text), draft_length=FixedLength(3), cost=cost, draft_cost=0.5)
    # After the first step, which is the prompt's, 35 tokens in steps of 4; the last makes 3.
    assert [step.drafted for step in outcome.trace] == [3] * 9 + [2]
    assert outcome.plain_seconds == 35 * 11
    assert outcome.stats.verify_seconds == 8 * 14 + 13
    assert outcome.stats.draft_seconds == (8 * 3 + 2) * 0.5
    assert outcome.speedup == outcome.plain_seconds / (8 * 14 + 13 + 13)
    assert outcome.stats.acceptance_rate == 1


def test_the_times_of_a_trace_are_learned() -> None:
    """Steps of 4 rows that took as long as steps of one row: drafting pays, says the replay."""
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 30
    steps = []
    for i in range(1, 240):
        rows = 1 + 3 * (i % 2)
        steps.append(Step(i, [text[i]], None, rows - 1, 0, rows, 0.0, 0.02, None))
    steps[0] = Step(1, [text[1]], None, 0, 0, 500, 0.0, 9.0, None)
    outcome = replay(Trace(text[:1], steps), Scripted(text), draft_length=FixedLength(3))
    assert outcome.speedup == pytest.approx(4, rel=0.1)
    assert outcome.plain_seconds == pytest.approx(0.02 * 236, rel=0.1)


def test_nothing_to_replay() -> None:
    outcome = replay([5], PromptLookup())
    assert (outcome.trace, outcome.speedup, outcome.plain_seconds) == ([], 1.0, 0.0)
    with pytest.raises(ValueError, match="replay: the prompt is empty"):
        replay([], PromptLookup())
    with pytest.raises(ValueError, match="replay: a trace has its own prompt"):
        replay(Trace([1]), PromptLookup(), prompt=[1])
    with pytest.raises(TypeError):
        replay([1.5, 2], PromptLookup())  # type: ignore[list-item]


def test_a_drafter_that_fails_is_named() -> None:
    class Broken:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            raise KeyError("lost")

    with pytest.raises(RuntimeError, match="drafter Broken failed after 1 tokens"):
        replay([1, 2, 3], Broken(), draft_length=FixedLength(2))


def test_a_trace_survives_a_file(llm: Llama, tmp_path: Path) -> None:
    trace = traced(llm, PromptLookup())
    path = tmp_path / "trace.jsonl"
    trace.save(path)
    loaded = Trace.load(path)
    assert loaded == trace
    assert loaded.prompt == PROMPT
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 1 + len(trace)
    assert {"position", "drafter", "drafted", "accepted", "draft_seconds"} <= set(lines[1])
    assert replay(loaded, SuffixDecoding()).trace.tokens == trace.tokens


def test_log_probabilities_survive_a_file(llm: Llama, tmp_path: Path) -> None:
    trace = llm.generate(PROMPT, max_tokens=4, logprobs=2, trace=True).trace
    assert trace is not None
    trace.save(tmp_path / "trace.jsonl")
    assert Trace.load(tmp_path / "trace.jsonl") == trace
    assert all(step.logprobs for step in trace)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("[1]", 1),
        ('{"format": "other", "prompt": []}', 1),
        ('{"format": "specrs trace 1"}', 1),
        ('{"format": "specrs trace 1", "prompt": [1]}\n{"position": 1}', 2),
        ('{"format": "specrs trace 1", "prompt": [1]}\nnonsense', 2),
    ],
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"trace.jsonl, line {line}: .*a trace is one line with"):
        Trace.load(path)


def test_the_default_length_is_the_controller(llm: Llama) -> None:
    """With nothing else said, drafts that are never right soon stop; the text is the same."""
    wrong = Scripted([9] * 300)
    out = llm.generate(PROMPT, max_tokens=200, ignore_eos=True, drafter=wrong, trace=True)
    assert out.tokens == llm.generate(PROMPT, max_tokens=200, ignore_eos=True).tokens
    policy = AdaptiveLength(lambda rows: float(rows))
    slow = llm.generate(
        PROMPT, max_tokens=200, ignore_eos=True, drafter=wrong, draft_length=policy, trace=True
    )
    assert slow.tokens == out.tokens
    assert slow.trace is not None
    assert sum(step.drafted for step in slow.trace[100:]) <= 3
    assert "Scripted: " in policy.explain()
