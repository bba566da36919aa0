"""The decoding loop: speculation changes nothing but the speed, and every end is exact."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import ContextOverflow as ToyOverflow
from fake_engine import Model, Scripted, Session, write_toy
from specrs import ContextOverflow, Drafter, FixedLength, PromptLookup, Sampling
from specrs.decoding.generate import steps
from specrs.decoding.loop import Generation
from specrs.decoding.step import Step
from specrs.decoding.verify import verify

PROMPT = [5, 6, 7, 8]
N_CTX = 64


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(write_toy(tmp_path / "toy", n_ctx=N_CTX, order=2))


def plain(model: Model, prompt: Sequence[int], n: int) -> list[int]:
    """Decode greedily in the dumbest way."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model.row(tokens).argmax()))
    return tokens[len(prompt) :]


class Returning:
    """Answer whatever it is told to."""

    def __init__(self, answer: Callable[[Sequence[int], int], Any]) -> None:
        self.answer = answer

    def propose(self, tokens: Sequence[int], k: int) -> Any:
        return self.answer(tokens, k)


def run(
    session: Session,
    prompt: Sequence[int] = PROMPT,
    *,
    max_tokens: int | None = 20,
    drafter: Drafter | None = None,
    k: int = 4,
    ends: Callable[[int], bool] = lambda _: False,
    n_ctx: int = N_CTX,
) -> Iterator[Step]:
    generation = Generation(
        prompt=prompt,
        n_ctx=n_ctx,
        n_vocab=session._model.n_vocab,
        max_tokens=max_tokens,
        sampling=Sampling(),
        drafter=drafter,
        length=FixedLength(k),
        ends=ends,
    )
    return steps(session, generation)  # type: ignore[arg-type]


def made(events: Iterator[Step]) -> list[int]:
    return [token for step in events for token in step.tokens]


def assert_holds_all_but_last(session: Session, tokens: Sequence[int]) -> None:
    assert session.tokens == list(tokens[:-1])


@pytest.mark.parametrize(
    ("picks", "draft", "result"),
    [
        ([4], [], [4]),
        ([4, 5], [4], [4, 5]),
        ([4, 5], [9], [4]),
        ([4, 5, 6], [4, 9], [4, 5]),
        ([4, 5, 6], [9, 5], [4]),
        ([4, 4, 4], [4, 4], [4, 4, 4]),
    ],
)
def test_verify_returns_picks_up_to_the_first_difference(
    picks: list[int], draft: list[int], result: list[int]
) -> None:
    assert verify(picks, draft) == result


def test_verify_asks_for_no_pick_beyond_the_difference() -> None:
    lazy = iter([1, 2, 3])
    assert verify(lazy, [1, 9]) == [1, 2]
    assert list(lazy) == [3]


@given(st.data())
def test_any_draft_gives_the_plain_result(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("toy") / "toy"
    order, seed = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 9))
    model = Model(write_toy(path, n_ctx=N_CTX, order=order, seed=seed))
    prompt = data.draw(st.lists(st.integers(0, model.n_vocab - 1), min_size=1, max_size=N_CTX - 1))
    n = data.draw(st.integers(0, N_CTX))
    expected = plain(model, prompt, min(n, N_CTX - len(prompt)))
    truth = [*prompt, *expected]

    def answer(tokens: Sequence[int], k: int) -> list[int]:
        right = truth[len(tokens) : len(tokens) + data.draw(st.integers(0, k))]
        wrong = st.lists(st.integers(0, model.n_vocab - 1), max_size=k - len(right))
        return right + data.draw(wrong)

    session = model.session()
    events = list(run(session, prompt, max_tokens=n, drafter=Returning(answer), k=6))
    assert made(iter(events)) == expected
    assert len(events) <= max(len(expected), 1)
    if expected:
        assert_holds_all_but_last(session, truth)
        assert [step.finish_reason for step in events] == [None] * (len(events) - 1) + ["length"]


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("k", [1, 3, 16])
def test_prompt_lookup_on_repetitive_prompts(model: Model, n: int, period: int, k: int) -> None:
    prompt = ([5, 6, 7, 8, 9, 10, 11][:period] * 30)[:30]
    for smallest in range(1, n + 1):
        drafter = PromptLookup(n, smallest, k)
        result = made(run(model.session(), prompt, drafter=drafter, k=k))
        assert result == plain(model, prompt, 20)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("place", range(1, 21))
def test_an_end_token_inside_a_draft_ends_there(model: Model, block: int, place: int) -> None:
    truth = plain(model, PROMPT, 24)
    end = truth[place]
    place = truth.index(end)
    session = model.session()
    events = list(
        run(
            session,
            max_tokens=24,
            drafter=Scripted(PROMPT + truth),
            k=block,
            ends=lambda token: token == end,
        )
    )
    assert made(iter(events)) == truth[: place + 1]
    assert events[-1].finish_reason == "stop"
    assert [step.finish_reason for step in events[:-1]] == [None] * (len(events) - 1)
    assert_holds_all_but_last(session, PROMPT + truth[: place + 1])
    last = events[-1]
    assert last.accepted == min(last.drafted, len(last.tokens))


