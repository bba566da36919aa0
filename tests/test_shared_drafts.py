"""Drafts of several generations at once: whose are verified, and what drafting costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Scripted, toy_llama
from schedules import Schedule, Wish
from specrs import Chain, DraftModel, FixedLength, Llama, PromptLookup, SuffixDecoding
from specrs.serving.drafts import Drafts

ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 30}


def chosen(cost: Callable[[int], float], gains: list[list[float]], rows: int) -> list[int]:
    drafts = Drafts(lambda rows, seen: cost(rows), exploration=0.0)
    drafts._rows = rows
    return drafts._chosen(gains, rows)


def gains(*rates: float) -> list[float]:
    total, chance, found = 0.0, 1.0, [0.0]
    for rate in rates:
        chance *= rate
        total += chance
        found.append(total)
    return found


def flat(rows: int) -> float:
    return 1.0


def linear(rows: int) -> float:
    return float(rows)


def test_where_rows_are_free_all_are_verified() -> None:
    assert chosen(flat, [gains(0.9, 0.9), gains(0.2)], 2) == [2, 1]


def test_where_a_row_costs_a_step_none_is() -> None:
    assert chosen(linear, [gains(0.9, 0.9), gains(0.8)], 2) == [0, 0]


def test_the_likeliest_tokens_go_first() -> None:
    """Up to 6 rows cost nothing: there is room for three tokens."""
    cost = lambda rows: 1.0 if rows <= 6 else 9.0  # noqa: E731
    certain, likely, hardly = gains(0.99, 0.98), gains(0.7, 0.7), gains(0.1)
    assert chosen(cost, [certain, likely, hardly], 3) == [2, 1, 0]


def test_a_knee_of_the_cost_is_jumped_over() -> None:
    """The first row more costs a quarter, and the eight after it nothing."""
    cost = lambda rows: 1.0 if rows == 1 else 1.25  # noqa: E731
    assert chosen(cost, [gains(0.2, 0.9, 0.9, 0.9)], 1) == [4]
    assert chosen(cost, [gains(0.2)], 1) == [0]


def test_who_drafts_nothing_does_not_pay_for_others() -> None:
    """Three rows more would double the tokens, and take half as long again."""
    cost = lambda rows: 1.0 + max(0, rows - 2) / 6  # noqa: E731
    assert chosen(cost, [gains(0.99, 0.99, 0.99)], 1) == [3]
    assert chosen(cost, [gains(0.99, 0.99, 0.99)], 2) == [0]
    assert chosen(cost, [gains(0.99, 0.99)] * 2, 2) == [2, 2]


@pytest.mark.parametrize(("length", "count"), [(10, 2), (1000, 0)])
def test_what_a_row_looks_back_at_counts(length: int, count: int) -> None:
    """Rows cost nothing but for that, and in a long text half a step."""
    drafts = Drafts(lambda rows, seen: 1 + seen / 1000, exploration=0.0)
    drafts._rows, drafts._back = 1, length
    assert drafts._chosen([gains(0.3, 0.9)], 1) == [count]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Llama]:
    return lambda name: toy_llama(monkeypatch, tmp_path / name, n_ctx=400, order=2)


def draft_rows(llm: Llama) -> tuple[Callable[[], int], Callable[[], int]]:
    """Count the rows that a model evaluates from now on, and its passes."""
    rows, passes = 0, 0
    forward_many = llm._model.forward_many

    def counted(inputs: Any, *, choose: Any) -> Any:
        nonlocal rows, passes
        inputs = list(inputs)
        rows += sum(len(tokens) for _, tokens, _ in inputs)
        passes += 1
        return forward_many(inputs, choose=choose)

    llm._model.forward_many = counted  # type: ignore[assignment,method-assign]
    return lambda: rows, lambda: passes


def interleaved(llm: Llama, drafters: list[Any], prompts: list[list[int]]) -> list[list[int]]:
    """Run two streams in turns."""
    streams = [
        llm.stream(prompt, drafter=drafter, draft_length=FixedLength(3), **ENDLESS)
        for prompt, drafter in zip(prompts, drafters, strict=True)
    ]
    made: list[list[int]] = [[], []]
    going = True
    while going:
        going = False
        for stream, tokens in zip(streams, made, strict=True):
            chunk = next(stream, None)
            if chunk is not None:
                going = True
                tokens += chunk.tokens
    return made


def test_one_draft_model_of_two_streams_costs_what_two_cost(
    load: Callable[[str], Llama],
) -> None:
    llm, small = load("large"), load("small")
    prompts = [[5, 6, 7] * 9, [8, 9] * 12]
    rows, _ = draft_rows(small)
    made = interleaved(llm, [DraftModel(small), DraftModel(small)], prompts)
    two = rows()
    one_drafter = DraftModel(small)
    assert interleaved(llm, [one_drafter, one_drafter], prompts) == made
    assert rows() == 2 * two


@pytest.mark.parametrize("make", [PromptLookup, SuffixDecoding])
def test_one_lookup_of_two_streams_indexes_each_once(
    load: Callable[[str], Llama], make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import specrs.speculation.drafters as module

    cleared = 0
    follow = module.IndexedDrafter._follow

    def counted(self: Any, tokens: Sequence[int]) -> None:
        nonlocal cleared
        cleared += len(self._index) > 0 and self._follower._source is not tokens
        follow(self, tokens)

    monkeypatch.setattr(module.IndexedDrafter, "_follow", counted)
    drafter = make()
    interleaved(load("large"), [drafter, drafter], [[5, 6, 7] * 9, [8, 9] * 12])
    assert cleared == 0


def test_a_draft_model_drafts_for_all_its_requests_in_one_pass(
    load: Callable[[str], Llama],
) -> None:
    llm, small = load("large"), load("small")
    _, passes = draft_rows(small)
    drafter = DraftModel(small, num_draft_tokens=3)
    options = {"drafter": drafter, "draft_length": FixedLength(3), **ENDLESS}
    prompts = [[5, 6, 7 + i] for i in range(6)]
    schedule = Schedule(llm, [Wish(prompt, options) for prompt in prompts])
    schedule.run()
    steps = max(schedule.streams[i].stats.forward_calls for i in range(6))
    assert passes() <= 3 * (steps + 1)
    for i, prompt in enumerate(prompts):
        result: Any = schedule.results[i]
        assert result.tokens == llm.generate(prompt, **ENDLESS).tokens
        assert schedule.streams[i].stats.num_accepted_tokens > 0


def test_a_long_text_is_new_to_the_draft_model_for_a_while(load: Callable[[str], Llama]) -> None:
    """It takes it in by pieces, and neighbours go on."""
    llm, small = load("large"), load("small")
    rows, passes = draft_rows(small)
    drafter = DraftModel(small)
    drafter.propose_many([[5, 6, 7] * 60, [5]], [3, 2])
    assert (rows(), passes()) == (64 + 1 + 1, 2)
    options = {"drafter": drafter, "draft_length": FixedLength(3), **ENDLESS}
    schedule = Schedule(llm, [Wish([5, 6, 7] * 60, options), Wish([8], ENDLESS)])
    schedule.run()
    assert schedule.streams[0].stats.num_accepted_tokens > 0


def test_proposals_for_many_are_those_for_one(load: Callable[[str], Llama]) -> None:
    small = load("small")
    histories = [[5, 6, 7], [9], [8, 8], []]
    many = DraftModel(small).propose_many(histories, [4, 2, 0, 3])
    alone = [
        DraftModel(small).propose(history, k)
        for history, k in zip(histories, [4, 2, 0, 3], strict=True)
    ]
    assert many == alone


class Together:
    """A drafter of its user's that proposes for many."""

    def __init__(self, answers: Any = None) -> None:
        self.calls: list[int] = []
        self.answers = answers

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        self.calls.append(1)
        return [5] * k

    def propose_many(self, histories: Any, ks: Any) -> Any:
        self.calls.append(len(histories))
        if callable(self.answers):
            return self.answers(histories, ks)
        return [[5] * k for k in ks]