@pytest.mark.parametrize("max_tokens", [None, 0, 1, 4, 5, 13])
@pytest.mark.parametrize("drafting", [False, True])
def test_max_tokens_is_exact(model: Model, max_tokens: int | None, drafting: bool) -> None:
    truth = plain(model, PROMPT, N_CTX - len(PROMPT))
    drafter = Scripted(PROMPT + truth + [9] * 20) if drafting else None
    session = model.session()
    events = list(run(session, max_tokens=max_tokens, drafter=drafter))
    assert made(iter(events)) == truth[:max_tokens]
    if max_tokens == 0:
        assert len(session) == 0
        assert model.forwards == 0
    else:
        assert events[-1].finish_reason == "length"
        assert_holds_all_but_last(session, PROMPT + truth[:max_tokens])


@pytest.mark.parametrize("length", [1, 48, 56, 62, 63])
@pytest.mark.parametrize("k", [1, 16])
def test_the_context_is_filled_to_its_last_position(model: Model, length: int, k: int) -> None:
    prompt = [(3 * i) % 20 + 2 for i in range(length)]
    truth = plain(model, prompt, N_CTX - length)
    session = model.session()
    drafter = Scripted(prompt + truth + [9] * 50)
    events = list(run(session, prompt, max_tokens=64, drafter=drafter, k=k))
    assert made(iter(events)) == truth
    assert len(prompt + truth) == N_CTX
    assert events[-1].finish_reason == "length"
    assert_holds_all_but_last(session, prompt + truth)


@pytest.mark.parametrize("length", [64, 65, 10_000])
def test_a_prompt_without_room_for_a_reply_is_refused(model: Model, length: int) -> None:
    session = model.session()
    session.forward([1, 2, 3])
    with pytest.raises(ContextOverflow, match=f"{length} tokens.* 64") as raised:
        next(run(session, [2] * length))
    assert (raised.value.needed, raised.value.n_ctx) == (length + 1, 64)
    assert session.tokens == [1, 2, 3]


def test_empty_prompt_and_negative_limit(model: Model) -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        next(run(model.session(), []))
    with pytest.raises(ValueError, match="max_tokens must be 0 or more, not -1"):
        next(run(model.session(), max_tokens=-1))


@pytest.mark.parametrize("cached", [[], [5], [5, 6, 7, 8], [5, 6, 7, 8, 9, 9, 9], [5, 9, 9], [9]])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_used_session_answers_like_a_new_one(
    model: Model, cached: list[int], drafting: bool
) -> None:
    session = model.session()
    if cached:
        session.forward(cached)
    shared = next((i for i, (a, b) in enumerate(zip(cached, PROMPT, strict=False)) if a != b), None)
    shared = min(len(cached), len(PROMPT)) if shared is None else shared
    session.rows.clear()
    truth = plain(model, PROMPT, 20)
    drafter = Scripted(PROMPT + truth) if drafting else None
    events = list(run(session, drafter=drafter))
    assert made(iter(events)) == truth
    fresh = events[0].evaluated - events[0].drafted
    assert fresh == len(PROMPT) - min(shared, len(PROMPT) - 1)
    assert session.rows[0] == events[0].evaluated


def raising(*_: Any) -> list[int]:
    raise KeyError("lost")


def raising_late(*_: Any) -> Iterator[int]:
    yield 3
    raise KeyError("lost")


def meddling(tokens: Sequence[int], _: int) -> list[int]:
    assert isinstance(tokens, list)
    tokens.append(3)
    return []


def endless(*_: Any) -> Iterator[int]:
    while True:
        yield 3


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (raising, RuntimeError, "failed after 4 tokens: KeyError"),
        (meddling, RuntimeError, "changed the history"),
        (endless, ValueError, "more than the 4 tokens"),
        (lambda _, k: [3] * (k + 1), ValueError, "more than the 4 tokens"),
        (raising_late, RuntimeError, "failed after 4 tokens: KeyError"),
        (lambda *_: None, TypeError, "not None"),
        (lambda *_: 7, TypeError, "not 7"),
        (lambda *_: [1.0], TypeError, r"not \[1.0\]"),
        (lambda *_: np.array([1.5, 2.0]), TypeError, "sequence of token ids"),
        (lambda *_: "abc", TypeError, "not 'abc'"),
        (lambda *_: [[3]], TypeError, "sequence of token ids"),
        (lambda *_: [True], TypeError, r"not \[True\]"),
        (lambda *_: {3: 4}, TypeError, r"not \{3: 4\}"),
        (lambda *_: {3}, TypeError, r"not \{3\}"),
        (lambda *_: b"ab", TypeError, "not b'ab'"),
        (lambda *_: [-1], ValueError, "token -1, outside the vocabulary of 30"),
        (lambda *_: [30], ValueError, "token 30, outside the vocabulary of 30"),
        (lambda *_: [2**70], ValueError, "outside the vocabulary of 30"),
    ],
)
def test_a_faulty_drafter_is_named_and_the_session_stays_right(
    model: Model,
    answer: Callable[[Sequence[int], int], Any],
    error: type[Exception],
    words: str,
) -> None:
    session = model.session()
    with pytest.raises(error, match=f"drafter Returning .*{words}"):
        list(run(session, drafter=Returning(answer)))
    assert session.tokens == PROMPT[: len(session)]
    assert made(run(session)) == plain(model, PROMPT, 20)


def test_a_drafter_failing_later_leaves_what_was_made(model: Model) -> None:
    truth = plain(model, PROMPT, 20)

    def answer(tokens: Sequence[int], k: int) -> list[int]:
        return (PROMPT + truth)[len(tokens) :][:k] if len(tokens) < 10 else raising(tokens, k)

    session = model.session()
    with pytest.raises(RuntimeError):
        list(run(session, drafter=Returning(answer)))
    assert len(session) >= 9
    assert session.tokens == (PROMPT + truth)[: len(session)]


@pytest.mark.parametrize(
    "answer",
    [
        lambda tokens, k: np.random.default_rng(len(tokens)).integers(0, 30, k),
        lambda _, k: [29] * k,
        lambda _, k: (1 for __ in range(k)),
        lambda _, k: np.array([1] * k, np.uint32),
    ],
    ids=["random", "padding", "all-end", "uint32"],
)
def test_a_useless_drafter_changes_nothing(
    model: Model, answer: Callable[[Sequence[int], int], Any]
) -> None:
    session = model.session()
    events = list(run(session, drafter=Returning(answer), ends=lambda token: token == 1))
    expected = plain(model, PROMPT, 20)
    expected = expected[: expected.index(1) + 1] if 1 in expected else expected
    assert made(iter(events)) == expected
    assert_holds_all_but_last(session, PROMPT + expected)


def test_a_perfect_drafter_saves_the_forwards(model: Model) -> None:
    truth = plain(model, PROMPT, 20)
    session = model.session()
    events = list(run(session, drafter=Scripted(PROMPT + truth), k=4))
    assert session.rows == [8, 5, 5, 5]
    assert [step.accepted for step in events] == [4, 4, 4, 4]
    assert [step.position for step in events] == [4, 9, 14, 19]
    assert {step.drafter for step in events} == {"Scripted"}


def test_a_closed_generation_leaves_the_session_right_and_free(model: Model) -> None:
    truth = plain(model, PROMPT, 20)
    for stop_after in range(1, 5):
        session = model.session()
        events = run(session, drafter=Scripted(PROMPT + truth), k=2)
        tokens = PROMPT + [token for _ in range(stop_after) for token in next(events).tokens]
        with pytest.raises(RuntimeError, match="in use by another generation"):
            next(run(session))
        events.close()  # type: ignore[attr-defined]
        assert_holds_all_but_last(session, tokens)
        assert made(run(session)) == truth


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.truncate(2),
        lambda session: session.forward([3, 4]),
        lambda session: session.reset(),
        lambda session: session.restore(session.snapshot()),
        lambda session: session.lease(),
        lambda session: next(run(session)),
    ],
    ids=["truncate", "forward", "reset", "restore", "lease", "generate"],
)
def test_nobody_else_changes_the_session_of_a_generation(
    model: Model, change: Callable[[Session], object]
) -> None:
    session = model.session()
    truth = plain(model, PROMPT, 20)
    events = run(session, drafter=Scripted(PROMPT + truth), k=2)
    tokens = list(next(events).tokens)
    with pytest.raises(RuntimeError, match="in use by another generation"):
        change(session)
    assert made(run(session.fork())) == truth
    assert tokens + made(events) == truth
    assert_holds_all_but_last(session, PROMPT + truth)
    session.truncate(2)


def test_an_interrupt_between_forward_and_commit_loses_nothing(model: Model) -> None:
    session = model.session()
    truth = plain(model, PROMPT, 20)
    calls = iter(range(100))

    def ends(_: int) -> bool:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        list(run(session, drafter=Scripted(PROMPT + truth), k=3, ends=ends))
    assert_holds_all_but_last(session, PROMPT + truth[:4])
    assert made(run(session)) == truth


def test_threads_on_one_session_exclude_each_other_and_on_two_do_not(model: Model) -> None:
    truth = plain(model, PROMPT, 20)
    results: list[list[int] | str] = []

    def work(session: Session) -> None:
        try:
            results.append(made(run(session, drafter=PromptLookup())))
        except RuntimeError as error:
            results.append(str(error))

    shared = model.session()
    sessions = [shared, shared, shared, model.session(), model.session()]
    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 5
    assert all(result == truth or "in use" in result for result in results)
    assert results.count(truth) >= 3
    assert made(run(shared)) == truth


def test_the_toy_engine_refuses_what_the_native_one_does(model: Model) -> None:
    session = model.session()
    for tokens in ([], [30], [-1]):
        with pytest.raises(ValueError, match=r"tokens|vocabulary"):
            session.forward(tokens)
    with pytest.raises(ToyOverflow):
        session.forward([1] * 65)
    with pytest.raises(ValueError, match="truncate"):
        session.truncate(1)
    assert len(session) == 0