def test_any_drafter_may_propose_for_many(load: Callable[[str], Llama]) -> None:
    llm, drafter = load("large"), Together()
    chain = Chain(Scripted([]), drafter)
    llm.generate_many([[5, 6], [7, 8], [9]], drafter=chain, draft_length=FixedLength(2), **ENDLESS)
    assert max(drafter.calls) > 1


def fail(histories: Any, ks: Any) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize("answers", [fail, lambda histories, ks: [[]]], ids=["fails", "too few"])
def test_where_it_fails_each_is_asked_alone(load: Callable[[str], Llama], answers: Any) -> None:
    llm, drafter = load("large"), Together(answers)
    prompts = [[5, 6], [7, 8]]
    many = llm.generate_many(prompts, drafter=drafter, draft_length=FixedLength(2), **ENDLESS)
    assert [m.tokens for m in many] == [llm.generate(p, **ENDLESS).tokens for p in prompts]
    assert 1 in drafter.calls


def test_bad_proposals_fail_their_own_request(load: Callable[[str], Llama]) -> None:
    llm = load("large")
    drafter = Together(lambda histories, ks: [[5] if h[0] == 5 else [10**6] for h in histories])
    results = llm.generate_many(
        [[5, 6], [7, 8]],
        drafter=drafter,
        draft_length=FixedLength(2),
        return_errors=True,
        **ENDLESS,
    )
    assert not isinstance(results[0], Exception)
    assert "outside the vocabulary" in str(results[1])
